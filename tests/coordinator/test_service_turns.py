"""What comes in a heap, as when many nodes are prepared at once, keeps the coordinator from nothing else."""

import asyncio
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from bamboo_cli import jobs
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator.events import Event, Instruction, Tick
from bamboo_cli.coordinator.service import Service
from tests.coordinator.memory_cloud import MemoryCloud
from tests.waiting import turn, until

HEAP = 20
JOB = JobConfig(name="demo", recipe="mlp", steps=1, global_batch_size=4, microbatch_size=1, stages=2)


def test_links_are_heard_between_any_two_events_of_a_heap(cluster_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, turns_at = 0, []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await turn()

    async def live() -> None:
        service = Service(
            cluster_dir,
            config=jobs.cluster_config(JOB, "demo-1"),
            provider=MemoryCloud(),
            notice_s=10.0,
            clock=time.time,
        )
        handle = service._machine.handle

        def noted(event: Event, at: float) -> Iterable[Instruction]:
            turns_at.append(turns)
            return handle(event, at)

        running = asyncio.create_task(service.run())
        await until(lambda: service._inbox._queue.empty(), "the coordinator to have begun")
        monkeypatch.setattr(service._machine, "handle", noted)
        busy = asyncio.create_task(others())
        for _ in range(HEAP):
            service._hear(Tick())
        await until(lambda: len(turns_at) >= HEAP, "the heap to be worked off")
        busy.cancel()
        service.stop()
        await running

    asyncio.run(live())

    assert all(before < after for before, after in pairwise(turns_at[:HEAP])), turns_at
