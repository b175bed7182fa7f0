"""A night that rents nothing: locks, exit codes, what is told whom. In this process."""

import json
import signal

import pytest

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator import lock as coordinator_lock
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.cron import lock, night, nights
from bamboo_cli.cron.night import run_night
from bamboo_cli.cron.nights import Night, NightState
from bamboo_cli.job_file import load_job
from bamboo_cli.jobs import run_spec
from tests.cli.stored import stored
from tests.cli.test_resuming import save
from tests.coordinator.small_world import World
from tests.cron.conftest import Schedule


def test_one_night_at_a_time_is_on_for_each_cluster(schedule: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    schedule.job()
    entry = schedule.entry(entry_id="weekend", notify=("exit 1",))
    nights.write(
        entry, Night(started_at=1.0, state=NightState.DONE, ended_at=2.0, exit_code=0, summary="weekend: done")
    )

    with lock.held("tiny"):
        left_out = run_night(entry, anew=False)

    assert (left_out.state, left_out.exit_code) == (NightState.LEFT_OUT, 5)
    assert capsys.readouterr().out == "weekend: left out, since another night of cluster tiny is still on\n"
    found = nights.newest(entry)
    assert found is not None and found.state is NightState.DONE, "the record of the other is as it was"
    assert not entry.log.exists()


def test_a_quiet_entry_says_nothing_of_a_night_that_did_not_fail(
    schedule: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule.job()
    with lock.held("tiny"):
        run_night(schedule.entry(quiet=True), anew=False)

    assert capsys.readouterr() == ("", "")


def test_a_failure_is_told_in_the_output_the_log_the_record_and_to_whom_it_concerns(
    schedule: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    told = schedule.folder / "told"
    entry = schedule.entry(notify=(f"cat > '{told}'", "echo no way >&2; exit 7"), quiet=True)

    failed = run_night(entry, anew=False)

    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == failed.summary and "there is no such file" in failed.summary
    assert printed[1] == "`echo no way >&2; exit 7` could not be notified: exit code 7: no way"
    assert told.read_text().splitlines()[0] == failed.summary
    assert failed.summary in entry.log.read_text() and "could not be notified" in entry.log.read_text()
    assert nights.newest(entry) == failed


def test_a_lock_that_cannot_be_had_is_told_like_any_failure(
    schedule: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule.job()
    told = schedule.folder / "told"
    entry = schedule.entry(notify=(f"cat > '{told}'",))
    lock.path_of(entry.cluster).mkdir()

    failed = run_night(entry, anew=False)

    assert (failed.state, failed.exit_code) == (NightState.FAILED, 1)
    assert "its lock cannot be opened" in failed.summary and "nothing was rented" in failed.summary
    printed = capsys.readouterr().out.splitlines()
    assert told.read_text().splitlines()[:2] == [failed.summary, f"The lock is {lock.path_of(entry.cluster)}."]
    assert printed[0] == failed.summary


def test_a_bug_is_told_like_any_failure(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("of course")

    monkeypatch.setattr(night, "load_job_of", broken)
    told = schedule.folder / "told"
    entry = schedule.entry(notify=(f"cat > '{told}'",))

    failed = run_night(entry, anew=False)

    assert failed.exit_code == 3 and "ZeroDivisionError" in told.read_text()
    assert "Traceback" in entry.log.read_text()


def test_a_log_that_cannot_be_written_is_told_and_hinders_nothing(
    schedule: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = schedule.entry()
    entry.log.symlink_to("/dev/full")

    failed = run_night(entry, anew=False)

    assert failed.exit_code == 2
    assert "of the log could not be written: is the disk full?" in capsys.readouterr().out


def test_a_night_that_never_told_how_it_ended_was_killed(schedule: Schedule) -> None:
    entry = schedule.entry()
    nights.write(entry, Night(started_at=1.0, pid=1))

    with lock.held("tiny"):
        on = nights.newest(entry)
    killed = nights.newest(entry)

    assert on is not None and on.state is NightState.ON
    assert killed is not None and killed.state is NightState.KILLED and "never told" in killed.summary


def test_of_a_night_that_was_killed_the_next_one_tells(schedule: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    """Else nobody is told of a machine that has too little memory for any night."""
    kept = {"checkpoint": {"url": (schedule.folder / "kept").as_uri()}}
    save(load_job(schedule.job(**kept), ()), "tiny-aaaaaa-1", 9)
    told = schedule.folder / "told"
    entry = schedule.entry(notify=(f"cat >> '{told}'; echo $BAMBOO_CRON_STATE >> '{told}'",), quiet=True)
    nights.write(entry, Night(started_at=1.0, pid=1))

    complete = run_night(entry, anew=False)
    run_night(entry, anew=False)

    assert complete.state is NightState.COMPLETE
    first, state = told.read_text().splitlines()
    assert first.startswith("tiny: FAILED (exit code 137): the night of 1970-01-01 ") and state == "killed"
    assert "was killed, and never told how it ended" in first and first in entry.log.with_name("log.1").read_text()
    assert capsys.readouterr().out.splitlines() == [complete.summary, first]


def test_a_cluster_that_nobody_looks_after_and_no_night_made_is_left_alone(schedule: Schedule) -> None:
    schedule.job()
    stored(World(ClusterConfig(cluster_id="c", num_nodes=2, zones=("a",))), schedule.home)
    told = schedule.folder / "told"
    entry = schedule.entry(notify=(f"cat > '{told}'",))

    failed = run_night(entry, anew=False)

    assert failed.exit_code == 1 and "is up, costs money, and was not made by a night" in failed.summary
    assert "bamboo down --cluster tiny" in told.read_text()


def test_a_cluster_on_which_somebody_trains_is_left_alone(schedule: Schedule) -> None:
    """Without anybody being told: it is no failure."""
    job = load_job(schedule.job(), ())
    world = World(ClusterConfig(cluster_id="c", num_nodes=2, zones=("a",)))
    world.handle(ev.Started())
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=run_spec(job, "tiny-1", "file:///checkpoints"))))
    path = stored(world, schedule.home)
    told = schedule.folder / "told"

    with coordinator_lock.held(path.parent):
        left_out = run_night(schedule.entry(notify=(f"cat > '{told}'",)), anew=False)

    assert left_out.exit_code == 5 and "left out, since somebody trains on cluster tiny" in left_out.summary
    assert not told.exists()


def test_a_job_that_is_done_is_done_only_as_long_as_it_is_the_same_job(schedule: Schedule) -> None:
    kept = {"checkpoint": {"url": (schedule.folder / "kept").as_uri()}}
    save(load_job(schedule.job(**kept), ()), "tiny-aaaaaa-1", 9)
    complete = run_night(schedule.entry(), anew=False)

    schedule.job(**kept, seed=1)
    changed = run_night(schedule.entry(), anew=False)

    assert (complete.state, complete.exit_code) == (NightState.COMPLETE, 0)
    assert (changed.state, changed.exit_code) == (NightState.FAILED, 2)
    assert "seed was 0, not 1" in changed.summary


def test_signals_are_as_before_when_it_is_over(schedule: Schedule) -> None:
    before = signal.getsignal(signal.SIGTERM)

    run_night(schedule.entry(), anew=False)

    assert signal.getsignal(signal.SIGTERM) is before


def test_run_now_ends_with_the_exit_code_of_the_night_and_tells_it_as_json(
    schedule: Schedule, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = schedule.entry()

    result = schedule.call("run-now", "tiny", "--json")

    assert result.exit_code == 2
    assert json.loads(result.stdout.splitlines()[-1])["state"] == "failed"
    assert f"tail -F '{entry.log}'" in result.stderr
    assert capfd.readouterr().out.startswith("tiny: FAILED (exit code 2): ")
