"""A coordinator's end of the link: a real WebSocket server that keeps what it was told and can cut, refuse, go away."""

import socket
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TypeVar

import pytest
from bamboo_agent.messages import (
    Acknowledge,
    AgentMessage,
    Beat,
    Envelope,
    Join,
    Refused,
    ToAgent,
    Welcome,
    WorkerSaid,
    decode_from_agent,
)
from bamboo_trainer.control import encode
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

SECRET = "open sesame"
T = TypeVar("T")


class CoordinatorDouble:
    """Acknowledges every envelope, each once, and notes what came twice or out of order."""

    def __init__(self) -> None:
        self.joins: list[Join] = []
        self.beats: list[Beat] = []
        self.messages: list[AgentMessage] = []
        self.repeated = 0
        self.gaps: list[int] = []
        self.cut_at: list[int] = []
        """Cut the connection, without acknowledging, when that many envelopes have come."""
        self.refusal: Refused | None = None
        self.first_words: str | None = None
        """Said in place of Welcome."""
        self._seen: dict[str, int] = {}
        self._connection: ServerConnection | None = None
        self._server: Server | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        """Also after ``close``, on the same port."""
        self._server = serve(self._handle, "127.0.0.1", self.port, process_request=_authorise, compression=None)
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """As a cable does: without a closing handshake."""
        if self._connection is not None:
            _cut(self._connection)

    def tell(self, message: ToAgent) -> None:
        assert self._connection is not None
        self._connection.send(encode(message).decode())

    def said(self, kind: type[T]) -> list[T]:
        """What workers said and agents told, of one type, in order."""
        unpacked = [m.message if isinstance(m, WorkerSaid) else m for m in list(self.messages)]
        return [m for m in unpacked if isinstance(m, kind)]

    def silence_s(self) -> Mapping[str, float]:
        """By the latest beat; nothing before the first one."""
        return self.beats[-1].silence_s if self.beats else {}

    def _handle(self, connection: ServerConnection) -> None:
        try:
            join = decode_from_agent(connection.recv())
            assert isinstance(join, Join)
            if self.refusal is not None or self.first_words is not None:
                self.joins.append(join)
                connection.send(self.first_words or encode(self.refusal).decode())
                return
            seen = self._seen.setdefault(join.boot_id, 0)
            connection.send(encode(Welcome(acknowledged=seen, beat_s=0.05)).decode())
            self._connection = connection
            self.joins.append(join)
            for text in connection:
                if not self._take(connection, join.boot_id, decode_from_agent(text)):
                    return
        except ConnectionClosed:
            return

    def _take(self, connection: ServerConnection, boot_id: str, message: object) -> bool:
        """False: the connection is cut, and what else has arrived on it is lost."""
        if isinstance(message, Beat):
            self.beats.append(message)
            return True
        assert isinstance(message, Envelope)
        seen = self._seen[boot_id]
        if message.sequence <= seen:
            self.repeated += 1
            return True
        if message.sequence > seen + 1:
            self.gaps.append(message.sequence)
        self._seen[boot_id] = message.sequence
        self.messages.append(message.message)
        if self.cut_at and len(self.messages) >= self.cut_at[0]:
            self.cut_at.pop(0)
            _cut(connection)
            return False
        connection.send(encode(Acknowledge(sequence=message.sequence)).decode())
        return True


def _authorise(connection: ServerConnection, request: Request) -> Response | None:
    if request.path == "/agent" and request.headers.get("Authorization") == f"Bearer {SECRET}":
        return None
    return connection.respond(HTTPStatus.UNAUTHORIZED, "who are you\n")


def _cut(connection: ServerConnection) -> None:
    try:
        connection.socket.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@pytest.fixture
def coordinator() -> Iterator[CoordinatorDouble]:
    double = CoordinatorDouble()
    yield double
    double.close()
