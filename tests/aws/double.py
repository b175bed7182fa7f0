"""AWS on a port of this machine: moto, corrected, behind faults that a test asks for. See README.md.

``AwsDouble`` is what tests hold. It serves every SDK in this process and in others (``environment``).
"""

import contextlib
import io
import logging
import os
import socket
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import boto3
import moto.ec2.urls
from botocore.config import Config
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.aws import lives, permissions, remains, services
from tests.aws.account import REGIONS, Account, End, Life
from tests.aws.ec2 import Ec2
from tests.aws.faults import Fault, Faults
from tests.aws.machine import Machines
from tests.aws.wire import STATUS, Answer, Call, answer, error, error_code, read_call

REGION = "us-east-1"
SETTLE_S = 0.05
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}


class _Installed(Ec2):
    """moto makes one of these per request; ``AwsDouble`` gives it its account."""


moto.ec2.urls.url_paths["{0}/"] = _Installed.dispatch
logging.getLogger("werkzeug").setLevel(logging.CRITICAL)


class AwsDouble:
    """One per process: moto keeps its state in its modules."""

    def __init__(self, machines: Machines | None = None) -> None:
        self.faults = Faults()
        self.calls: list[tuple[Call, str]] = []
        """All that came, with the error code that was answered (empty: none)."""
        self._machines = machines
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        """moto is not made for threads."""
        self._closed = threading.Event()
        self.reset()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._threads = [threading.Thread(target=self._server.serve_forever, daemon=True)]
        if machines is not None:
            self._threads.append(threading.Thread(target=self._keep_settling, daemon=True))
        for thread in self._threads:
            thread.start()

    # --- for tests ---

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """For processes that shall meet this AWS and no other."""
        return KEYS | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self, service: str = "ec2", region: str = REGION, attempts: int = 1) -> Any:
        """``attempts``: how often the SDK sends, should it be told to try again."""
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.endpoint,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"mode": "standard", "total_max_attempts": attempts}),
        )

    def fault(self, action: str, code: str = "", **how: Any) -> Fault:
        return self.faults.add(Fault(action=action, code=code, **how))

    def called(self, action: str) -> list[Call]:
        return [call for call, _ in self.calls if call.action == action]

    def lives(self) -> list[Life]:
        """Of the instances that EC2 still knows, in the order of their launch."""
        with self._settled():
            return list(self.account.lives.values())

    def alive(self) -> list[Life]:
        return [life for life in self.lives() if life.ended_at is None]

    def interrupt(self, instance_id: str, notice_s: float | None = None) -> None:
        """As EC2 takes spot capacity back: after a notice in the metadata service, or (None) without one."""
        with self._settled():
            life = self.account.lives[instance_id]
            if notice_s is None:
                lives.end(self.account, self._backends()[life.region], life, End.INTERRUPTED)
                return
            lives.announce(self.account, life, notice_s)

    def remains(self) -> list[str]:
        """Whatever costs money or clutters the account, in any region; one line each."""
        with self._settled():
            return remains.of_account(self.account, self._backends())

    def pass_time(self, seconds: float) -> None:
        self.account.ahead_s += seconds

    def reset(self) -> None:
        """A new account."""
        self.faults.clear()
        with self._lock:
            if self._machines is not None:
                self._machines.close()
            self.account = Account(machines=self._machines)
            _Installed.account = self.account
            ec2_backends.reset()
            self.calls.clear()

    def close(self) -> None:
        self.faults.clear()
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        if self._machines is not None:
            self._machines.close()

    # --- serving ---

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        environ["wsgi.input"] = io.BytesIO(body)
        call = read_call(
            environ.get("HTTP_AUTHORIZATION", ""),
            environ.get("HTTP_X_AMZ_TARGET", ""),
            body,
            method=environ["REQUEST_METHOD"],
            path=environ["PATH_INFO"],
        )
        if call is None:
            found = answer(403, "text/plain", b"MissingAuthenticationToken")
        else:
            fault = self.faults.taken_by(call)
            found = self._with_fault(call, fault, environ)
            self.calls.append((call, error_code(found) if found is not None else "(connection closed)"))
            if found is None:
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                raise ConnectionError("closed for the test")
        start_response(f"{found.status} X", list(found.headers))
        return [found.body]

    def _with_fault(self, call: Call, fault: Fault | None, environ: dict[str, Any]) -> Answer | None:
        """None: no answer at all."""
        if call.region not in REGIONS:
            return None  # it has no address
        if fault is None:
            return self._answer(call, environ)
        if fault.after:
            found: Answer | None = self._answer(call, environ)
        fault.met.set()
        if fault.gate is not None:
            fault.gate.wait()
        if fault.drop:
            return None
        if fault.code:
            return error(call, fault.code, fault.message, fault.status)
        return found if fault.after else self._answer(call, environ)

    def _answer(self, call: Call, environ: dict[str, Any]) -> Answer:
        with self._settled():
            if call.action == "RunInstances" and not self.account.takes_launch(call.region):
                return error(call, "RequestLimitExceeded", "Request limit exceeded.")
            refused = permissions.refusal(call, self.account)
            if refused is not None:
                return refused
            if call.is_dry_run and call.action != "RunInstances":  # whose arguments are looked at
                return error(call, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
            try:
                found = services.serve(call, self.account) or self._ask_moto(environ)
            except Exception:  # noqa: BLE001 (moto raises anything for what it does not know)
                self.account.unsupported.append(f"{call.action} {dict(call.parameters)}\n{traceback.format_exc()}")
                return error(call, "InvalidAction", f"The double of AWS does not know this kind of {call.action}.")
        code = error_code(found)
        return replace(found, status=STATUS.get(code, found.status)) if code else found

    def _ask_moto(self, environ: dict[str, Any]) -> Answer:
        status, headers = "", []

        def start(found: str, given: list[tuple[str, str]], exc_info: Any = None) -> None:
            nonlocal status, headers
            status, headers = found, given

        body = b"".join(self._moto(environ, start))
        kept = tuple((name, value) for name, value in headers if name.lower() != "content-length")
        return Answer(status=int(status.split()[0]), headers=(*kept, ("Content-Length", str(len(body)))), body=body)

    def _keep_settling(self) -> None:
        while not self._closed.wait(SETTLE_S):
            with self._settled():
                pass

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        with self._lock:
            lives.settle(self.account, self._backends())
            yield

    def _backends(self) -> Any:
        return ec2_backends[DEFAULT_ACCOUNT_ID]
