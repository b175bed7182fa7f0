"""The script that cron starts: in any environment, and when what it needs has moved."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bamboo_cli.cron import launcher, nights
from bamboo_cli.cron.entries import Entry
from tests.cron.conftest import Schedule

HOSTILE = {
    "PYTHONPATH": "/nowhere",
    "PYTHONHOME": "/nowhere",
    "BAMBOO_HOME": "/nowhere",
    "BAMBOO_STEPS": "5",
    "HOME": "/nowhere",
    "LANG": "xx_XX",
    "PATH": "/nowhere",
}


def start(entry: Entry, *arguments: str, environment: Mapping[str, str] = {}) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", str(entry.start), *arguments],
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("environment", [{}, HOSTILE], ids=["env -i", "a hostile one"])
def test_a_night_has_the_environment_that_was_named_and_no_other(
    schedule: Schedule, environment: Mapping[str, str]
) -> None:
    """The job names a setting by --env; its own sentence about it shows what reached it."""
    schedule.job()
    entry = schedule.entry(environment=(("BAMBOO_STEPS", "no number"), ("BAMBOO_SEED", "1")))

    night = start(entry, environment=environment)

    assert night.returncode == 2
    assert night.stdout.startswith("tiny: FAILED (exit code 2): environment BAMBOO_STEPS: steps: ")
    assert night.stderr == ""


def test_variables_of_a_file_are_read_every_night(schedule: Schedule) -> None:
    schedule.job()
    file = schedule.folder / "keys.env"
    entry = schedule.entry(env_file=str(file))

    missing = start(entry)
    file.write_text("BAMBOO_STEPS=none\n")
    file.chmod(0o600)
    read = start(entry)

    assert missing.returncode == 2 and f"{file} cannot be read" in missing.stdout
    assert read.returncode == 2 and "environment BAMBOO_STEPS" in read.stdout


def test_a_bamboo_that_has_moved_is_told_and_notified(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    told = schedule.folder / "told"
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", str(schedule.folder / "gone" / "python"))
        entry = schedule.entry(notify=(f"cat > '{told}'; echo $BAMBOO_CRON_STATE >> '{told}'", "https://127.0.0.1:1/"))

    night = start(entry)

    assert night.returncode == 127
    assert night.stdout.startswith("tiny: FAILED: there is no Bamboo any more for ")
    assert "gone/python" in night.stdout
    assert told.read_text().startswith("tiny: FAILED: there is no Bamboo") and told.read_text().endswith("failed\n")


def test_a_python_without_bamboo_is_told_too(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = schedule.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", str(bare / "bin" / "python"))
        entry = schedule.entry()

    night = start(entry)

    assert night.returncode == 127 and "bare/bin/python" in night.stdout


def test_a_job_that_has_moved_is_told_and_notified_and_rents_nothing(schedule: Schedule) -> None:
    told = schedule.folder / "told"
    entry = schedule.entry(job=str(schedule.folder / "moved.yaml"), notify=(f"cat > '{told}'",))

    night = start(entry)

    assert night.returncode == 2
    assert "moved.yaml: there is no such file" in night.stdout
    assert told.read_text().startswith("tiny: FAILED (exit code 2): ")
    found = nights.read(entry.folder)
    assert found is not None and found.state == "failed" and found.exit_code == 2
    assert not (schedule.home / "clusters").exists()


def test_what_the_script_needs_beside_a_shell_is_in_no_environment(schedule: Schedule) -> None:
    """Variables of the entry are not in the list of processes, which anybody may read."""
    entry = schedule.entry(environment=(("TOKEN", "secret"),), notify=("https://hooks.example.org/secret",))

    script = launcher.script(entry)

    assert "secret" not in script
    assert f"BAMBOO_HOME={schedule.home}" in script
    assert os.path.isabs(sys.executable) and sys.executable in script


def test_what_prints_nothing_prints_nothing(schedule: Schedule) -> None:
    """`--quiet`: a night with nothing to do is silent, one that fails is not."""
    schedule.job(steps="none")
    entry = schedule.entry(quiet=True)

    assert "FAILED" in start(entry).stdout


@pytest.fixture
def moved(schedule: Schedule, tmp_path: Path) -> Entry:
    entry = schedule.added()
    schedule.home.rename(tmp_path / "moved")
    return entry


def test_a_home_that_has_moved_is_told_by_the_shell(moved: Entry) -> None:
    night = start(moved)

    assert night.returncode != 0 and str(moved.start) in night.stderr
