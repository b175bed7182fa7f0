"""Lines over a socket, for the control link between an agent and its worker."""

import asyncio
import socket
from collections.abc import AsyncIterator

READ_BYTES = 1 << 16


class LineChannel:
    """Reading and writing are independent: a peer that has died is still read to the end.

    (asyncio's stream pair is not: when a write meets a closed peer, what that peer sent last is dropped unread.)
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())

    async def lines(self) -> AsyncIterator[bytes]:
        """Whole lines without their newline, until the peer has closed. A last line without a newline is dropped."""
        loop, rest = asyncio.get_running_loop(), bytearray()
        while True:
            try:
                received = await loop.sock_recv(self._sock, READ_BYTES)
            except ConnectionError:
                return
            if not received:
                return
            rest += received
            if b"\n" in received:
                *complete, last = rest.split(b"\n")
                rest = last
                for line in complete:
                    yield bytes(line)

    def write(self, line: bytes) -> None:
        """Never waits: a frozen peer must not hold its agent up. What a dead peer does not read is dropped."""
        self._outgoing.put_nowait(line + b"\n")

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            line = await self._outgoing.get()
            try:
                await loop.sock_sendall(self._sock, line)
            except ConnectionError:
                return

    async def close(self) -> None:
        """Call it when nobody reads any more."""
        self._writer.cancel()
        await asyncio.wait({self._writer})
        self._sock.close()
