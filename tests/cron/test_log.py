"""The log of nights: it turns, and a full disk costs lines of it and nothing else."""

import threading
from pathlib import Path

import pytest

from bamboo_cli.cron import log as log_module
from bamboo_cli.cron.log import KEPT, NightLog


def test_each_night_has_a_log_of_its_own_and_the_oldest_go(tmp_path: Path) -> None:
    for night in range(KEPT + 4):
        log = NightLog(tmp_path / "log")
        log.line(f"night {night}")
        log.close()

    assert {path.name for path in tmp_path.iterdir()} == {"log", *(f"log.{age}" for age in range(1, KEPT + 1))}
    assert (tmp_path / "log").read_text().endswith(f"night {KEPT + 3}\n")
    assert (tmp_path / f"log.{KEPT}").read_text().endswith("night 3\n")
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_a_night_that_says_very_much_turns_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_BYTES", 1000)
    log = NightLog(tmp_path / "log")
    for number in range(1000):
        log.line(f"line {number}")
    log.close()

    assert len(list(tmp_path.iterdir())) == KEPT + 1
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert log.num_lost == 0


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    log = NightLog(Path("/dev/full"))
    log.line("one")
    log.line("two")
    log.close()

    assert log.num_lost >= 2
    assert log.tail == ("one", "two")


def test_lines_of_several_threads_are_whole(tmp_path: Path) -> None:
    log = NightLog(tmp_path / "log")
    threads = [threading.Thread(target=lambda: [log.line("x" * 80) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()

    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 200 and all(line.endswith(" " + "x" * 80) for line in lines)
