"""When an entry is started: as cron means it, in words, and as systemd says it."""

import re
import shutil
import subprocess
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from bamboo_cli.cron.schedule import parse
from bamboo_cli.errors import UsageError

BERLIN = ZoneInfo("Europe/Berlin")
NEEDS_SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 2 * * *", "At 02:00 every day"),
        ("  30  1 * *   1-5 ", "At 01:30 on Monday through Friday"),
        ("@daily", "At 00:00 every day"),
        ("*/15 * * * *", "Every 15th minute of every hour"),
    ],
)
def test_a_schedule_is_told_in_words(text: str, words: str) -> None:
    assert parse(text).words() == words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 AM",
        "0 2 * *",
        "0 0 2 * * *",
        "61 2 * * *",
        "0 2 31 2 *",
        "0 2 * * 5#2",
        "0 2 L * *",
        "0~30 2 * * *",
        "0 22-2 * * *",
    ],
)
def test_what_no_cron_would_start_is_refused_with_how_to_say_it(text: str) -> None:
    with pytest.raises(UsageError, match="is no schedule") as raised:
        parse(text)

    assert '"0 2 * * *" is at 02:00 every day' in raised.value.next_step


def test_a_job_that_begins_with_the_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="has no next time"):
        parse("@reboot")


def test_what_the_clock_skips_is_started_right_after_the_gap() -> None:
    """On 28 March 2027 the clock goes from 02:00 to 03:00. Debian's cron starts then what it has skipped."""
    before = datetime(2027, 3, 27, 12, 0, tzinfo=BERLIN)

    in_the_gap = parse("30 2 * * *").next_after(before + timedelta(days=1) - timedelta(hours=12))

    assert in_the_gap.isoformat() == "2027-03-28T03:00:00+02:00"


def test_what_the_clock_repeats_is_started_once() -> None:
    first = parse("30 2 * * *").next_after(datetime(2027, 10, 31, 0, 0, tzinfo=BERLIN))

    assert first.isoformat() == "2027-10-31T02:30:00+02:00"
    assert parse("30 2 * * *").next_after(first).isoformat() == "2027-11-01T02:30:00+01:00"


@NEEDS_SYSTEMD
@pytest.mark.parametrize(
    "text",
    [
        "0 2 * * *",
        "*/20 22-23,0-4 * * *",
        "30 1 * * 1-5",
        "30 1 * * SUN",
        "0 3 * * 7",
        "0 4 1,15 * *",
        "0 4 1,15 * MON",
        "15 5 */3 * 2",
        "0 0 29 2 *",
        "7 7 1 1-6/2 *",
    ],
)
def test_a_timer_goes_off_when_cron_would_start(text: str) -> None:
    """The next eight times, by systemd's own reckoning. Where cron means either of two, systemd has two calendars."""
    schedule = parse(text)
    now = datetime(2026, 11, 30, 12, 0, tzinfo=ZoneInfo("UTC"))
    expected = []
    at = now
    for _ in range(8):
        at = schedule.next_after(at)
        expected.append(at)

    told = {at for calendar in schedule.calendars() for at in _elapses(calendar, now)}

    assert sorted(told)[:8] == expected


def _elapses(calendar: str, after: datetime) -> list[datetime]:
    base = after.strftime("%Y-%m-%d %H:%M:%S UTC")
    said = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=8", f"--base-time={base}", calendar],
        capture_output=True,
        text=True,
        check=True,
        env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
    ).stdout
    times = re.findall(r"(?:Next elapse|Iteration #\d+|Iter\. #\d+): \w+ (\S+ \S+) UTC", said)
    return [datetime.fromisoformat(time).replace(tzinfo=after.tzinfo) for time in times]
