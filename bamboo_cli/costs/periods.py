"""Days and periods of a bill. Pure; ``zone`` None: the time zone of the machine."""

import re
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta, tzinfo

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
EXAMPLES = "7d, 36h, today, yesterday, 2026-11-01, 2026-11-01T14:30"


def moment(text: str, *, now: float, zone: tzinfo | None = None) -> float:
    """Seconds since the epoch: so long ago (``36h``), a day's first second, or a date and time, which may name its own
    zone. Raises ValueError."""
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text.strip()):
        return now - float(ago[1]) * _UNITS[ago[2]]
    today = datetime.fromtimestamp(now, zone).date()
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    if text.strip() in days:
        return first_second(days[text.strip()], zone)
    at = datetime.fromisoformat(text.strip())
    return (at if at.tzinfo is not None or zone is None else at.replace(tzinfo=zone)).timestamp()


def first_second(day: date, zone: tzinfo | None = None) -> float:
    """Days are 23 or 25 hours long where the clock changes."""
    return datetime.combine(day, time(), zone).timestamp()


def day_of(at: float, zone: tzinfo | None = None) -> date:
    return datetime.fromtimestamp(at, zone).date()


def midnights(begin: float, end: float, zone: tzinfo | None = None) -> list[float]:
    """Those between the two, in order."""
    if end <= begin:  # also where it is so long ago that no day can be told
        return []
    first, last = day_of(begin, zone), day_of(end, zone)
    days: Iterable[date] = (first + timedelta(days=n) for n in range(1, (last - first).days + 1))
    return [at for at in (first_second(day, zone) for day in days) if begin < at < end]
