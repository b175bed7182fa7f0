"""The script that cron starts, and starting it as cron would: without an environment, apart from any terminal."""

import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from bamboo_cli import paths
from bamboo_cli.cron.entries import Entry, write_private
from bamboo_cli.cron.notifying import is_address
from bamboo_cli.errors import StateError, UsageError

CRON_PATH = "/usr/bin:/bin"
NIGHT_PATH = "/usr/local/bin:/usr/bin:/bin"
MAX_COMMAND_BYTES = 900
"""Debian's cron takes 998."""


def write(entry: Entry) -> None:
    """Raises StateError, UsageError."""
    try:
        write_private(entry.start, script(entry), mode=0o700)
    except OSError as error:
        raise StateError(f"{entry.start} cannot be written: {error}") from error


def script(entry: Entry) -> str:
    from bamboo_templates import CRON_START

    commands = [notified for notified in entry.notify if not is_address(notified)]
    notify = [f'echo "$BAMBOO_CRON_SUMMARY" | /bin/sh -c {shlex.quote(command)}' for command in commands]
    return Template(CRON_START.read_text(encoding="utf-8")).substitute(
        entry_id=entry.entry_id,
        python=shlex.quote(os.path.abspath(sys.executable)),  # not resolved: that of a virtual environment is a link
        log=shlex.quote(str(entry.log)),
        notify="\n    ".join(notify or [":"]),
        environment=" ".join(shlex.quote(f"{name}={value}") for name, value in _named(entry).items()),
    )


def _named(entry: Entry) -> Mapping[str, str]:
    """Anybody may see them in the list of processes. The entry's own variables are read from its file."""
    user = _user()
    return {
        "HOME": os.environ.get("HOME") or user.pw_dir,
        "LOGNAME": user.pw_name,
        "USER": user.pw_name,
        "SHELL": "/bin/sh",
        "PATH": NIGHT_PATH,
        "LANG": "C.UTF-8",
        "BAMBOO_HOME": str(paths.home()),
    }


def _user() -> pwd.struct_passwd:
    """Raises UsageError."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:  # a container's, say, that was started with a bare number
        raise UsageError(
            f"user {os.getuid()} has no name on this machine, and nights are started only for users that have one",
            next_step="Add the user (useradd), or schedule it as another user or outside of this container.",
        ) from None


def command(entry: Entry) -> str:
    """What cron gives to its shell. Raises UsageError where the path cannot be written in a crontab."""
    path = str(entry.start)
    found = f"/bin/sh {shlex.quote(path)}"
    if len(found.encode()) > MAX_COMMAND_BYTES:
        raise UsageError(f"{path} is too long for a crontab", next_step="Choose a BAMBOO_HOME with a shorter path.")
    if "\\" in path or not path.isprintable():
        raise UsageError(
            f"{path!r} has a character that a crontab cannot hold", next_step="Choose another BAMBOO_HOME."
        )
    return found


def begin(entry: Entry, arguments: Sequence[str] = (), *, captured: bool = False) -> "subprocess.Popen[str]":
    """Start it as cron does. ``captured``: standard output and error are one pipe; else they are ours."""
    user = _user()
    return subprocess.Popen(
        ["/bin/sh", str(entry.start), *arguments],
        env={"HOME": user.pw_dir, "LOGNAME": user.pw_name, "SHELL": "/bin/sh", "PATH": CRON_PATH},
        cwd=user.pw_dir if Path(user.pw_dir).is_dir() else "/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.STDOUT if captured else None,
        start_new_session=True,
        text=True,
        errors="replace",
    )
