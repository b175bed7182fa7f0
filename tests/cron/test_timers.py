"""The systemd variant: units that systemd takes, from a path with spaces, a percent sign and letters beyond ASCII."""

import configparser
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bamboo_cli.cron import timers
from bamboo_cli.cron.entries import Starter
from tests.cron.conftest import Schedule

SYSTEMCTL = """#!/bin/sh
echo "$*" >> '{calls}'
[ -e '{calls}.refused' ] || exit 0
echo 'Failed to connect to bus: No medium found' >&2
exit 1
"""


@pytest.fixture
def calls(schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What systemctl, of which there is a double, was asked for."""
    found = tmp_path / "calls"
    for tool in ("systemctl", "loginctl"):
        path = tmp_path / "tools" / tool
        path.write_text(SYSTEMCTL.format(calls=found))
        path.chmod(0o755)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(schedule.folder / "config"))
    return found


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def test_a_timer_is_written_started_listed_and_removed(schedule: Schedule, calls: Path) -> None:
    result = schedule.done("add", "0 2 * * 1-5", schedule.job(), "--systemd")

    service, timer = timers.paths_of("tiny")
    assert calls.read_text().splitlines()[:2] == [
        "--user daemon-reload",
        "--user enable --now bamboo-cron-tiny.timer",
    ]
    assert unit(timer)["Timer"]["OnCalendar"] == "Mon,Tue,Wed,Thu,Fri *-*-* 02:00:00"
    assert unit(timer)["Timer"]["Persistent"] == "true"
    start = str(schedule.home / "cron" / "tiny" / "start").replace("%", "%%")
    assert unit(service)["Service"]["ExecStart"] == f'/bin/sh "{start}"'
    assert unit(service)["Service"]["SuccessExitStatus"] == "4 5"
    assert unit(service)["Service"]["KillMode"] == "process", "who kills the night leaves its run to give all back"
    assert "loginctl enable-linger" in result.stderr
    (shown,) = json.loads(schedule.done("list", "--json").stdout)
    assert (shown["starter"], shown["trouble"]) == ("systemd", [])
    assert not schedule.crontab.exists()

    schedule.done("remove", "tiny")
    assert not service.exists() and not timer.exists()
    assert "--user disable --now bamboo-cron-tiny.timer" in calls.read_text()


def test_without_a_session_of_systemd_nothing_stays(schedule: Schedule, calls: Path) -> None:
    Path(f"{calls}.refused").touch()

    error = schedule.refusal("add", "0 2 * * *", schedule.job(), "--systemd")

    assert "Failed to connect to bus" in error.message and "systemctl --user status" in error.next_step
    assert not any(path.exists() for path in timers.paths_of("tiny"))
    assert json.loads(schedule.done("list", "--json").stdout) == []


def test_a_replacement_that_systemd_refuses_leaves_the_timer_as_it_was(schedule: Schedule, calls: Path) -> None:
    schedule.done("add", "0 2 * * *", schedule.job(), "--systemd")
    before = [path.read_bytes() for path in timers.paths_of("tiny")]
    Path(f"{calls}.refused").touch()

    schedule.refusal("add", "0 3 * * *", schedule.job(), "--systemd", "--replace")

    assert [path.read_bytes() for path in timers.paths_of("tiny")] == before
    (shown,) = json.loads(schedule.done("list", "--json").stdout)
    assert (shown["schedule"], shown["trouble"]) == ("0 2 * * *", [])


def test_where_nothing_says_whether_it_lingers_it_is_said_to_need_that(
    schedule: Schedule, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (calls.parent / "tools" / "loginctl").unlink()
    monkeypatch.setenv("PATH", str(calls.parent / "tools"))

    assert timers.lingers() is False


def test_an_entry_moves_from_cron_to_systemd(schedule: Schedule, calls: Path) -> None:
    schedule.job()
    schedule.added()

    schedule.done("add", "0 3 * * *", schedule.job(), "--systemd", "--replace")

    assert schedule.crontab.read_text() == ""
    (shown,) = json.loads(schedule.done("list", "--json").stdout)
    assert (shown["starter"], shown["trouble"]) == ("systemd", [])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(schedule: Schedule, tmp_path: Path) -> None:
    schedule.job()
    entry = schedule.entry(starter=Starter.SYSTEMD, schedule="30 1 1,15 * 1")
    written = []
    for path, text in zip(timers.paths_of(entry.entry_id), timers.units(entry), strict=True):
        written.append(tmp_path / path.name)
        written[-1].write_text(text, encoding="utf-8")

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--recursive-errors=no", *map(str, written)],
        capture_output=True,
        text=True,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    assert (verified.returncode, verified.stderr) == (0, "")


def test_what_means_something_to_systemd_is_quoted() -> None:
    assert timers.quoted('/a b/100% "$HOME" \\ ü') == '"/a b/100%% \\"$$HOME\\" \\\\ ü"'
