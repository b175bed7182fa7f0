"""Jobs on a schedule as they are stored: ``<home>/cron/<id>/``."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from filelock import FileLock, Timeout

from bamboo_cli import paths
from bamboo_cli.errors import StateError, UsageError

ENTRY_FILE = "entry.json"
START_FILE = "start"
NIGHT_FILE = "last.json"
LOG_FILE = "log"
PATIENCE_S = 60.0
"""To try an entry takes seconds."""


class Starter(StrEnum):
    CRON = "cron"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    entry_id: str
    schedule: str
    """Five fields."""
    starter: Starter
    job: str
    """Absolute path of the job file."""
    cluster: str
    settings: tuple[str, ...] = ()
    """``key=value``, over the job file."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables by name and value, as they were when the entry was added."""
    env_file: str | None = None
    """Read every night."""
    notify: tuple[str, ...] = ()
    """Commands and web addresses."""
    anew: bool = False
    """Every night begins at step 0."""
    quiet: bool = False
    """Nothing is printed by a night that did not fail."""

    @property
    def folder(self) -> Path:
        return folder_of(self.entry_id)

    @property
    def start(self) -> Path:
        return self.folder / START_FILE

    @property
    def log(self) -> Path:
        return self.folder / LOG_FILE


def folder_of(entry_id: str) -> Path:
    """Raises UsageError on what cannot be an id."""
    if not re.fullmatch(paths.NAME_PATTERN, entry_id):
        raise UsageError(f"{entry_id!r} cannot be the id of an entry", next_step=f"Use {paths.NAME_WORDS}.")
    return paths.cron_dir() / entry_id


@contextmanager
def changing() -> Iterator[None]:
    """One command at a time adds or removes entries. Raises StateError."""
    folder = paths.cron_dir()
    lock = FileLock(folder / "entries.changed", timeout=PATIENCE_S)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise StateError(
            f"another command has been adding or removing jobs for {PATIENCE_S:.0f} s", next_step="Try again."
        ) from None
    except OSError as error:
        raise StateError(f"the entry cannot be kept in {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def write(entry: Entry) -> None:
    """Readable by its owner alone: addresses to notify and variables may be secret. Raises StateError."""
    try:
        entry.folder.mkdir(parents=True, exist_ok=True)
        write_private(entry.folder / ENTRY_FILE, json.dumps(asdict(entry), indent=2, ensure_ascii=False))
    except OSError as error:
        raise StateError(f"the entry cannot be kept in {entry.folder}: {error}") from error


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """In one piece. Raises OSError."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(path)


def read(entry_id: str) -> Entry:
    """Raises StateError when there is none, or it cannot be read."""
    path = folder_of(entry_id) / ENTRY_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Entry(
            **stored
            | {
                "starter": Starter(stored["starter"]),
                "settings": tuple(stored["settings"]),
                "environment": tuple((name, value) for name, value in stored["environment"]),
                "notify": tuple(stored["notify"]),
            }
        )
    except FileNotFoundError:
        known = ", ".join(ids())
        raise StateError(
            f"there is no entry {entry_id} in {paths.cron_dir()}",
            next_step=f"There are: {known}." if known else 'Add one with `bamboo cron add "0 2 * * *" JOB`.',
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StateError(
            f"{path} cannot be read: {error}",
            next_step=f"Remove the entry with `bamboo cron remove {entry_id}`, and add it again.",
        ) from error


def ids() -> tuple[str, ...]:
    """In alphabetical order; those that cannot be read, too."""
    return tuple(sorted(path.parent.name for path in paths.cron_dir().glob(f"*/{ENTRY_FILE}")))


def forget(entry_id: str) -> None:
    """Its logs too. One that is not there is forgotten already."""
    shutil.rmtree(folder_of(entry_id), ignore_errors=True)
