"""What `make` would do on a fresh machine, and in which order: nothing is installed that is not needed, or twice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.messages import ROOT

TRAIN, ALL = '".[train]"', '".[train,aws,docs,dev]"'


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def installed(folder: Path, *goals: str) -> list[str]:
    """What `make` would install for these goals, one after the other; it is taken to be there from then on. That these
    tests are run by a `make` of their own is nothing to it."""
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        ["make", "-n", *goals], cwd=folder, env=outside, capture_output=True, text=True, check=True, timeout=20
    )
    lines = done.stdout.splitlines()
    for stamp in (line.removeprefix("touch ") for line in lines if line.startswith("touch ")):
        (folder / stamp).touch()
    return [line.rpartition(" ")[2] for line in lines if "install" in line]


def test_the_demo_installs_what_training_needs_and_the_tests_the_rest(fresh: Path) -> None:
    first, second = installed(fresh, "demo"), installed(fresh, "test")

    assert (first[1:], second) == ([TRAIN], [ALL])
    assert first[0].startswith('"torch==')
    assert installed(fresh, "demo") == installed(fresh, "test") == []


def test_after_the_tests_the_demo_installs_nothing(fresh: Path) -> None:
    assert installed(fresh, "test")[1:] == [TRAIN, ALL]
    assert installed(fresh, "demo") == []


def test_all_is_installed_again_when_what_is_needed_has_changed(fresh: Path) -> None:
    installed(fresh, "test")
    newer = (fresh / ".venv" / ".ready").stat().st_mtime + 10
    os.utime(fresh / "pyproject.toml", (newer, newer))

    assert installed(fresh, "test")[1:] == [TRAIN, ALL]
