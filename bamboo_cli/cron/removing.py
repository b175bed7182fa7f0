"""Finding entries by id or job file, and taking them off their schedule."""

import os
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.cron import adding, crontab_file, entries, leftover, lock, timers
from bamboo_cli.cron.entries import Entry
from bamboo_cli.errors import StateError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    entry_id: str
    warning: str = ""


def found(asked: str, *, only_one: bool = False) -> tuple[Entry, ...]:
    """By id, or all of a job file. Raises StateError: there is none; UsageError: there are several."""
    if asked in entries.ids():
        return (entries.read(asked),)
    of_job = _of_job(asked)
    if only_one and len(of_job) > 1:
        names = ", ".join(entry.entry_id for entry in of_job)
        raise UsageError(f"{asked} has several entries: {names}", next_step="Name one of them.")
    if of_job:
        return of_job
    if os.sep in asked or asked.endswith((".yaml", ".yml")):
        raise StateError(f"no entry has the job {asked}", next_step="`bamboo cron list` shows all.")
    return (entries.read(asked),)  # raises, with what there is


def remove(asked: str) -> tuple[Removed, ...]:
    """Also what is left of one whose folder is lost or damaged, and lines of it that lead nowhere. Raises StateError,
    UsageError."""
    with entries.changing():
        return _remove_all(asked)


def _remove_all(asked: str) -> tuple[Removed, ...]:
    try:
        removed = tuple(_remove(entry) for entry in found(asked))
    except StateError:
        if _of_job(asked) or os.sep in asked or asked.endswith((".yaml", ".yml")):
            raise
        known = asked in entries.ids()
        if not (_forget_line(asked) or known):
            raise
        entries.forget(asked)
        return (Removed(entry_id=asked),)
    for one in removed:
        _forget_line(one.entry_id)
    return removed


def _remove(entry: Entry) -> Removed:
    adding.stop(entry)
    if lock.is_held(entry.cluster):
        (entry.folder / entries.ENTRY_FILE).unlink(missing_ok=True)
        log = f"; its log stays in {entry.folder}"
        return Removed(entry_id=entry.entry_id, warning=f"a night of it is still on, and goes on to its end{log}")
    entries.forget(entry.entry_id)
    try:
        is_left = leftover.look(entry.cluster).made_by == entry.entry_id
    except StateError as error:
        return Removed(entry_id=entry.entry_id, warning=f"what is left of its cluster is not known: {error.message}")
    if is_left:
        end_it = f"end it with `bamboo down --cluster {entry.cluster}`"
        return Removed(entry_id=entry.entry_id, warning=f"its cluster is still up, and costs money: {end_it}")
    return Removed(entry_id=entry.entry_id)


def _forget_line(entry_id: str) -> bool:
    entries.folder_of(entry_id)  # refuses what cannot be an id
    by_systemd = timers.remove(entry_id)
    try:
        return crontab_file.remove(entry_id, dead=True) or by_systemd
    except UsageError:  # there is no cron here, and so no line of it
        return by_systemd


def _of_job(asked: str) -> tuple[Entry, ...]:
    path = adding.absolute(Path(asked))
    return tuple(entry for entry in _readable() if entry.job == path)


def _readable() -> list[Entry]:
    readable = []
    for entry_id in entries.ids():
        try:
            readable.append(entries.read(entry_id))
        except StateError:
            continue
    return readable
