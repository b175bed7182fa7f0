"""When: five fields as cron has them, in words, the next time, and as systemd says it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from cronsim import CronSim, CronSimError
from crontab import CronSlices

from bamboo_cli.errors import UsageError

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_ANY_TIME = datetime(2026, 1, 1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Made by ``parse``, so that cron takes it."""

    text: str
    """Five fields."""

    def words(self) -> str:
        """``At 02:00 every day``"""
        return CronSim(self.text, _ANY_TIME).explain()

    def next_after(self, now: datetime) -> datetime:
        """In the zone of ``now``, with the clock put forward and back as Debian's cron does it."""
        return next(CronSim(self.text, now))

    def calendars(self) -> tuple[str, ...]:
        """What systemd calls it, ``OnCalendar=``; two where cron means either of a date and a day of the week."""
        fields = CronSim(self.text, _ANY_TIME)
        days_of_week = {day % 7 for day in fields.weekdays if isinstance(day, int)}
        time = f"{_listed(fields.hours, 24)}:{_listed(fields.minutes, 60)}:00"
        months = _listed(fields.months, 12)
        week = "" if len(days_of_week) == 7 else ",".join(DAYS[day] for day in sorted(days_of_week)) + " "
        date = _listed(fields.days, 31)
        if fields.day_and:
            return (f"{week}*-{months}-{date} {time}",)
        return (f"*-{months}-{date} {time}", f"{week}*-{months}-* {time}")


def parse(text: str) -> Schedule:
    """Raises UsageError. Only what Debian's cron knows as well: no seconds, no ``L``, no ``#``, no ``~``."""
    if text.strip().lower() == "@reboot":
        raise UsageError(
            f"{text}: a job that begins with the machine has no next time",
            next_step='Give five fields, such as "0 2 * * *", or @daily.',
        )
    fields = NICKNAMES.get(text.strip().lower(), " ".join(text.split()))
    try:
        if len(fields.split()) != 5 or "~" in fields:
            raise CronSimError("five fields are wanted, and no ~")
        next(CronSim(fields, _ANY_TIME))
        if not CronSlices.is_valid(fields):
            raise CronSimError("Debian's cron does not know this")
    except (CronSimError, StopIteration) as error:
        reason = f" ({error})" if str(error) else " (it never comes)"
        raise UsageError(
            f"{text!r} is no schedule{reason}",
            next_step='Minute, hour, day of the month, month, day of the week, in quotes: "0 2 * * *" is at 02:00 '
            'every day, "30 1 * * 1-5" at 01:30 on weekdays.',
        ) from None
    return Schedule(fields)


def _listed(values: Iterable[object], num_all: int) -> str:
    numbers = sorted(value for value in values if isinstance(value, int))
    return "*" if len(numbers) == num_all else ",".join(f"{value:02d}" for value in numbers)
