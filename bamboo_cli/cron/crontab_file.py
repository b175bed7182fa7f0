"""Our lines in the user's crontab. All others stay as they are, byte for byte.

python-crontab composes a line, but does not write the file: it loses settings behind the last entry, and fails on
``MAILTO=`` (3.4.0).
"""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from crontab import CronItem
from filelock import FileLock, Timeout

from bamboo_cli import paths
from bamboo_cli.cron import launcher
from bamboo_cli.cron.entries import START_FILE, Entry
from bamboo_cli.errors import StateError, UsageError

MARK = "bamboo-cron"
DAEMONS = ("cron", "crond", "cronie")
PATIENCE_S = 30.0
TIMEOUT_S = 30.0


def line(entry: Entry) -> str:
    """Raises UsageError where the path cannot be written in a crontab."""
    item = CronItem(command=launcher.command(entry), comment=f"{MARK} {entry.entry_id}")
    item.setall(entry.schedule)
    return str(item.render())


@dataclass(frozen=True, slots=True)
class Line:
    """One that a Bamboo has made, under this home or another."""

    entry_id: str
    start: Path

    @property
    def is_ours(self) -> bool:
        return self.start == paths.cron_dir() / self.entry_id / START_FILE

    @property
    def is_dead(self) -> bool:
        """Cron starts what is not there: its home was moved, or its folder deleted."""
        return not self.start.exists()


def lines() -> tuple[Line, ...]:
    """Raises StateError, UsageError where there is no cron."""
    return tuple(found for text in _read().splitlines() if (found := _parse(text)) is not None)


def is_current(entry: Entry) -> bool:
    """Whether it has the entry's line, schedule and all. Raises StateError, UsageError."""
    return line(entry) in _read().splitlines()


def add(entry: Entry) -> None:
    """In place of the entry's own line, if there is one. Raises StateError, UsageError."""
    ours = line(entry)
    with _alone():
        kept = [text for text in _read().splitlines(keepends=True) if not _is(text, entry.entry_id)]
        if kept and not kept[-1].endswith("\n"):
            kept[-1] += "\n"
        _write("".join((*kept, ours, "\n")))
        if ours not in _read().splitlines():
            raise StateError("the crontab was written, and does not have the new line", next_step="See `crontab -l`.")


def remove(entry_id: str, *, dead: bool = False) -> bool:
    """False: there was no line of it. ``dead``: also one of another home that leads nowhere. Raises StateError,
    UsageError."""
    with _alone():
        before = _read().splitlines(keepends=True)
        kept = [text for text in before if not _is(text, entry_id, dead=dead)]
        if len(kept) < len(before):
            _write("".join(kept))
        return len(kept) < len(before)


def daemon_runs() -> bool:
    """Whether some process looks like cron. Another container's may not be seen."""
    return any(process.info["name"] in DAEMONS for process in psutil.process_iter(["name"]))


def _is(text: str, entry_id: str, *, dead: bool = False) -> bool:
    found = _parse(text)
    return found is not None and found.entry_id == entry_id and (found.is_ours or (dead and found.is_dead))


def _parse(text: str) -> Line | None:
    """None: somebody else's, or commented out."""
    scheduled, _, entry_id = text.strip().rpartition(f" # {MARK} ")
    _, shell, start = scheduled.replace("\\%", "%").partition(" /bin/sh ")
    if not shell or scheduled.startswith("#"):
        return None
    try:
        (path,) = shlex.split(start)
    except ValueError:
        return None
    return Line(entry_id, Path(path))


@contextmanager
def _alone() -> Iterator[None]:
    paths.cron_dir().mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(paths.cron_dir() / "crontab.changed", timeout=PATIENCE_S):
            yield
    except Timeout:
        raise StateError("another command has been changing the crontab for half a minute") from None


def _read() -> str:
    done = _crontab("-l")
    if done.returncode == 0:
        return done.stdout.decode("utf-8", errors="surrogateescape")
    said = done.stderr.decode(errors="replace").strip()
    if "no crontab" in said:
        return ""
    raise StateError(f"the crontab cannot be read: {said or f'exit code {done.returncode}'}")


def _write(text: str) -> None:
    done = _crontab("-", given=text.encode("utf-8", errors="surrogateescape"))
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise StateError(f"the crontab was not changed: {said or f'exit code {done.returncode}'}")


def _crontab(*arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    program = shutil.which("crontab") or shutil.which("crontab", path="/usr/bin:/bin:/usr/sbin")
    if program is None:
        raise UsageError(
            "there is no crontab on this machine",
            next_step="Install cron (Debian: apt-get install cron), or take a timer of systemd with --systemd.",
        )
    try:
        return subprocess.run([program, *arguments], input=given, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StateError(f"{program} does not work: {error}") from error
