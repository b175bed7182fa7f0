"""Putting a job on a schedule: whatever would fail at night is refused now."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from bamboo_cli import output
from bamboo_cli.config import JobConfig
from bamboo_cli.cron import crontab_file, entries, environment, launcher, lock, needs, timers
from bamboo_cli.cron.entries import Entry, Starter
from bamboo_cli.errors import StateError, UsageError

CHECK = "--check"
MAILER = "sendmail"


def add(entry: Entry, job: JobConfig, *, replaced: bool) -> None:
    """Write it down, try it as cron would start it, and have it started from now on.

    Raises UsageError (exists, credentials, cannot be started), StateError; nothing is left of it then.
    """
    taken = environment.variables_of(entry)
    needs.check(job, os.environ, taken, dict(entry.environment))
    with entries.changing():
        _add(entry, replaced=replaced)


def _add(entry: Entry, *, replaced: bool) -> None:
    before = _known(entry.entry_id)
    if before is not None and not replaced:
        raise UsageError(
            f"there is an entry {entry.entry_id} already ({before.schedule}, {before.job})",
            next_step="Replace it with --replace, or give this one another --id.",
        )
    if before is not None and lock.is_held(before.cluster):
        raise StateError(f"a night of cluster {before.cluster} is on", next_step="Try again when it has ended.")
    launcher.command(entry)  # refuses paths that no crontab can hold
    try:
        entries.write(entry)
        launcher.write(entry)
        _try(entry)
        _start(entry)
    except BaseException:  # Ctrl-C too: it takes a while to be tried
        if before is None:
            entries.forget(entry.entry_id)
        else:
            entries.write(before)
            launcher.write(before)
        raise
    if before is not None and before.starter is not entry.starter:
        stop(before)


def stop(entry: Entry) -> bool:
    """It is started no more; a night that is on goes on. False: it was not. Raises StateError, UsageError."""
    return timers.remove(entry.entry_id) if entry.starter is Starter.SYSTEMD else crontab_file.remove(entry.entry_id)


def is_started(entry: Entry) -> bool:
    """Whether cron, or systemd, knows of it, be it with another schedule. Raises StateError, UsageError."""
    if entry.starter is Starter.SYSTEMD:
        return all(path.exists() for path in timers.paths_of(entry.entry_id))
    return any(line.is_ours and line.entry_id == entry.entry_id for line in crontab_file.lines())


def is_current(entry: Entry) -> bool:
    """Whether it is started when the entry says. Raises StateError, UsageError."""
    return timers.is_current(entry) if entry.starter is Starter.SYSTEMD else crontab_file.is_current(entry)


def advice(entry: Entry, job: JobConfig) -> Iterator[str]:
    """What may be missed later."""
    if entry.starter is Starter.CRON and not crontab_file.daemon_runs():
        yield "no cron daemon is seen to run here; without one nothing will be started"
    if entry.starter is Starter.SYSTEMD and not timers.lingers():
        yield "the timer runs only while you are logged in; `loginctl enable-linger` lets it run always"
    behind = needs.left_behind(os.environ, environment.variables_of(entry))
    if behind:
        yield f"this shell has {', '.join(behind)}, which nights will not have; --env NAME takes one along"
    has_mail = shutil.which(MAILER, path=f"{launcher.CRON_PATH}:/usr/sbin:/usr/lib") is not None
    if not entry.notify and (entry.starter is Starter.SYSTEMD or not has_mail):
        yield "nobody will be told when a night fails: there is no --notify, and no mail from here"
    if job.cloud != "local" and not any((job.max_cost_usd, job.max_hours, job.deadline)):
        yield "nothing limits what a night costs; max_hours or max_cost_usd would (--set max_hours=5)"


def variables(wanted: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Of ``NAME`` (the value of now) and ``NAME=VALUE``. Raises UsageError."""
    found = {}
    for word in wanted:
        name, sign, value = word.partition("=")
        if not name.isidentifier():
            raise UsageError(f"--env {name}: this is no name of a variable", next_step="Write NAME, or NAME=VALUE.")
        if not sign and name not in os.environ:
            raise UsageError(f"--env {name}: this shell has no such variable", next_step=f"Write --env {name}=VALUE.")
        found[name] = value if sign else os.environ[name]
    return tuple(found.items())


def absolute(path: Path) -> str:
    """With links as they are: one that is moved on leads to the new one at night."""
    return os.path.abspath(path.expanduser())


def _known(entry_id: str) -> Entry | None:
    """None: there is none, or the command that wanted to add it was killed before cron knew of it."""
    if entry_id not in entries.ids():
        return None
    entry = entries.read(entry_id)
    return entry if is_started(entry) else None


def _try(entry: Entry) -> None:
    """Raises UsageError."""
    with launcher.begin(entry, [CHECK], captured=True) as process:
        said, _ = process.communicate()
    if process.returncode != 0:
        first, *more = said.strip().removeprefix("error: ").splitlines() or [f"exit code {process.returncode}"]
        raise UsageError(
            "\n".join((f"cron could not train this: {first}", *more)), next_step="The schedule was not changed."
        )
    if said.strip():
        output.note(said.strip())


def _start(entry: Entry) -> None:
    if entry.starter is Starter.SYSTEMD:
        timers.add(entry)
    else:
        crontab_file.add(entry)
