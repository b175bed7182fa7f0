"""Calling AWS: one way for all operations, with their retries, pages and errors.

Standard retries (throttling, timeouts, 5xx) are the SDK's. ``once`` operations are sent once, since EC2 answers a lack
of capacity with a 500 that the SDK would send again, and since what to do instead is decided elsewhere.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bamboo_cli.errors import CloudError, CredentialsError, RequestRefusedError, UsageError
from bamboo_cli.providers.aws_cloud.codes import error_of
from bamboo_cli.providers.aws_cloud.operations import Operation

if TYPE_CHECKING:
    import boto3

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 30
ATTEMPTS = 5
PRICING_REGION = "us-east-1"
"""The Pricing API has an endpoint in few regions, and every one knows all prices."""

Answer = dict[str, Any]


class Calls:
    """Thread-safe. Credentials are looked up by the first call, and anew after AWS refused them."""

    def __init__(self, profile: str | None = None) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._session: boto3.Session | None = None
        self._clients: dict[tuple[str, str, bool], Any] = {}

    def call(
        self, operation: Operation, region: str, *, expected: tuple[str, ...] = (), **arguments: Any
    ) -> Answer | None:
        """None: AWS answered with one of the ``expected`` error codes. Raises CloudError as ``codes`` has it."""
        with self._translated(operation, region):
            client = self._client(operation, region)
            try:
                answer: Answer = getattr(client, operation.method)(**arguments)
            except client.exceptions.ClientError as error:
                if error.response["Error"]["Code"] in expected:
                    return None
                raise
            return answer

    def ask(self, operation: Operation, region: str, **arguments: Any) -> Answer:
        """``call`` where no error is expected."""
        answer = self.call(operation, region, **arguments)
        assert answer is not None
        return answer

    def items(self, operation: Operation, region: str, **arguments: Any) -> list[Any]:
        """Of all pages."""
        assert operation.pages is not None
        with self._translated(operation, region):
            paginator = self._client(operation, region).get_paginator(operation.method)
            return [item for page in paginator.paginate(**arguments) for item in page.get(operation.pages, ())]

    def _client(self, operation: Operation, region: str) -> Any:
        """Making one takes some 0.2 s and is not thread-safe; using one is."""
        service_region = PRICING_REGION if operation.service == "pricing" else region
        key = (operation.service, service_region, operation.once)
        with self._lock:
            if key not in self._clients:
                boto3, config = _sdk()
                if self._session is None:
                    self._session = boto3.Session(profile_name=self._profile)
                self._clients[key] = self._session.client(
                    operation.service,
                    region_name=service_region,
                    config=config(
                        retries={"mode": "standard", "total_max_attempts": 1 if operation.once else ATTEMPTS},
                        connect_timeout=CONNECT_TIMEOUT_S,
                        read_timeout=2 * READ_TIMEOUT_S if operation.once else READ_TIMEOUT_S,
                        max_pool_connections=32,
                        user_agent_extra="bamboo-train",
                    ),
                )
            return self._clients[key]

    @contextmanager
    def _translated(self, operation: Operation, region: str) -> Iterator[None]:
        _sdk()
        from botocore import exceptions, parsers

        try:
            yield
        except exceptions.ClientError as error:
            told = error.response["Error"]
            translated = error_of(operation, region, told.get("Code", "?"), told.get("Message", ""))
            if isinstance(translated, CredentialsError):
                self._forget_credentials()
            raise translated from error
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.ProfileNotFound,
            exceptions.ConfigParseError,
            exceptions.UnauthorizedSSOTokenError,
            exceptions.SSOError,
            exceptions.TokenRetrievalError,
            exceptions.UnknownCredentialError,
            exceptions.InvalidConfigError,
        ) as error:
            self._forget_credentials()
            raise CredentialsError(
                f"there are no AWS credentials that can be used: {error}",
                next_step="Log in (`aws configure`, `aws sso login`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), "
                "or choose an `aws.profile`.",
            ) from error
        except (exceptions.ParamValidationError, exceptions.InvalidRegionError) as error:
            raise RequestRefusedError(f"{region}: {operation.action} cannot be asked: {error}") from error
        except (exceptions.BotoCoreError, parsers.ResponseParserError) as error:
            raise CloudError(
                f"{region}: {operation.action} got no answer that could be read: {error}",
                next_step="It is asked again later; check the network if this goes on.",
            ) from error

    def _forget_credentials(self) -> None:
        """The user may log in again meanwhile, and files are read only once a session."""
        with self._lock:
            self._session = None
            self._clients.clear()


def _sdk() -> tuple[Any, Any]:
    """Imported by the first call: it takes half a second. Raises UsageError where it is not installed."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise UsageError(
            f"`cloud: aws` needs the AWS SDK ({error})", next_step="Install it with `pip install 'bamboo-train[aws]'`."
        ) from error
    return boto3, Config
