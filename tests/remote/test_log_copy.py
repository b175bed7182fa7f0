"""Logs of a machine with a real sshd: they come, go on after whatever breaks, and stay when it is gone."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bamboo_cli import log_files
from bamboo_cli.log_files import LogFile
from bamboo_cli.remote import log_copy
from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import Connection, connect
from bamboo_cli.remote.log_copy import LogCopy
from bamboo_cli.remote.steps import Place
from tests.remote.machine import Machine
from tests.waiting import wait_until

PLACE = Place(cluster_id="c-1", node_id="n1")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "PACE_S", 0.05)
    monkeypatch.setattr(log_copy, "PAUSE_S", 0.1)


@pytest.fixture
def node(vm: Machine) -> Path:
    """Its folder there, with a Python."""
    folder = vm.home / PLACE.folder
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "cluster" / "nodes" / "n1"


@pytest.fixture
def dial(vm: Machine, bastions: Bastions) -> Iterator[Callable[[], Connection]]:
    made: list[Connection] = []

    def dial() -> Connection:
        made.append(connect(vm.reach, vm.known.private, bastions=bastions))
        return made[-1]

    yield dial
    for connection in made:
        connection.close()


@pytest.fixture
def copy(here: Path) -> Iterator[LogCopy]:
    made = LogCopy(PLACE, here)
    yield made
    made.finish(1.0)


def say(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def await_same(node: Path, here: Path, name: str = "worker.log") -> None:
    wait_until(
        lambda: text_of(here / name) == (node / name).read_text(),
        lambda: f"{text_of(here / name)[-300:]!r} to become {(node / name).read_text()[-300:]!r}",
        deadline_s=20,
    )


def senders(vm: Machine) -> int:
    return len(vm.marked("-S"))


def test_lines_come_as_they_are_written_and_are_followed_as_anywhere(
    node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(node / "agent.log", "2026-01-01 10:00:00,100 INFO agent of node n1\n")
    copy.use(dial())
    await_same(node, here, "agent.log")

    def files() -> tuple[LogFile, ...]:
        return log_files.log_files({"n1": "i-1"}, here.parent.parent, ())

    seen: list[tuple[str, str]] = []

    def hear(source: str, text: str) -> None:
        seen.append((source, text))
        if text == "the end":
            raise KeyboardInterrupt

    def follow() -> None:
        with suppress(KeyboardInterrupt):
            log_files.follow(files, hear)

    monkeypatch.setattr(log_files, "NEW_FILES_S", 0.05)
    monkeypatch.setattr(log_files, "POLL_S", 0.02)
    assert [file.source for file in files()] == ["n1 agent"]
    follower = threading.Thread(target=follow)
    follower.start()
    say(node / "worker.log", "--- worker n1/1\nstep 1\n")
    wait_until(lambda: len(seen) == 2, "a new log")
    say(node / "worker.log", "boom\n")
    (node / "worker.log").replace(node / "worker.log.1")
    say(node / "worker.log", "--- worker n1/2\n")
    wait_until(lambda: len(seen) == 4, "the one that replaces it")
    say(node / "agent.log", "the end\n")
    follower.join()

    words = ["--- worker n1/1", "step 1", "boom", "--- worker n1/2"]
    assert seen == [*(("n1 worker", word) for word in words), ("n1 agent", "the end")]


def test_the_last_lines_of_a_machine_that_was_taken_stay(
    vm: Machine, node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection]
) -> None:
    connection = dial()
    copy.use(connection)
    say(node / "worker.log", "step 1\nTraceback (most recent call last):\n  the device failed\n")
    await_same(node, here)

    vm.end()
    wait_until(lambda: not connection.is_open, "the end of the connection")
    shown = log_files.last_lines(log_files.log_files({"n1": "i-1"}, here.parent.parent, ["n1"]), 1)

    assert list(shown) == [("n1 worker", "  the device failed")]


def test_a_node_that_is_given_back_is_asked_for_its_last_lines(
    node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection]
) -> None:
    say(node / "agent.log", "at work\n")
    copy.use(dial())
    await_same(node, here, "agent.log")

    say(node / "agent.log", "told to leave\n")
    copy.finish(10.0)

    assert text_of(here / "agent.log") == "at work\ntold to leave\n"


def test_connections_that_are_cut_leave_no_hole_and_nothing_comes_twice(
    vm: Machine, node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection]
) -> None:
    """The first half-way through much text, the second in silence; the third one is of another coordinator."""
    say(node / "worker.log", "".join(f"step {number}\n" for number in range(60000)))
    for wanted in (1, (node / "worker.log").stat().st_size):
        connection = dial()
        copy.use(connection)
        wait_until(lambda size=wanted: len(text_of(here / "worker.log")) >= size, "the text")  # type: ignore[misc]
        for session in vm.sessions():
            session.kill()
        wait_until(lambda gone=connection: not gone.is_open, "the end of the connection")  # type: ignore[misc]
        say(node / "worker.log", "while it was away\n")

    copy.finish(10.0)
    another = LogCopy(PLACE, here)
    another.use(dial())
    await_same(node, here)
    another.finish(10.0)

    wait_until(lambda: senders(vm) == 0, "the end of all senders")


def test_a_full_disk_here_is_told_once_and_made_up_for(
    node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection], caplog: pytest.LogCaptureFixture
) -> None:
    here.mkdir(parents=True)
    (here / "worker.log").symlink_to("/dev/full")
    say(node / "worker.log", "one\n")
    connection = dial()

    with caplog.at_level(logging.WARNING):
        copy.use(connection)
        wait_until(lambda: os.strerror(28) in caplog.text, "a word about it")
        say(node / "agent.log", "two\n")
        await_same(node, here, "agent.log")
        assert connection.is_well()
    (here / "worker.log").unlink()

    await_same(node, here)
    assert caplog.text.count(os.strerror(28)) <= 2


def test_a_machine_that_lost_its_python_is_told_of_and_stays_linked(
    node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection], caplog: pytest.LogCaptureFixture
) -> None:
    (node / "venv" / "bin" / "python").unlink()
    connection = dial()

    copy.use(connection)
    wait_until(lambda: "the logs of n1 cannot be copied" in caplog.text, "a word about it")
    assert "venv/bin/python" in caplog.text and connection.is_well()

    (node / "venv" / "bin" / "python").symlink_to(sys.executable)
    say(node / "agent.log", "one\n")
    await_same(node, here, "agent.log")


def test_a_machine_that_allows_one_session_is_not_taken_for_dead(
    vm: Machine, node: Path, here: Path, copy: LogCopy, dial: Callable[[], Connection]
) -> None:
    vm.end()
    vm.options = ("MaxSessions 1",)
    vm.boot()
    say(node / "agent.log", "one\n")
    connection = dial()
    copy.use(connection)
    await_same(node, here, "agent.log")

    assert connection.is_well()


def test_a_copy_may_be_finished_in_the_instant_in_which_it_begins(
    copy: LogCopy, dial: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends a node's connection is another thread than who has just made it."""
    connection, start = dial(), threading.Thread.start

    def late(thread: threading.Thread) -> None:
        monkeypatch.undo()
        copy.finish(1.0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", late)
    copy.use(connection)
    copy.finish(20.0)

    assert "logs of n1" not in {thread.name for thread in threading.enumerate()}
