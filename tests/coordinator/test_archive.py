"""Checkpoints that cannot be listed: told once, tried again, and named as what the run waits for."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_cli.coordinator import archive
from bamboo_cli.coordinator import events as ev
from tests.coordinator.test_machine import play
from tests.waiting import until


@pytest.mark.parametrize("url", ["no-such-store://bucket/run", "/etc/hostname/run"])
def test_listing_goes_on_trying_whatever_the_store_raises(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "RETRY_S", 0.01)
    failures: list[ev.ListingFailed] = []

    async def scene() -> None:
        finding = asyncio.create_task(archive.find(ev.ListCheckpoints(run_id="r", url=url), failures.append))
        await until(lambda: len(failures) > 1 or finding.done(), "two tries")
        assert not finding.done()
        finding.cancel()

    asyncio.run(scene())

    assert url in failures[0].detail


def test_what_can_be_listed_is_no_failure(tmp_path: Path) -> None:
    failures: list[ev.ListingFailed] = []
    found = asyncio.run(archive.find(ev.ListCheckpoints(run_id="r", url=str(tmp_path)), failures.append))
    assert (found.steps, failures) == ((), [])


def test_the_story_says_once_why_the_run_cannot_begin() -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2")
    board = world.machine.board
    assert board.run is not None and board.checkpoints is not None
    board.checkpoints = replace(board.checkpoints, listed=False)
    failed = ev.ListingFailed(run_id=board.run.spec.run_id, detail="s3://x: no bucket")

    told = [i.text for _ in range(2) for i in world.machine.handle(failed, world.now) if isinstance(i, ev.Tell)]

    assert told == ["cannot list the checkpoints in s3://x: no bucket; trying again until it can be done"]
    assert "no bucket" in board.checkpoints.trouble
    world.machine.handle(ev.CompleteCheckpoints(run_id=failed.run_id, steps=()), world.now)
    assert board.checkpoints.trouble == ""
