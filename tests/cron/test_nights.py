"""Nights that go on, are stopped, are killed: the next one goes on, and nothing stays rented. Real runs."""

import signal

import pytest

from tests.cluster import Bamboo
from tests.cron.conftest import ODD
from tests.cron.nightly import Nightly, kill, nightly

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def odd(bamboo: Bamboo) -> Bamboo:
    """In a folder with spaces, a percent sign and letters beyond ASCII."""
    bamboo.folder = bamboo.folder / ODD
    bamboo.folder.mkdir()
    return bamboo


def test_a_week_of_nights(odd: Bamboo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given nights that are stopped, whose run is killed, that are killed alone, and with their run, when one is left
    in peace, then it goes on from the last of them to the end, and the night after has nothing to do."""
    nights = nightly(odd, monkeypatch, odd.paced(stages=2, steps=60, checkpoint={"every": 2}))

    first = stopped_by_sigterm(nights)
    second = whose_run_is_killed(nights, first)
    third = killed_alone(nights, second)
    fourth = killed_with_its_run(nights, third)
    that_ends_what_is_left_and_goes_on(nights, fourth)

    complete = nights.begin().end()
    assert complete.exit_code == 0 and complete.summary["state"] == "complete"
    assert complete.stdout.splitlines()[0] == "drilled: nothing to do, all 60 steps are done; nothing was rented"


def stopped_by_sigterm(nights: Nightly) -> str:
    command = nights.begin()
    run_id = nights.until_some_steps()
    assert nights.shown()["is_on"]

    nights.night().send_signal(signal.SIGTERM)
    ended = command.end()

    assert ended.exit_code == 143, ended
    assert ended.summary["state"] == "stopped" and ended.summary["run_id"] == run_id
    assert ended.stdout.startswith("drilled: FAILED (exit code 143): stopped, ")
    assert nights.notified(143).startswith("drilled: FAILED (exit code 143): stopped, ")
    assert nights.bamboo.left() == []
    return run_id


def whose_run_is_killed(nights: Nightly, before: str) -> str:
    command = nights.begin()
    run_id = nights.until_some_steps(after=before)

    kill(nights.run())
    ended = command.end()

    assert ended.exit_code == 137, ended
    assert "`bamboo run` was killed by SIGKILL" in ended.stdout
    assert "SIGKILL" in nights.notified(137)
    assert "the run has ended, and its cluster is up; it is ended" in nights.log()
    assert nights.bamboo.left() == []
    return run_id


def killed_alone(nights: Nightly, before: str) -> str:
    """`bamboo run`, whose output nobody reads any more, gives everything back."""
    nights.begin()
    run_id = nights.until_some_steps(after=before)

    kill(nights.night())

    assert nights.bamboo.left() == []
    assert nights.shown()["last"]["state"] == "killed"
    return run_id


def killed_with_its_run(nights: Nightly, before: str) -> str:
    """The coordinator trains on, with nobody to give anything back."""
    nights.begin()
    run_id = nights.until_some_steps(after=before)

    night, run = nights.night(), nights.run()
    kill(night, run)
    night.wait()

    shown = nights.shown()
    assert shown["last"]["state"] == "killed" and not shown["is_on"]
    assert any("its cluster is up, and costs money" in text for text in shown["trouble"])
    return run_id


def that_ends_what_is_left_and_goes_on(nights: Nightly, before: str) -> None:
    command = nights.begin()
    nights.until_some_steps(after=before)
    nights.bamboo.open_gate()
    ended = command.end()

    assert ended.exit_code == 0, (ended, nights.log())
    assert "an earlier night has left its cluster up; it is ended first" in nights.log()
    assert f"--resume {before}" in nights.log()
    assert ended.stdout.splitlines()[0].startswith("drilled: done, all 60 steps, from step ")
    assert nights.notified(0) == "" and "was killed, and never told how it ended" in nights.notified(137)
