"""A metadata service that behaves as it is told, on a real socket: correctly, or badly in one of many ways."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate

ACTION = "/latest/meta-data/spot/instance-action"


def answer(status: int, body: str = "", date: str = "") -> bytes:
    dated = f"Date: {date}\r\n" if date else ""
    return f"HTTP/1.1 {status} Whatever\r\n{dated}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@dataclass(slots=True, kw_only=True)
class MetadataDouble:
    url: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    """By path; anything else is 404."""
    raw: bytes | None = None
    """Answered to everything, instead."""
    silent: bool = False
    """Take requests and say nothing more."""
    valid: set[str] = field(default_factory=set)
    """Tokens that are; take them out to let them expire."""
    tokens_given: int = 0
    gives_tokens: bool = True
    now: float | None = None
    """By its clock, which it then shows in every answer."""
    requests: list[str] = field(default_factory=list)

    def respond(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        self.requests.append(f"{method} {path}")
        if self.raw is not None:
            return self.raw
        if method == "PUT":
            return self._token(headers)
        if headers.get("x-aws-ec2-metadata-token") not in self.valid:
            return answer(401)
        date = "" if self.now is None else formatdate(self.now, usegmt=True)
        return answer(200, self.texts[path], date) if path in self.texts else answer(404, date=date)

    def _token(self, headers: dict[str, str]) -> bytes:
        if not 1 <= int(headers["x-aws-ec2-metadata-token-ttl-seconds"]) <= 21600:
            return answer(400)
        self.tokens_given += 1
        token = f"token-{self.tokens_given}"
        if self.gives_tokens:
            self.valid.add(token)
        return answer(200, token)


@contextmanager
def metadata_double() -> Iterator[MetadataDouble]:
    double, over = MetadataDouble(), threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request = self.rfile.readline().decode()
            if not request:  # a poll that was given up
                return
            method, path, _ = request.split(" ")
            headers = {}
            while line := self.rfile.readline().decode().strip():
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            self.wfile.write(double.respond(method, path, headers))
            if double.silent:
                over.wait()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        double.url = "http://{}:{}".format(*server.server_address)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield double
        over.set()
        server.shutdown()
