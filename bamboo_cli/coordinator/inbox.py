"""What the coordinator's machine has still to handle, with when it came."""

import asyncio
import time
from collections.abc import Callable

from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator.events import AgentBeat, AgentJoined, Event, Tick
from bamboo_cli.coordinator.server import Link

TICK_S = 0.25


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch that never jump: leases must not run out because somebody set the time."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


class Inbox:
    """Make it inside a running event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[tuple[float, Event, Link | None]] = asyncio.Queue()
        self._tick_is_due = False
        self._beats: dict[NodeId, float] = {}

    def hear(self, event: Event) -> None:
        now = self._clock()
        if isinstance(event, AgentBeat):
            self._beats[event.node_id] = now
        self._queue.put_nowait((now, event, None))

    def join(self, link: Link) -> None:
        self._queue.put_nowait((self._clock(), AgentJoined(join=link.join), link))

    async def next(self) -> tuple[float, Event, Link | None]:
        """In order; the link is that of who wants to join."""
        at, event, link = await self._queue.get()
        if isinstance(event, Tick):
            self._tick_is_due = False
        return at, event, link

    def take_beats(self) -> dict[NodeId, float]:
        """Which agents were heard since this was last called, and when."""
        beats, self._beats = self._beats, {}
        return beats

    async def tick(self) -> None:
        """For ever. One at a time: while an event waits for the disk, time is not told twice."""
        while True:
            await asyncio.sleep(TICK_S)
            if not self._tick_is_due:
                self._tick_is_due = True
                self.hear(Tick())
