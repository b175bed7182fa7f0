"""Logs: put together in the order of time, searched, and followed through all that happens to files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo_cli import log_files
from bamboo_cli.errors import UsageError
from bamboo_cli.log_files import LogFile


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)
    return path


def cluster(home: Path) -> tuple[Callable[..., tuple[LogFile, ...]], Path]:
    folder = home / "clusters" / "c"
    write(folder / "coordinator.log", "2026-01-01 10:00:00,500 INFO step 3 is under way\n")
    write(folder / "nodes" / "n2.log", "unpacking\n")
    write(home / "local-cloud" / "instances" / "i-1" / "agent.log", "2026-01-01 10:00:00,100 INFO worker started\n")
    write(
        home / "local-cloud" / "instances" / "i-1" / "worker.log",
        "--- worker n1/1\n2026-01-01 10:00:00,300 E the device failed\nTraceback (most recent call last):\n  boom\n"
        "2026-01-01 10:00:00,900 I begins again\n",
    )
    write(home / "local-cloud" / "instances" / "i-1" / "worker-1.log", "2026-01-01 10:00:00,200 I hello\n")
    return lambda *nodes: log_files.log_files({"n1": "i-1", "n2": None}, folder, nodes), folder


def test_every_process_of_every_node_is_there(home: Path) -> None:
    files, _ = cluster(home)

    assert [f.source for f in files()] == ["coordinator", "n1 agent", "n1 worker", "n1 worker-1", "n2 setup"]
    assert [f.source for f in files("n2")] == ["n2 setup"]
    with pytest.raises(UsageError, match="there is no node n7"):
        files("n1", "n7")


def test_lines_are_in_the_order_of_time_and_a_traceback_stays_with_its_line(home: Path) -> None:
    files, _ = cluster(home)

    shown = list(log_files.last_lines(files(), 20))

    assert [source for source, _ in shown] == [
        *("n1 worker", "n2 setup", "n1 agent", "n1 worker-1", "n1 worker", "n1 worker", "n1 worker"),
        *("coordinator", "n1 worker"),
    ]
    assert [text for source, text in shown if source == "n1 worker"][1:4] == [
        "2026-01-01 10:00:00,300 E the device failed",
        "Traceback (most recent call last):",
        "  boom",
    ]


def test_a_search_counts_only_what_it_finds(home: Path) -> None:
    files, _ = cluster(home)

    def found(pattern: str, count: int = 20) -> list[str]:
        return [text for _, text in log_files.last_lines(files(), count, log_files.search(pattern))]

    assert found("traceback|BOOM") == [], "a capital letter asks for capitals"
    assert found("traceback|boom") == ["Traceback (most recent call last):", "  boom"]
    assert found("traceback|boom", 1) == ["  boom"]
    assert found("10:00", 0) == []
    with pytest.raises(UsageError, match="is no regular expression"):
        log_files.search("(")


def test_copies_of_what_a_machine_said_that_is_gone_are_there(home: Path) -> None:
    files, folder = cluster(home)
    write(folder / "nodes" / "n2" / "worker.log", "2026-01-01 10:00:00,950 I the last word\n")
    write(folder / "nodes" / "n2" / "worker.log.1", "2026-01-01 10:00:00,940 I the last but one\n")
    write(folder / "nodes" / "n2" / "positions.json", "{}")

    assert [f.source for f in files("n2")] == ["n2 setup", "n2 worker"]
    assert [text[24:] for _, text in log_files.last_lines(files("n2")[1:], 1)] == ["I the last word"]
    assert [text[24:] for _, text in log_files.last_lines(files("n2")[1:], 9)] == [
        *("I the last but one", "I the last word")
    ], "of one that was set aside as many as are lacking"


def test_following_reads_new_files_begun_ones_and_none_that_are_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause of the follower is somebody's turn to write."""
    files, folder = cluster(home)
    instances = home / "local-cloud" / "instances"
    turns = [
        lambda: write(folder / "coordinator.log", "one\nhalf a li"),
        lambda: write(folder / "coordinator.log", "ne\n"),
        lambda: write(instances / "i-1" / "worker-2.log", "of a new worker\n"),
        lambda: (instances / "i-1" / "worker.log").write_text("begun anew\n"),
        lambda: (instances / "i-1" / "agent.log").unlink(),
        lambda: (write(folder / "coordinator.log", "long\nvery lo"), set_aside(folder / "coordinator.log")),
        lambda: write(folder / "coordinator.log", "the end\n"),
    ]

    def set_aside(path: Path) -> None:
        path.replace(path.with_name(f"{path.name}.1"))
        write(path, "short\n")

    def turn(_: float) -> None:
        if not turns:
            raise KeyboardInterrupt
        turns.pop(0)()

    monkeypatch.setattr(log_files, "NEW_FILES_S", -1.0)
    monkeypatch.setattr(log_files.time, "sleep", turn)
    said: list[tuple[str, str]] = []
    with pytest.raises(KeyboardInterrupt):
        log_files.follow(files, lambda source, text: said.append((source, text)))

    assert said == [
        ("coordinator", "one"),
        ("coordinator", "half a line"),
        ("n1 worker-2", "of a new worker"),
        ("n1 worker", "begun anew"),
        ("coordinator", "long"),
        ("coordinator", "very lo"),
        ("coordinator", "short"),
        ("coordinator", "the end"),
    ]


@pytest.mark.parametrize("pattern", ["a{4294967296}", "(" * 5000, "(?P<x>a)(?P<x>b)", "x" + "\\"])
def test_what_is_no_pattern_is_told_whatever_is_wrong_with_it(pattern: str) -> None:
    with pytest.raises(UsageError, match="is no regular expression"):
        log_files.search(pattern)


def test_only_letters_that_are_looked_for_can_be_capitals() -> None:
    assert log_files.search(r"\S+ error:\D").search("an ERROR: x")
    assert not log_files.search(r"\S+ Error").search("an error")
    assert log_files.search("[[a]").search("A")  # of which Python would warn


def test_rubbish_says_nothing_to_the_terminal_and_ends_no_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, folder = cluster(home)
    rubbish = b"\x1b[1;31merror\x1b[0m \x1b]0;title\x07\x00\xff\xe2\x80\xa8 \x9b2J\x0c\tend\n"
    shown = "error \ufffd\ufffd\u2028 \ufffd2J\ufffd\tend"
    log = folder / "coordinator.log"
    log.write_bytes(rubbish)

    def write_once(_: float) -> None:
        if log.stat().st_size > len(rubbish):
            raise KeyboardInterrupt
        with log.open("ab") as stream:
            stream.write(rubbish)

    assert [text for _, text in log_files.last_lines(files()[:1], 5)] == [shown]
    assert [text for _, text in log_files.last_lines(files()[:1], 5, log_files.search("^error"))] == [shown]
    said: list[str] = []
    monkeypatch.setattr(log_files.time, "sleep", write_once)
    with pytest.raises(KeyboardInterrupt):
        log_files.follow(lambda: files()[:1], lambda _, text: said.append(text), log_files.search("^error"))
    assert said == [shown]


def test_files_that_go_before_they_are_read_are_no_bug(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, folder = cluster(home)
    known = files()
    (folder / "coordinator.log").unlink()

    assert {source for source, _ in log_files.last_lines(known, 5)} == {
        "n1 agent",
        "n1 worker",
        "n1 worker-1",
        "n2 setup",
    }

    def leave(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log_files.time, "sleep", leave)
    with pytest.raises(KeyboardInterrupt):
        log_files.follow(lambda: known, lambda *_: None)
