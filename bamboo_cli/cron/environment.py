"""The environment of a night, and the job as it is read in it."""

import os
from collections.abc import Mapping
from pathlib import Path

from bamboo_cli.config import JobConfig
from bamboo_cli.cron.entries import Entry
from bamboo_cli.errors import UsageError
from bamboo_cli.job_file import load_job


def variables_of(entry: Entry) -> Mapping[str, str]:
    """Those that were named for it, besides what ``launcher`` names for all. Raises UsageError (the file)."""
    return dict(entry.environment) | (read_file(Path(entry.env_file)) if entry.env_file is not None else {})


def read_file(path: Path) -> dict[str, str]:
    """``NAME=VALUE`` lines, as other tools have them. Raises UsageError: it is not there, or others may read it."""
    from dotenv import dotenv_values

    try:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise UsageError(
                f"others than you can read {path}, which is for secrets", next_step=f"Change it: chmod 600 '{path}'"
            )
        with path.open(encoding="utf-8") as file:
            found = dotenv_values(stream=file, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return {name: value for name, value in found.items() if value is not None}


def enter(entry: Entry) -> None:
    """Its variables for this process and whatever it starts. Raises UsageError."""
    os.environ.update(variables_of(entry))


def load_job_of(entry: Entry) -> JobConfig:
    """Raises JobFileError, UsageError."""
    return load_job(Path(entry.job), entry.settings)
