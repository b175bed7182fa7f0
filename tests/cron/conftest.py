"""A home for entries, a job, and a crontab that is nobody's."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from bamboo_cli.cron import crontab_file, entries, launcher
from bamboo_cli.cron.entries import Entry, Starter
from bamboo_cli.errors import BambooError
from bamboo_cli.main import app

CRONTAB = """#!/bin/sh
# As Debian's: -l prints, - takes standard input, and says so where it is refused.
file='{file}'
case "$1" in
    -l) [ -e "$file" ] || {{ echo "no crontab for $(id -un)" >&2; exit 1; }}; cat "$file" ;;
    -) cat > "$file.new"
       if grep -q '^refused' "$file.new"; then echo '"-":1: bad minute' >&2; exit 1; fi
       mv "$file.new" "$file" ;;
    *) exit 2 ;;
esac
"""
JOB: Mapping[str, Any] = {"name": "tiny", "recipe": "mlp", "steps": 10, "global_batch_size": 8, "microbatch_size": 2}
ODD = "halb 100% größer"


@dataclass(frozen=True)
class Schedule:
    """The commands over one home, in this process."""

    folder: Path
    crontab: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def job(self, **changes: Any) -> Path:
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(dict(JOB) | changes), encoding="utf-8")
        return path

    def call(self, *arguments: str | Path) -> Result:
        return CliRunner().invoke(app, ["cron", *map(str, arguments)])

    def done(self, *arguments: str | Path) -> Result:
        result = self.call(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    def refusal(self, *arguments: str | Path) -> BambooError:
        result = self.call(*arguments)
        assert isinstance(result.exception, BambooError), (result.output, result.exception)
        return result.exception

    def entry(self, **changes: Any) -> Entry:
        """As `add` writes it down, without trying it."""
        entry = Entry(
            **{
                "entry_id": "tiny",
                "schedule": "0 2 * * *",
                "starter": Starter.CRON,
                "job": str(self.folder / "job.yaml"),
                "cluster": "tiny",
            }
            | changes
        )
        entries.write(entry)
        launcher.write(entry)
        return entry

    def added(self, **changes: Any) -> Entry:
        """As `add` leaves it, without the second that trying it takes."""
        entry = self.entry(**changes)
        crontab_file.add(entry)
        return entry


@pytest.fixture
def schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    """In a folder with spaces, a percent sign and letters beyond ASCII."""
    folder = tmp_path / ODD
    tools = tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    (tools / "crontab").write_text(CRONTAB.format(file=tmp_path / "crontab"))
    (tools / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("BAMBOO_HOME", str(folder / "home"))
    return Schedule(folder=folder, crontab=tmp_path / "crontab")
