"""How a night went, as it is stored: ``last.json`` of the entry. While it is on, that it is."""

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from bamboo_cli.cron.entries import NIGHT_FILE, Entry, write_private
from bamboo_cli.cron.lock import is_held


class NightState(StrEnum):
    ON = "on"
    DONE = "done"
    """The job has made its last step."""
    COMPLETE = "complete"
    """It had made it before: nothing was rented."""
    AT_LIMIT = "at its limit"
    """Stopped with a checkpoint at ``max_cost_usd``, ``max_hours`` or ``deadline``."""
    LEFT_OUT = "left out"
    """Another run was on."""
    STOPPED = "stopped"
    """By a signal, in order."""
    FAILED = "failed"
    KILLED = "killed"
    """Never told how it ended, and is not on any more. Never stored."""

    @property
    def is_failure(self) -> bool:
        """Somebody should know."""
        return self in (NightState.FAILED, NightState.STOPPED, NightState.KILLED)


EXIT_BUG = 3
EXIT_LEFT_OUT = 5
EXIT_KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    started_at: float
    """Seconds since the epoch."""
    state: NightState = NightState.ON
    ended_at: float | None = None
    exit_code: int | None = None
    summary: str = ""
    """One line."""
    run_id: str | None = None
    pid: int | None = None


def write(entry: Entry, night: Night) -> bool:
    """False: it could not be stored, of which nothing else depends."""
    try:
        write_private(entry.folder / NIGHT_FILE, json.dumps(asdict(night), ensure_ascii=False))
    except OSError:
        return False
    return True


def newest(entry: Entry) -> Night | None:
    """As ``read``; one that says it is on, and is not, was killed."""
    night = read(entry.folder)
    if night is None or night.state is not NightState.ON or is_held(entry.cluster):
        return night
    return replace(night, state=NightState.KILLED, summary=f"{entry.entry_id}: killed, and never told how it ended")


def read(folder: Path) -> Night | None:
    """None: there was no night yet, or what is stored cannot be read."""
    try:
        stored = json.loads((folder / NIGHT_FILE).read_text(encoding="utf-8"))
        return Night(**stored | {"state": NightState(stored["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
