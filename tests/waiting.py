"""Waiting for a condition, with a deadline: the only place where tests look, sleep and look again."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

DEADLINE_S = 60.0
REST = 9
"""So many times what a look took is slept after it: who waits leaves the processor to those that are waited for."""

T = TypeVar("T")


async def until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """For what happens in this process. Fails with ``what`` after ``deadline_s``."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s} s for {what}"
        await asyncio.sleep(0.005)


async def turn() -> None:
    """Of all others in this event loop, before who awaits it goes on."""
    await asyncio.sleep(0)


async def repeat(work: Callable[[], Awaitable[None]], is_over: Callable[[], bool], *, every_s: float = 0.002) -> None:
    """What a double of a real process does again and again, with a pause between."""
    while not is_over():
        await work()
        await asyncio.sleep(every_s)


def wait_until(
    condition: Callable[[], T | None], what: str | Callable[[], str], *, deadline_s: float = DEADLINE_S
) -> T:
    """For what happens in another process: the first answer that is true. Fails with ``what``."""
    deadline = time.monotonic() + deadline_s
    while True:
        begun = time.monotonic()
        if found := condition():
            return found
        looked_s = time.monotonic() - begun
        if begun > deadline:
            raise AssertionError(f"waited {deadline_s:.0f} s for {what if isinstance(what, str) else what()}")
        time.sleep(max(0.02, min(REST * looked_s, 0.2)))
