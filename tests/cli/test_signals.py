"""Ctrl-C and SIGTERM while there is something to give back. Real commands over a real local cloud."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli import signals, teardown
from bamboo_cli.coordinator import looking
from bamboo_cli.coordinator.reader import read_status
from bamboo_cli.coordinator.status import ClusterStatus
from bamboo_cli.errors import SignalledError
from bamboo_cli.job_file import load_job, read_text
from bamboo_cli.signals import Terminated, terminable, unbroken
from bamboo_cli.teardown import Down, bring_down, give_back
from bamboo_cli.whole_run import run_and_give_back
from tests.cli import scenes
from tests.cluster import JOB, NAME, Bamboo, Command

pytestmark = pytest.mark.timeout(200)

SLOW_TO_BOOT = JOB["local"] | {"boot_delay_s": 1000.0}


def said(command: Command) -> str:
    return command.log.with_suffix(".err").read_text()


def test_sigterm_stops_a_run_with_a_checkpoint_and_gives_everything_back(bamboo: Bamboo) -> None:
    job = bamboo.job(stages=2, steps=100_000, checkpoint={"every": 1_000_000})
    running = bamboo.begin("run", job, "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 5, "some steps")

    running.child.send_signal(signal.SIGTERM)
    ended = running.end()

    assert ended.exit_code == 143, ended.stderr
    assert ended.summary["state"] == "stopped"
    assert ended.summary["checkpoint_step"] == ended.summary["steps"] - 1
    assert "SIGTERM" in ended.stderr
    assert "nothing is left running" in ended.stderr
    assert bamboo.left() == []


def test_sigterm_while_nodes_boot_gives_them_back(bamboo: Bamboo) -> None:
    running = bamboo.begin("run", bamboo.job(local=SLOW_TO_BOOT), "--yes")
    bamboo.until(bamboo.active_run, "the run to be taken")

    running.child.send_signal(signal.SIGTERM)
    ended = running.end()

    assert ended.exit_code == 143, ended.stderr
    assert "nothing is left running" in ended.stderr
    assert "Nothing is left running" in ended.stdout
    assert bamboo.left() == []


def test_ctrl_c_in_up_says_that_nodes_go_on_booting(bamboo: Bamboo) -> None:
    rising = bamboo.begin("up", bamboo.job(local=SLOW_TO_BOOT), "--yes")
    bamboo.until(lambda: "waiting for the nodes" in said(rising), "the nodes to be waited for")

    rising.child.send_signal(signal.SIGINT)
    ended = rising.end()

    assert ended.exit_code == 130
    assert "go on booting, and cost money" in ended.stderr
    assert f"bamboo status --cluster {NAME}" in ended.stderr
    assert f"bamboo down --cluster {NAME}" in ended.stderr
    assert bamboo.call("down", "--yes", "--now").exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_recipe_is_tried_says_that_nothing_was_rented(
    bamboo: Bamboo, number: signal.Signals
) -> None:
    (bamboo.folder / "slow.py").write_text("import threading\n\nthreading.Event().wait(60)\n")
    running = bamboo.begin("run", bamboo.job(recipe="slow.py", recipe_options={}), "--yes")
    bamboo.until(lambda: "to be tried" in said(running), "the recipe to be tried")

    running.child.send_signal(number)
    ended = running.end()

    assert ended.exit_code == 128 + number
    assert "nothing was rented" in ended.stderr
    assert not bamboo.home.exists()


def test_a_signal_while_things_are_given_back_says_what_is_left(
    bamboo: Bamboo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(bamboo.home))
    assert bamboo.call("up", bamboo.job(), "--yes").exit_code == 0

    def interrupted() -> None:
        raise Terminated(signal.SIGTERM)

    with pytest.raises(SignalledError) as raised:
        give_back(bamboo.cluster_dir, before=interrupted)

    assert raised.value.exit_code == 143
    assert "still there, which may cost money" in raised.value.message
    assert f"bamboo down --cluster {NAME}" in raised.value.next_step
    assert bamboo.call("down", "--yes").exit_code == 0


def test_a_first_signal_while_a_run_that_is_done_is_given_back_leaves_nothing(
    bamboo: Bamboo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(bamboo.home))
    job = bamboo.job(stages=2, steps=3)
    calls = []

    def interrupted_once(cluster_dir: Path, *, all_regions: bool) -> Down:
        calls.append(cluster_dir)
        if len(calls) == 1:
            raise Terminated(signal.SIGTERM)
        return bring_down(cluster_dir, all_regions=all_regions)

    monkeypatch.setattr(teardown, "bring_down", interrupted_once)

    ended = run_and_give_back(load_job(job), read_text(job), None, yes=True)

    assert len(calls) == 2
    assert bamboo.left() == []
    with pytest.raises(SignalledError) as raised:
        ended.check()
    assert raised.value.exit_code == 143
    assert bamboo.status().run.state == "done"  # type: ignore[union-attr]


def test_the_same_signal_twice_at_once_is_one_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` sends it to the command and then to its group."""
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with terminable():
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] += signals.ECHO_S + 0.1
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """As it is where nobody has changed what it does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_the_end_of_what_must_not_be_broken_and_a_second_one_does_not(
    ctrl_c: Callable[[], None],
) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), unbroken(), unbroken():
        ctrl_c()
        done.append("all of it")
    with pytest.raises(KeyboardInterrupt), unbroken():
        ctrl_c()
        ctrl_c()
        done.append("more")
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()

    assert done == ["all of it"]


def test_ctrl_c_while_the_state_file_is_read_is_heard_wherever_it_comes(
    tmp_path: Path, ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops what is raised where an object is let go of, as SQLAlchemy's are at the end of every look."""

    class LetGo:
        def __del__(self) -> None:
            ctrl_c()

    def status(*arguments: Any) -> ClusterStatus:
        LetGo()
        return cluster_status(*arguments)

    scenes.storm(tmp_path)
    cluster_status = looking.cluster_status
    monkeypatch.setattr(looking, "cluster_status", status)

    with pytest.raises(KeyboardInterrupt):
        read_status(tmp_path / "clusters" / "storm" / "state.db", now=scenes.NOW)


def test_sigterm_ends_the_demo_and_gives_everything_back(bamboo: Bamboo) -> None:
    bamboo.cluster = "demo"
    bamboo.home.mkdir()
    demo = bamboo.begin("demo", "--folder", bamboo.home)
    bamboo.until(bamboo.active_run, "the run to be taken")

    demo.child.send_signal(signal.SIGTERM)
    ended = demo.end()

    assert ended.exit_code == 143, ended.stderr
    assert "nothing is left running" in ended.stderr
