"""An instance's metadata service, version 2, as EC2 gives it, and badly where a test asks for that.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
"""

import contextlib
import json
import socket
import socketserver
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

ADDRESS = "169.254.169.254"
TOKEN_PATH = "/latest/api/token"
TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL_S = 21600
ACTION = "meta-data/spot/instance-action"
TERMINATION_TIME = "meta-data/spot/termination-time"
REBALANCE = "meta-data/events/recommendations/rebalance"


@dataclass(slots=True, kw_only=True)
class Metadata:
    texts: dict[str, str] = field(default_factory=dict)
    """By path after ``/latest/``; anything else is 404."""
    needs_token: bool = True
    hop_limit: int = 1
    """How far the answer with a token goes: 1 is to the machine itself, 2 to a container on it."""
    clock: Callable[[], float] = time.time

    # --- bad behaviour ---
    status: int | None = None
    """Answer everything with it."""
    slow: threading.Event | None = None
    """Answer nothing until it is set."""

    requests: list[str] = field(default_factory=list)
    _valid_until: dict[str, float] = field(default_factory=dict)

    def interrupt(self, at: float) -> None:
        """The notice: this instance will be terminated at ``at``."""
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.texts |= {ACTION: json.dumps({"action": "terminate", "time": when}), TERMINATION_TIME: when}

    def recommend_rebalance(self) -> None:
        when = datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.texts[REBALANCE] = json.dumps({"noticeTime": when})

    def expire_tokens(self) -> None:
        self._valid_until.clear()

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        self.requests.append(f"{method} {path}")
        if self.status is not None:
            return self.status, "", {}
        if path == TOKEN_PATH:
            return self._token(headers) if method == "PUT" else (405, "", {})
        if method != "GET" or not path.startswith("/latest/"):
            return (405 if path.startswith("/latest/") else 404), "", {}
        token = headers.get("x-aws-ec2-metadata-token")
        if (token is not None or self.needs_token) and self._valid_until.get(token or "", 0.0) <= self.clock():
            return 401, "", {}
        text = self.texts.get(path.removeprefix("/latest/").rstrip("/"))
        return (404, "", {}) if text is None else (200, text, {})

    def _token(self, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        if "x-forwarded-for" in headers:
            return 403, "", {}
        ttl = headers.get(TTL_HEADER, "")
        if not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL_S:
            return 400, "", {}
        token = uuid.uuid4().hex
        self._valid_until[token] = self.clock() + int(ttl)
        return 200, token, {TTL_HEADER: ttl}


class MetadataServer(socketserver.ThreadingTCPServer):
    """Over a socket that listens already (in another network namespace, say)."""

    daemon_threads = True

    def __init__(self, metadata: Metadata, listening: socket.socket) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.metadata = metadata
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self.metadata.slow is not None:
            self.metadata.slow.set()
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle of its request."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = 30.0
    server: MetadataServer

    def handle(self) -> None:
        metadata = self.server.metadata
        request = self.rfile.readline().decode("latin-1").split(" ")
        if len(request) != 3:
            return
        method, path = request[:2]
        headers = {}
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if metadata.slow is not None:
            metadata.slow.wait()
        status, text, more = metadata.answer(method, path, headers)
        if path == TOKEN_PATH and metadata.hop_limit < self._hops():
            with contextlib.suppress(OSError):
                self.rfile.read()  # the answer died on its way: until the client gives up
            return
        lines = [
            f"HTTP/1.1 {status} X",
            "Content-Type: text/plain",
            "Connection: close",
            f"Content-Length: {len(text)}",
        ]
        lines += [f"{name}: {value}" for name, value in more.items()]
        self.wfile.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())

    def _hops(self) -> int:
        """A container with a network of its own has the machine as a router between."""
        return 1 if self.client_address[0] == self.server.socket.getsockname()[0] else 2
