"""The systemd variant: a service and a timer of the user."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from string import Template

from bamboo_cli.cron.entries import Entry
from bamboo_cli.cron.schedule import parse
from bamboo_cli.errors import StateError, UsageError

TIMEOUT_S = 60.0


def folder() -> Path:
    """Of the user's own units."""
    chosen = os.environ.get("XDG_CONFIG_HOME")
    return (Path(chosen) if chosen else Path.home() / ".config") / "systemd" / "user"


def paths_of(entry_id: str) -> tuple[Path, Path]:
    """The service and the timer."""
    return folder() / f"bamboo-cron-{entry_id}.service", folder() / f"bamboo-cron-{entry_id}.timer"


def units(entry: Entry) -> tuple[str, str]:
    """The text of the service and of the timer."""
    from bamboo_templates import CRON_SERVICE, CRON_TIMER

    schedule = parse(entry.schedule)
    service = Template(CRON_SERVICE.read_text(encoding="utf-8")).substitute(
        entry_id=entry.entry_id, start=quoted(str(entry.start))
    )
    timer = Template(CRON_TIMER.read_text(encoding="utf-8")).substitute(
        entry_id=entry.entry_id,
        words=schedule.words(),
        calendars="\n".join(calendars(entry)),
    )
    return service, timer


def calendars(entry: Entry) -> tuple[str, ...]:
    """Lines of the timer."""
    return tuple(f"OnCalendar={calendar}" for calendar in parse(entry.schedule).calendars())


def quoted(argument: str) -> str:
    """As one argument of ``ExecStart=``: systemd has specifiers (%), variables ($) and escapes of its own."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def add(entry: Entry) -> None:
    """Write them and have them started. Raises StateError, with all as it was before; UsageError without systemd."""
    if shutil.which("systemctl") is None:
        raise UsageError("there is no systemd on this machine", next_step="Without --systemd it is a line for cron.")
    paths = paths_of(entry.entry_id)
    before = [path.read_text(encoding="utf-8") if path.exists() else None for path in paths]
    try:
        folder().mkdir(parents=True, exist_ok=True)
        _write(paths, units(entry))
        _systemctl("daemon-reload")
        _systemctl("enable", "--now", paths[1].name)
    except (OSError, StateError) as error:
        _write(paths, before)
        why = error.message if isinstance(error, StateError) else str(error)
        raise StateError(
            f"the timer was not made: {why}",
            next_step="It takes a session of yours with systemd (`systemctl --user status`); cron takes none.",
        ) from error


def remove(entry_id: str) -> bool:
    """False: there was none. Raises StateError. A night that is on goes on."""
    if not any(path.exists() for path in paths_of(entry_id)):
        return False
    _systemctl("disable", "--now", paths_of(entry_id)[1].name)
    _write(paths_of(entry_id), (None, None))
    _systemctl("daemon-reload")
    return True


def is_current(entry: Entry) -> bool:
    """Whether the timer has the entry's schedule. The units may be an older Bamboo's."""
    service, timer = paths_of(entry.entry_id)
    return service.exists() and timer.exists() and set(calendars(entry)) <= set(timer.read_text("utf-8").splitlines())


def lingers() -> bool:
    """Whether timers of the user run while nobody is logged in."""
    command = ["loginctl", "show-user", str(os.getuid()), "--property=Linger"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == "Linger=yes"


def _write(paths: Iterable[Path], texts: Iterable[str | None]) -> None:
    """None: there is none. Raises OSError."""
    for path, text in zip(paths, texts, strict=True):
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(text, encoding="utf-8")


def _systemctl(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["systemctl", "--user", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StateError(f"systemctl does not work: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise StateError(f"systemctl --user {' '.join(arguments)}: {said[-1] if said else done.returncode}")
