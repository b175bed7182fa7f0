"""`bamboo cron add`, `list` and `remove`: what would fail at night is refused by day."""

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from bamboo_cli.cron import adding, crontab_file, entries, lock
from bamboo_cli.cron.entries import Entry
from tests.cron.conftest import ODD, Schedule

OTHERS = """MAILTO=
# my own
  0   5 * * *  /usr/bin/mine --date=$(date +\\%F) # a comment

@reboot caf\xe9 %stdin%two
PATH=/behind/the/last
"""


@pytest.fixture
def crontab_of_others(schedule: Schedule) -> bytes:
    schedule.crontab.write_bytes(found := OTHERS.encode("latin-1"))
    return found


def test_an_entry_is_one_line_and_the_lines_of_others_stay_byte_for_byte(
    schedule: Schedule, crontab_of_others: bytes
) -> None:
    schedule.done("add", "0 2 * * 1-5", schedule.job())

    start = schedule.home / "cron" / "tiny" / "start"
    line = f"0 2 * * 1-5 /bin/sh '{start}' # bamboo-cron tiny\n".replace("%", "\\%")
    assert ODD in str(start)
    assert schedule.crontab.read_bytes() == crontab_of_others + line.encode()
    schedule.done("remove", "tiny")
    assert schedule.crontab.read_bytes() == crontab_of_others
    assert not (schedule.home / "cron" / "tiny").exists()


def test_the_list_says_when_next_how_the_last_went_and_where_the_log_is(schedule: Schedule) -> None:
    schedule.job()
    schedule.added(entry_id="nightly")

    (shown,) = json.loads(schedule.done("list", "--json").stdout)
    text = schedule.done("list").stdout

    assert (shown["id"], shown["words"], shown["starter"]) == ("nightly", "At 02:00 every day", "cron")
    assert shown["log"] == str(schedule.home / "cron" / "nightly" / "log") and shown["log"] in text
    assert (shown["last"], shown["trouble"]) == (None, [])
    assert "no night yet" in text and "At 02:00 every day (0 2 * * *, cron)" in text


