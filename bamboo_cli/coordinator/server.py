"""The coordinator's end of the agents' links: who may connect, what is heard, what is said. Decides nothing else.

Everything heard goes to one ``hear`` callback as events. A link counts as its node's link only once it is admitted
(the machine has seen its ``Join``); until then nothing further is read from it.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    Beat,
    Envelope,
    FromAgent,
    Join,
    Refused,
    ToAgent,
    decode_from_agent,
)
from bamboo_trainer.control import encode
from bamboo_trainer.plan import NodeId
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from bamboo_cli.coordinator.events import AgentBeat, AgentDropped, AgentSaid, Event, StrangerRefused
from bamboo_cli.errors import StateError

PATH = "/agent"
JOIN_DEADLINE_S = 10.0
MAX_MESSAGE_BYTES = 16 << 20
"""A plan of a thousand stages is about 1 MB."""
CLOSE_TIMEOUT_S = 1.0
MAX_TOLD = 100
"""Different refusals that make it into the story."""
PROTOCOL_ERROR = 1002
GOING_AWAY = 1001

log = logging.getLogger(__name__)


class Link:
    """One connection of an agent that has said ``Join``. Sending never waits: a frozen agent holds nobody up."""

    def __init__(self, connection: ServerConnection, join: Join) -> None:
        self.join = join
        self.admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._outgoing: asyncio.Queue[ToAgent | None] = asyncio.Queue()

    @property
    def node_id(self) -> NodeId:
        return self.join.node_id

    def send(self, message: ToAgent) -> None:
        self._outgoing.put_nowait(message)

    def close(self) -> None:
        """Once everything that was sent before is on its way."""
        self._outgoing.put_nowait(None)

    async def write(self) -> None:
        with suppress(ConnectionClosed):
            while (message := await self._outgoing.get()) is not None:
                await self._connection.send(encode(message).decode())
        await self._connection.close(GOING_AWAY)


class AgentServer:
    """``join`` is given each link that has introduced itself, ``hear`` every other event; both must not block."""

    def __init__(self, *, secret: str, join: Callable[[Link], None], hear: Callable[[Event], None]) -> None:
        self._secret = secret.encode()
        self._join = join
        self._hear = hear
        self._links: dict[NodeId, Link] = {}
        self._waiting: set[Link] = set()
        self._told: set[tuple[str, str]] = set()
        self._stopping = False
        self._server: Server | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen; returns the port (``port`` 0: one that is free). Raises StateError when the port is taken."""
        try:
            # asyncio sets SO_REUSEADDR, so the port can be bound again right after a crash.
            self._server = await serve(
                self._serve,
                address,
                port,
                process_request=self._check,
                max_size=MAX_MESSAGE_BYTES,
                close_timeout=CLOSE_TIMEOUT_S,
                logger=log,
            )
        except OSError as error:
            raise StateError(
                f"cannot listen for agents on {address}:{port} ({error.strerror or error})",
                next_step="Agents know this port: end whatever took it and start the coordinator again.",
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Agents keep what they have to say and come back to the next coordinator."""
        self._stopping = True  # nobody would decide on a link that joins now
        if self._server is not None:
            for link in tuple(self._waiting):
                link.close()
                self._decide(link, admitted=False)
            self._server.close(code=GOING_AWAY, reason="the coordinator stops")
            await self._server.wait_closed()

    def admit(self, link: Link) -> None:
        """From now on this is the node's link; an older one is closed, and its end is not an event."""
        older, self._links[link.node_id] = self._links.get(link.node_id), link
        if older is not None:
            older.close()
        self._decide(link, admitted=True)

    def refuse(self, link: Link, reason: str, *, final: bool) -> None:
        link.send(Refused(reason=reason, final=final))
        link.close()
        self._decide(link, admitted=False)

    def send(self, node_id: NodeId, message: ToAgent) -> None:
        """Dropped where there is no link: what still holds is said again when the node joins."""
        link = self._links.get(node_id)
        if link is not None:
            link.send(message)

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != PATH:
            return connection.respond(HTTPStatus.NOT_FOUND, "Nothing here.\n")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(given.encode(), self._secret):
            self._tell_once(connection, "without the cluster's secret")
            return connection.respond(HTTPStatus.UNAUTHORIZED, "The cluster's secret is missing or wrong.\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            join = await self._introduced(connection)
            if join is not None and not self._stopping:
                await self._serve_link(connection, Link(connection, join))

    async def _serve_link(self, connection: ServerConnection, link: Link) -> None:
        writer = asyncio.create_task(link.write())
        self._waiting.add(link)
        self._join(link)
        try:
            if await link.admitted:
                await self._listen(connection, link)
            else:
                await writer
        finally:
            self._forget(link)
            writer.cancel()
            await asyncio.wait({writer})

    async def _introduced(self, connection: ServerConnection) -> Join | None:
        try:
            async with asyncio.timeout(JOIN_DEADLINE_S):
                first = decode_from_agent(await connection.recv())
        except (ValueError, TimeoutError) as error:
            await self._turn_away(connection, f"no Join came ({_short(error)})")
            return None
        if not isinstance(first, Join):
            await self._turn_away(connection, f"{first.kind} came before Join")
            return None
        if first.protocol_version != PROTOCOL_VERSION:
            reason = (
                f"the agent of {first.node_id} speaks version {first.protocol_version}, "
                f"the coordinator version {PROTOCOL_VERSION}"
            )
            await connection.send(encode(Refused(reason=reason, final=True)).decode())
            await self._turn_away(connection, reason)
            return None
        return first

    async def _listen(self, connection: ServerConnection, link: Link) -> None:
        async for text in connection:
            try:
                message = decode_from_agent(text)
            except ValueError as error:
                await self._turn_away(connection, f"{link.node_id} sent what is no message ({_short(error)})")
                return
            event = _event(link.join, message)
            if event is None:
                await self._turn_away(connection, f"{link.node_id} said Join twice on one link")
                return
            self._hear(event)

    async def _turn_away(self, connection: ServerConnection, detail: str) -> None:
        self._tell_once(connection, detail)
        await connection.close(PROTOCOL_ERROR, detail[:100])

    def _decide(self, link: Link, *, admitted: bool) -> None:
        self._waiting.discard(link)
        link.admitted.set_result(admitted)

    def _tell_once(self, connection: ServerConnection, detail: str) -> None:
        """Whoever knocks every second would fill the story."""
        address = connection.remote_address
        host = str(address[0]) if isinstance(address, tuple) else str(address)
        if (host, detail) not in self._told and len(self._told) < MAX_TOLD:
            self._told.add((host, detail))
            self._hear(StrangerRefused(address=host, detail=detail))

    def _forget(self, link: Link) -> None:
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
            self._hear(AgentDropped(node_id=link.node_id))


def _event(join: Join, message: FromAgent) -> Event | None:
    match message:
        case Beat():
            return AgentBeat(node_id=join.node_id, silence_s=message.silence_s, sent_at=message.sent_at)
        case Envelope():
            return AgentSaid(
                node_id=join.node_id, message=message.message, boot_id=join.boot_id, sequence=message.sequence
            )
        case Join():
            return None


def _short(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "not JSON"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
