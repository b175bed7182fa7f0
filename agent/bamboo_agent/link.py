"""The agent's one link to its coordinator: a WebSocket that is made anew for ever.

What the coordinator must hear goes into numbered envelopes, kept until acknowledged and sent again on every new
connection, in order. Beats and the join are about the present and are not kept.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bamboo_trainer.control import encode
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from bamboo_agent.config import AgentConfig, ConfigError
from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    AgentMessage,
    Beat,
    Envelope,
    Join,
    Refused,
    ToAgent,
    Welcome,
    decode_envelope,
    decode_to_agent,
)

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
LAST_DELAY_S = 2.0
"""Well below a lease (10 s), so that every agent is back in time when a coordinator starts again."""
ANSWER_S = 10.0
"""How long connecting, and the answer to a join, may take."""
PING_S, PONG_S = 5.0, 15.0
"""A link that is cut without a word is given up after at most their sum."""
MESSAGE_BYTES = 64 << 20


class ProtocolError(Exception):
    """The coordinator says what this agent cannot read."""


class _FinallyRefused(Exception):
    def __init__(self, refused: Refused) -> None:
        self.refused = refused


class Link:
    def __init__(
        self,
        *,
        read_config: Callable[[], AgentConfig],
        join: Callable[[], Join],
        beat: Callable[[], Beat],
        on_message: Callable[[ToAgent], Awaitable[None]],
    ) -> None:
        """``read_config`` is asked before each connection; ``on_message`` gets all but Welcome and Acknowledge."""
        self._read_config = read_config
        self._join = join
        self._beat = beat
        self._on_message = on_message
        self._kept: dict[int, str] = {}
        """Encoded envelopes by sequence: ``acknowledged + 1 .. last``."""
        self._last = 0
        self._acknowledged = 0
        self._sent = 0
        """Highest sequence sent on this connection."""
        self._news = asyncio.Event()
        self._outage = _Outage()
        self._alone_since: float | None = time.monotonic()

    @property
    def alone_s(self) -> float:
        """How long there has been no link; a link counts while its pings are answered."""
        return 0.0 if self._alone_since is None else time.monotonic() - self._alone_since

    def kept(self) -> tuple[Envelope, ...]:
        """What the coordinator has not acknowledged."""
        return tuple(decode_envelope(text) for _, text in sorted(self._kept.items()))

    def say(self, message: AgentMessage) -> None:
        self._last += 1
        envelope = Envelope(sequence=self._last, sent_at=time.time(), message=message)
        self._kept[self._last] = encode(envelope).decode()
        self._news.set()

    async def run(self) -> Refused:
        """Returns only when the coordinator has refused this agent for good."""
        while True:
            try:
                await self._connection(self._read_config())
            except _FinallyRefused as error:
                return error.refused
            except (OSError, WebSocketException, ConfigError, ProtocolError) as error:
                self._outage.failed(error)
            await asyncio.sleep(self._outage.next_delay_s())

    async def _connection(self, config: AgentConfig) -> None:
        """One connection, from the join to its end. Raises what ended it."""
        async with connect(
            f"ws://{config.coordinator_address}:{config.coordinator_port}/agent",
            additional_headers={"Authorization": f"Bearer {config.secret}"},
            proxy=None,
            compression=None,
            max_size=MESSAGE_BYTES,
            open_timeout=ANSWER_S,
            close_timeout=1.0,
            ping_interval=PING_S,
            ping_timeout=PONG_S,
        ) as connection:
            await connection.send(encode(self._join()).decode())
            async with asyncio.timeout(ANSWER_S):
                answer = _decode(await connection.recv())
            if isinstance(answer, Refused):
                if answer.final:
                    raise _FinallyRefused(answer)
                raise ProtocolError(f"the coordinator refused this node for now: {answer.reason}")
            if not isinstance(answer, Welcome):
                raise ProtocolError(f"the coordinator answered a join with {answer.kind}")
            self._outage.ended()
            self._alone_since = None
            try:
                self._acknowledge(answer.acknowledged)
                self._sent = self._acknowledged
                await _until_one_ends(
                    self._send_envelopes(connection),
                    self._send_beats(connection, answer.beat_s),
                    self._receive(connection),
                )
            finally:
                self._alone_since = time.monotonic()

    async def _send_envelopes(self, connection: ClientConnection) -> None:
        while True:
            self._news.clear()
            while self._sent < self._last:
                self._sent += 1  # before the wait, in which an acknowledgement may arrive
                await connection.send(self._kept[self._sent])
            await self._news.wait()

    async def _send_beats(self, connection: ClientConnection, beat_s: float) -> None:
        while True:
            await connection.send(encode(self._beat()).decode())
            await asyncio.sleep(beat_s)

    async def _receive(self, connection: ClientConnection) -> None:
        while True:
            match _decode(await connection.recv()):
                case Acknowledge(sequence=sequence):
                    self._acknowledge(sequence)
                case Welcome():
                    raise ProtocolError("the coordinator said welcome twice")
                case Refused() as refused if refused.final:
                    raise _FinallyRefused(refused)
                case message:
                    await self._on_message(message)

    def _acknowledge(self, sequence: int) -> None:
        """Raises ProtocolError when it was never said: then the coordinator takes this agent for another."""
        if sequence > self._last:
            raise ProtocolError(f"the coordinator acknowledged message {sequence} of {self._last}")
        for done in range(self._acknowledged + 1, sequence + 1):
            del self._kept[done]
        self._acknowledged = max(self._acknowledged, sequence)
        self._sent = max(self._sent, self._acknowledged)


class _Outage:
    """Tells the story of a link that is down: one line when it goes, one per new cause, one when it is back."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._attempts = 0
        self._cause = ""

    def failed(self, error: Exception) -> None:
        self._attempts += 1
        self._since = self._since or time.monotonic()
        cause = str(error) or type(error).__name__
        if cause != self._cause:
            log.warning("no link to the coordinator, trying again for ever: %s", cause)
        self._cause = cause

    def ended(self) -> None:
        if self._since is None:
            log.info("linked to the coordinator")
        else:
            log.info("linked again after %.1f s, attempt %d", time.monotonic() - self._since, self._attempts + 1)
        self._since, self._attempts, self._cause = None, 0, ""

    def next_delay_s(self) -> float:
        """Doubling, with jitter, so that the agents of a cluster do not come back in one moment."""
        return min(LAST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._attempts, 10)) * random.uniform(0.5, 1.0)


def _decode(text: str | bytes) -> ToAgent:
    try:
        return decode_to_agent(text)
    except ValueError as error:
        raise ProtocolError(
            f"the coordinator said {text[:120]!r}, which this agent (protocol version {PROTOCOL_VERSION}) cannot read: "
            "install the same version of bamboo-train on both sides"
        ) from error


async def _until_one_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Raises what the first to end raised; the others are cancelled."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