def test_a_user_without_a_name_is_refused_and_nothing_is_left(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that was started with a bare number."""
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)

    refused = schedule.refusal("add", "0 2 * * *", schedule.job())

    assert "user 3999999999 has no name on this machine" in refused.message and refused.exit_code == 2
    assert not (schedule.home / "cron" / "tiny").exists() and not schedule.crontab.exists()


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the clock is put forward and back."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def test_next_is_at_that_hour_on_either_side_of_a_change_of_the_clock(schedule: Schedule, berlin: None) -> None:
    for month in (1, 7):
        schedule.added(entry_id=f"month-{month}", schedule=f"0 4 1 {month} *")

    shown = json.loads(schedule.done("list", "--json").stdout)

    nexts = [datetime.fromtimestamp(entry["next_at"]) for entry in shown]
    assert [(at.month, at.day, at.hour, at.minute) for at in nexts] == [(1, 1, 4, 0), (7, 1, 4, 0)]


def test_what_is_stored_is_readable_by_its_owner_alone(schedule: Schedule) -> None:
    schedule.done("add", "0 2 * * *", schedule.job(), "--env", "TOKEN=secret")

    folder = schedule.home / "cron" / "tiny"
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "entry.json": 0o600,
        "start": 0o700,
    }
    assert "secret" not in (folder / "start").read_text()


def test_an_entry_is_added_once_and_replaced_when_asked(schedule: Schedule) -> None:
    schedule.job()
    schedule.added()

    twice = schedule.refusal("add", "0 3 * * *", schedule.job())
    schedule.done("add", "0 4 * * *", schedule.job(), "--replace")

    assert "there is an entry tiny already" in twice.message and "--replace" in twice.next_step
    (line,) = schedule.crontab.read_text().splitlines()
    assert line.startswith("0 4 * * * ")


def test_of_two_that_add_a_job_at_once_the_second_waits_for_the_first(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile: list[str] = []

    def tried(_: Entry) -> None:
        if not meanwhile:
            meanwhile.append("")  # what is asked for now is not asked while that is tried
            meanwhile[0] = schedule.refusal("add", "0 3 * * *", schedule.job()).message
            meanwhile.append(schedule.refusal("remove", "tiny").message)

    monkeypatch.setattr(entries, "PATIENCE_S", 0.01)
    monkeypatch.setattr(adding, "_try", tried)
    schedule.done("add", "0 2 * * *", schedule.job())

    assert len(meanwhile) == 2 and all("another command has been adding or removing" in said for said in meanwhile)
    (line,) = schedule.crontab.read_text().splitlines()
    assert line.startswith("0 2 * * * ") and entries.read("tiny").schedule == "0 2 * * *"


@pytest.mark.parametrize("command", [("add", "0 2 * * *"), ("remove",)])
def test_a_home_that_cannot_be_written_is_told(schedule: Schedule, command: tuple[str, ...]) -> None:
    schedule.home.mkdir(exist_ok=True)
    (schedule.home / "cron").write_text("no folder")

    assert "the entry cannot be kept in" in schedule.refusal(*command, schedule.job()).message


def test_a_replacement_that_is_broken_off_leaves_the_entry_as_it_was(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule.job()
    before = schedule.added()

    def broken_off(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(crontab_file, "add", broken_off)
    schedule.call("add", "0 4 * * *", schedule.job(), "--replace", "--anew")

    assert entries.read("tiny") == before


def test_a_replacement_that_was_killed_before_cron_knew_is_shown(schedule: Schedule) -> None:
    schedule.job()
    schedule.added()
    schedule.entry(schedule="0 4 * * *")

    (shown,) = json.loads(schedule.done("list", "--json").stdout)

    assert "cron does not know it" in shown["trouble"][0] and "--replace" in shown["trouble"][0]


def test_an_add_that_was_killed_before_cron_knew_is_done_again(schedule: Schedule) -> None:
    schedule.job()
    schedule.entry()
    (shown,) = json.loads(schedule.done("list", "--json").stdout)
    assert "cron does not know it" in shown["trouble"][0]

    schedule.done("add", "0 2 * * *", schedule.job())

    assert json.loads(schedule.done("list", "--json").stdout)[0]["trouble"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"steps": 0}, "steps"), ({"checkpoint": {"url": "/proc/nowhere"}}, "checkpoint.url"), ({"stages": 0}, "stages")],
)
def test_a_job_that_could_not_be_trained_is_refused_and_nothing_stays(
    schedule: Schedule, changes: dict[str, object], said: str
) -> None:
    error = schedule.refusal("add", "0 2 * * *", schedule.job(**changes))

    assert said in error.message and error.exit_code == 2
    assert not schedule.crontab.exists()
    assert json.loads(schedule.done("list", "--json").stdout) == []


def test_settings_are_those_of_the_night_and_not_of_the_shell(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is read without this shell's BAMBOO_… variables, which are named as left behind."""
    monkeypatch.setenv("BAMBOO_STEPS", "not a number")

    result = schedule.done("add", "0 2 * * *", schedule.job())

    (told,) = [line for line in result.stderr.splitlines() if "which nights will not have" in line]
    assert "BAMBOO_STEPS" in told


def test_a_crontab_that_cron_refuses_is_told_and_nothing_stays(schedule: Schedule) -> None:
    schedule.crontab.write_text("refused\n")

    error = schedule.refusal("add", "0 2 * * *", schedule.job())

    assert "the crontab was not changed" in error.message and "bad minute" in error.message
    assert schedule.crontab.read_text() == "refused\n"
    assert not (schedule.home / "cron" / "tiny").exists()


def test_without_cron_it_says_what_to_do(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)

    error = schedule.refusal("add", "0 2 * * *", schedule.job())

    assert "there is no crontab" in error.message
    assert "apt-get install cron" in error.next_step and "--systemd" in error.next_step


def test_an_entry_is_removed_by_its_job_too_and_a_lost_one_by_its_id(schedule: Schedule) -> None:
    job = schedule.job()
    for entry_id in ("one", "two"):
        schedule.added(entry_id=entry_id)
    schedule.added(entry_id="three", job="/elsewhere/job.yaml")
    for path in (schedule.home / "cron" / "three").iterdir():
        path.unlink()
    shown = {entry["id"]: entry["trouble"] for entry in json.loads(schedule.done("list", "--json").stdout)}
    assert (shown["one"], shown["two"]) == ([], []) and "which is gone" in shown["three"][0]

    schedule.done("remove", job)
    schedule.done("remove", "three")

    assert schedule.crontab.read_text() == ""
    assert "there is no entry three" in schedule.refusal("remove", "three").message


def test_who_removes_an_entry_whose_night_is_on_is_told(schedule: Schedule) -> None:
    schedule.job()
    schedule.added()
    with lock.held("tiny"):
        result = schedule.done("remove", "tiny")

    assert "a night of it is still on" in result.stderr
    assert json.loads(schedule.done("list", "--json").stdout) == []


def test_another_homes_entry_of_the_same_name_is_left_alone(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule.added()
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "elsewhere"))
    schedule.added(schedule="0 3 * * *")
    schedule.done("remove", "tiny")

    (line,) = schedule.crontab.read_text().splitlines()
    assert line.startswith("0 2 * * * ")


def test_lines_that_lead_nowhere_since_the_home_has_moved_are_shown_and_removed(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule.job()
    schedule.added()
    schedule.home.rename(tmp_path / "moved")
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "moved"))

    entry, line = json.loads(schedule.done("list", "--json").stdout)
    assert "cron does not know it" in entry["trouble"][0]
    assert str(schedule.home) in line["trouble"][0] and "bamboo cron remove tiny" in line["trouble"][0]

    schedule.done("remove", "tiny")
    assert schedule.crontab.read_text() == ""


def test_a_path_that_no_crontab_can_hold_is_refused(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "BAMBOO_HOME", str(schedule.folder / ("long" * 60) / ("long" * 60) / ("long" * 60) / ("x" * 230))
    )
    assert "too long for a crontab" in schedule.refusal("add", "0 2 * * *", schedule.job()).message

    monkeypatch.setenv("BAMBOO_HOME", str(schedule.folder / "back\\slash"))
    assert "a character that a crontab cannot hold" in schedule.refusal("add", "0 2 * * *", schedule.job()).message


def test_a_variable_that_is_not_there_is_refused(schedule: Schedule) -> None:
    assert "NOT_THERE" not in os.environ
    assert "no such variable" in schedule.refusal("add", "@daily", schedule.job(), "--env", "NOT_THERE").message
