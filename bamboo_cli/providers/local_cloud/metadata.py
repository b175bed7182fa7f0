"""The metadata endpoint of one instance: EC2's service, version 2 (token first), as far as a spot instance needs it."""

import json
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from bamboo_cli.providers.base import EndReason
from bamboo_cli.providers.local_cloud.model import Rented
from bamboo_cli.providers.local_cloud.serving import Exchange, Server

TOKEN_PATH = "/latest/api/token"
METADATA_PREFIX = "/latest/meta-data/"
MAX_TTL_S = 21600


class MetadataEndpoint:
    """Serves until ``close``. Tokens live in memory: after a restart of the cloud, agents get 401 and ask anew."""

    def __init__(self, *, address: str, port: int, view: Callable[[], Rented]) -> None:
        """``port`` 0: any free one. Raises OSError."""
        self._server = _Server((address, port), _Handler)
        self._server.view = view
        self._server.tokens = {}
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True, name=f"metadata-{self.port}").start()

    def close(self) -> None:
        """Returns at once; the port is free within half a second."""
        threading.Thread(target=self._close, daemon=True).start()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def read(rented: Rented, key: str) -> str | None:
    """The text under ``/latest/meta-data/<key>``; None: 404."""
    match key:
        case "instance-id":
            return rented.instance_id
        case "instance-type":
            return rented.request.instance_type
        case "instance-life-cycle":
            return "spot"
        case "placement/availability-zone":
            return rented.request.zone
        case "local-ipv4":
            return rented.address
        case "spot/instance-action" if _under_notice(rented):
            return json.dumps({"action": "terminate", "time": _timestamp(rented.kill_at)})
        case "events/recommendations/rebalance" if _under_notice(rented):
            return json.dumps({"noticeTime": _timestamp(rented.noticed_at)})
    return None


def _under_notice(rented: Rented) -> bool:
    return rented.noticed_at is not None and rented.end_reason is EndReason.PREEMPTED


def _timestamp(seconds: float | None) -> str:
    """To the second, as EC2 writes it, and rounded down: a notice never promises more time than there is."""
    assert seconds is not None
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Server(Server):
    view: Callable[[], Rented]
    tokens: dict[str, float]
    """Expiry by token, on the monotonic clock."""


class _Handler(Exchange):
    server: _Server

    def do_PUT(self) -> None:
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != TOKEN_PATH:
            self.answer(404)
        elif "X-Forwarded-For" in self.headers:
            self.answer(403)
        elif not (ttl.isascii() and ttl.isdigit() and 1 <= int(ttl) <= MAX_TTL_S):
            self.answer(400)
        else:
            now, token = time.monotonic(), secrets.token_urlsafe(32)
            valid = {t: until for t, until in self.server.tokens.items() if until > now}
            self.server.tokens = valid | {token: now + int(ttl)}
            self.answer(200, token.encode())

    def do_GET(self) -> None:
        token = self.headers.get("X-aws-ec2-metadata-token", "")
        if self.server.tokens.get(token, 0.0) <= time.monotonic():
            self.answer(401)
            return
        text = None
        if self.path.startswith(METADATA_PREFIX):
            text = read(self.server.view(), self.path.removeprefix(METADATA_PREFIX))
        if text is None:
            self.answer(404)
        else:
            self.answer(200, text.encode())
