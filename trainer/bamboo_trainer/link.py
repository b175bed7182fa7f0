"""One live connection between two workers: frames out from whoever made them, frames in by a thread of its own."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from bamboo_trainer import framing
from bamboo_trainer.frames import Frame
from bamboo_trainer.plan import WorkerId

BUFFER_BYTES = 1 << 16
Piece = bytes | memoryview


@dataclass(frozen=True, slots=True)
class LinkUp:
    peer: WorkerId


@dataclass(frozen=True, slots=True)
class LinkDown:
    peer: WorkerId
    detail: str


@dataclass(frozen=True, slots=True)
class FrameArrived:
    peer: WorkerId
    frame: Frame


FromPeers = LinkUp | LinkDown | FrameArrived
Post = Callable[[FromPeers], None]


class Link:
    """One live connection. ``closed_by_us`` links end in silence."""

    def __init__(self, peer: WorkerId, connection: socket.socket, post: Post, on_end: Callable[["Link", str], None]):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self.peer = peer
        self._connection = connection
        self._post = post
        self._on_end = on_end
        self._outgoing: SimpleQueue[list[Piece] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_waiting = 0
        """Frames for the writer. As long as there are some, the next ones queue behind them."""
        self._reader = threading.Thread(target=self._read, name=f"from {peer}", daemon=True)
        self.writer = threading.Thread(target=self._write, name=f"to {peer}", daemon=True)
        self.writer.start()

    def begin_to_read(self) -> None:
        """Once it has been told that the link is up: what comes through it is news of later."""
        self._reader.start()

    def send(self, frame: Frame) -> None:
        """Never blocks. What the socket takes at once is gone at once (to wake the writer, which then waits for the
        interpreter, makes a hop of the pipeline several times as long); the writer sends the rest."""
        pieces = framing.encode(frame)
        with self._lock:
            if not self._num_waiting:
                pieces = self._send_now(pieces)
            if pieces:
                self._num_waiting += 1
                self._outgoing.put(pieces)

    def _send_now(self, pieces: list[Piece]) -> list[Piece]:
        """What the socket did not take. A broken one takes nothing: the writer will meet the error, and tell."""
        try:
            sent = self._connection.sendmsg(pieces, (), socket.MSG_DONTWAIT)
        except OSError:
            return pieces
        left: list[Piece] = []
        for piece in pieces:
            if sent < len(piece):
                left.append(memoryview(piece)[sent:])
            sent = max(0, sent - len(piece))
        return left

    def close(self) -> None:
        self._outgoing.put(None)
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already gone: that is what was wanted
        self._connection.close()

    def _write(self) -> None:
        try:
            while (pieces := self._outgoing.get()) is not None:
                for piece in pieces:
                    self._connection.sendall(piece)
                with self._lock:
                    self._num_waiting -= 1
        except OSError as error:
            self._on_end(self, f"sending: {error}")

    def _read(self) -> None:
        try:
            incoming = Incoming(self._connection)
            while True:
                text, value_header, value = map(
                    incoming.take, framing.decode_head(bytes(incoming.take(framing.HEAD.size)))
                )
                self._post(FrameArrived(self.peer, framing.decode(bytes(text), bytes(value_header), value)))
        except (OSError, framing.FrameError) as error:
            self._on_end(self, f"receiving: {error}")


class Incoming:
    """What a connection brings, piece by piece. Small frames come with one call of the system each, not with one for
    each of their pieces: between calls a thread has to get the interpreter back."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0

    def take(self, length: int) -> bytearray:
        """Raises OSError when the connection ends before."""
        piece = bytearray(length)
        taken = 0
        while taken < length:
            if self._start == self._end and length - taken >= BUFFER_BYTES:
                taken += _received(self._connection.recv_into(memoryview(piece)[taken:]))
                continue
            if self._start == self._end:
                self._start, self._end = 0, _received(self._connection.recv_into(self._buffer))
            count = min(length - taken, self._end - self._start)
            piece[taken : taken + count] = self._buffer[self._start : self._start + count]
            self._start += count
            taken += count
        return piece


def _received(count: int) -> int:
    if count == 0:
        raise ConnectionResetError("the peer closed the connection")
    return count


def receive_exactly(connection: socket.socket, length: int) -> bytearray:
    """Raises OSError when the connection ends or times out before."""
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        view = view[_received(connection.recv_into(view)) :]
    return buffer
