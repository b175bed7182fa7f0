"""The local cloud's API: authorised calls from ``calls.py`` over HTTP on the loopback."""

import secrets
import threading
from typing import Any

from pydantic import ValidationError

from bamboo_cli.errors import CloudError
from bamboo_cli.providers.local_cloud.calls import (
    CALLS,
    FAILURE,
    INSTANCE,
    INSTANCES,
    NOTHING,
    YES_OR_NO,
    Call,
    Create,
    Describe,
    Failure,
    Follow,
    Preempt,
    Retire,
    Terminate,
    failure_of,
)
from bamboo_cli.providers.local_cloud.cloud import CloudClosed, LocalCloud
from bamboo_cli.providers.local_cloud.serving import Exchange, Server

MAX_BODY_BYTES = 1 << 20


class Api(Server):
    """Serves from its own thread until ``shutdown``."""

    def __init__(self, cloud: LocalCloud) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cloud = cloud
        self.token = secrets.token_urlsafe(32)
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True, name="api").start()

    def perform(self, call: Call) -> bytes:
        """The JSON answer. Raises CloudError, CloudClosed."""
        match call:
            case Create(request=request):
                return INSTANCE.dump_json(self.cloud.create(request))
            case Describe(cluster_id=cluster_id):
                return INSTANCES.dump_json(self.cloud.describe(cluster_id))
            case Terminate(instance_ids=instance_ids):
                self.cloud.terminate(instance_ids)
                return NOTHING.dump_json(None)
            case Preempt(instance_id=instance_id, notice_s=notice_s):
                self.cloud.preempt(instance_id, notice_s)
                return NOTHING.dump_json(None)
            case Follow(cluster_id=cluster_id, changes=changes, seed=seed):
                self.cloud.follow(cluster_id, changes, seed)
                return NOTHING.dump_json(None)
            case Retire():
                return YES_OR_NO.dump_json(self.cloud.close_if_empty())


class _Handler(Exchange):
    server: Api

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), MAX_BODY_BYTES))
        expected = f"Bearer {self.server.token}"
        if not secrets.compare_digest(self.headers.get("Authorization", ""), expected):
            self._fail(403, Failure(kind="cloud", message="the local cloud was asked with a wrong token"))
            return
        adapter = CALLS.get(self.path.removeprefix("/"))
        if adapter is None:
            self._fail(404, Failure(kind="cloud", message=f"the local cloud knows no call {self.path}"))
            return
        try:
            call: Any = adapter.validate_json(body)
            self.answer(200, self.server.perform(call), content_type="application/json")
        except ValidationError as error:
            self._fail(400, Failure(kind="cloud", message=f"the local cloud cannot read the call: {error}"))
        except CloudError as error:
            self._fail(409, failure_of(error))
        except CloudClosed:
            self._fail(503, Failure(kind="cloud", message="the local cloud is ending"))

    def _fail(self, status: int, failure: Failure) -> None:
        self.answer(status, FAILURE.dump_json(failure), content_type="application/json")
