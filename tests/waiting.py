"""Waiting for a condition, with a deadline."""

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    """For what happens in this process. Fails with ``what`` after ``DEADLINE_S``."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """For what happens in another process."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.02)
