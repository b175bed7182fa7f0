"""What of a node's logs is sent next, by what was sent and what is there."""

import json
import os
from pathlib import Path

import pytest
from bamboo_agent import log_sender
from bamboo_agent.log_sender import KEPT_BYTES, LAG_BYTES, Piece, Place, missing, send_new


def test_a_log_is_sent_from_where_it_was_sent_to() -> None:
    there = {"agent.log": Place(1, 70), "worker.log": Place(2, 30), "worker-1.log": Place(3, 10)}

    assert missing({}, there) == [
        ("agent.log", Piece("agent.log", 1, 0, 70)),
        ("worker-1.log", Piece("worker-1.log", 3, 0, 10)),
        ("worker.log", Piece("worker.log", 2, 0, 30)),
    ]
    assert missing({"agent.log": Place(1, 50), "worker.log": Place(2, 30), "worker-1.log": Place(3, 10)}, there) == [
        ("agent.log", Piece("agent.log", 1, 50, 20))
    ]


def test_a_log_that_was_set_aside_is_sent_to_its_end_before_the_one_that_replaces_it() -> None:
    there = {"worker.log": Place(2, 5), "worker.log.1": Place(1, 100)}

    assert missing({"worker.log": Place(1, 90)}, there) == [("worker.log.1", Piece("worker.log", 1, 90, 10))]
    assert missing({"worker.log": Place(1, 100)}, there) == [("worker.log", Piece("worker.log", 2, 0, 5))]
    assert missing({}, there) == [("worker.log.1", Piece("worker.log", 1, 0, 100))], "nothing was sent before it"
    assert missing({"worker.log": Place(2, 5)}, there) == []
    assert missing({"worker.log": Place(7, 40)}, there) == [("worker.log", Piece("worker.log", 2, 0, 5))]


def test_a_log_that_was_cut_is_sent_from_its_beginning() -> None:
    assert missing({"agent.log": Place(1, 50)}, {"agent.log": Place(1, 8)}) == [
        ("agent.log", Piece("agent.log", 1, 0, 8))
    ]


def test_what_lags_too_far_behind_is_not_caught_up_with() -> None:
    def begin(size: int) -> int:
        return missing({"agent.log": Place(1, 10)}, {"agent.log": Place(1, size)})[0][1].begin

    assert begin(10 + LAG_BYTES) == 10
    assert begin(11 + LAG_BYTES) == 11 + LAG_BYTES - KEPT_BYTES


def test_nothing_but_logs_is_sent() -> None:
    others = (
        "config.json",
        "agent.log.1",
        "my-worker.log",
        "worker-.log",
        "worker.log.2",
        "worker-1234.log",
        "a/agent.log",
    )

    assert missing({}, {name: Place(1, 9) for name in others}) == []


def test_a_long_log_holds_up_no_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log_sender, "ROUND_BYTES", 2000)
    Path("agent.log").write_bytes(b"a" * 5000)
    Path("worker.log").write_bytes(b"w" * 10)
    sink = os.open(tmp_path / "sent", os.O_CREAT | os.O_WRONLY)
    known: dict[str, Place] = {}

    assert send_new(known, sink)
    os.close(sink)

    assert {name: at.num_bytes for name, at in known.items()} == {"agent.log": 1000, "worker.log": 10}
    header, _, content = (tmp_path / "sent").read_bytes().partition(b"\n")
    assert json.loads(header) == ["agent.log", Path("agent.log").stat().st_ino, 0, 1000]
    assert content.startswith(b"a" * 1000 + b"[")
