"""An entry as ``bamboo cron list`` shows it, with whatever is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bamboo_cli.cron import adding, crontab_file, entries, leftover, lock, nights
from bamboo_cli.cron.entries import Entry, Starter
from bamboo_cli.cron.nights import Night
from bamboo_cli.cron.schedule import parse
from bamboo_cli.errors import BambooError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    id: str
    schedule: str = ""
    words: str = ""
    starter: str = ""
    next_at: float | None = None
    """Seconds since the epoch."""
    job: str = ""
    cluster: str = ""
    log: str = ""
    is_on: bool = False
    """A night is on."""
    last: Night | None = None
    trouble: tuple[str, ...] = ()


def show_all() -> tuple[Shown, ...]:
    """Entries, and lines of the crontab whose entry is lost. Raises nothing that a list could not show."""
    known = entries.ids()
    found = [_show(entry_id) for entry_id in known]
    try:
        dead = [line for line in crontab_file.lines() if line.is_dead and not (line.is_ours and line.entry_id in known)]
    except BambooError:
        dead = []
    found += [
        Shown(
            id=line.entry_id,
            starter=Starter.CRON,
            trouble=(f"cron starts {line.start}, which is gone; `bamboo cron remove {line.entry_id}`",),
        )
        for line in dead
    ]
    return tuple(sorted(found, key=lambda shown: shown.id))


def _show(entry_id: str) -> Shown:
    try:
        return show(entries.read(entry_id))
    except BambooError as error:
        return Shown(id=entry_id, trouble=(error.message, error.next_step))


def show(entry: Entry) -> Shown:
    """Raises UsageError: its schedule is none."""
    schedule = parse(entry.schedule)
    return Shown(
        id=entry.entry_id,
        schedule=entry.schedule,
        words=schedule.words(),
        starter=entry.starter,
        # without a zone: what is known of it here is an offset, which the next time may not have any more
        next_at=schedule.next_after(datetime.now()).timestamp(),
        job=entry.job,
        cluster=entry.cluster,
        log=str(entry.log),
        is_on=lock.is_held(entry.cluster),
        last=nights.newest(entry),
        trouble=tuple(_trouble(entry)),
    )


def _trouble(entry: Entry) -> Iterator[str]:
    try:
        if not adding.is_current(entry):
            yield f"{entry.starter} does not know it, or with another schedule; add it again, with --replace"
    except BambooError as error:
        yield error.message
    if not Path(entry.job).is_file():
        yield "its job file is gone"
    if not entry.start.is_file():
        yield f"{entry.start} is gone; add it again, with --replace"
    if entry.env_file is not None and not Path(entry.env_file).is_file():
        yield f"{entry.env_file} is gone"
    if not lock.is_held(entry.cluster):
        try:
            if leftover.look(entry.cluster).made_by is not None:
                end_it = f"`bamboo down --cluster {entry.cluster}`"
                yield f"its cluster is up, and costs money until the next night, or {end_it}"
        except BambooError as error:
            yield error.message
