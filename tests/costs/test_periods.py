"""Days and periods, whatever the clock does."""

import math
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from bamboo_cli.costs.periods import day_of, first_second, midnights, moment

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 30, 15, 0, tzinfo=UTC).timestamp()


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("36h", NOW - 36 * 3600),
        ("1.5d", NOW - 36 * 3600),
        ("2w", NOW - 14 * 86_400),
        ("90m", NOW - 5400),
        ("today", at("2026-11-30")),
        ("yesterday", at("2026-11-29")),
        ("2026-11-01", at("2026-11-01")),
        ("2026-11-01T14:30", at("2026-11-01T14:30")),
        ("2026-11-01 14:30", at("2026-11-01T14:30")),
        ("2026-11-01T14:30+00:00", datetime(2026, 11, 1, 14, 30, tzinfo=UTC).timestamp()),
    ],
)
def test_a_moment_is_told_in_many_ways(text: str, means: float) -> None:
    assert moment(text, now=NOW, zone=BERLIN) == means


@pytest.mark.parametrize("text", ["", "soon", "7 parsecs", "2026-13-01", "-3d"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        moment(text, now=NOW, zone=BERLIN)


@pytest.mark.parametrize(("begin", "hours"), [("2026-03-28", [24, 23, 24]), ("2026-10-24", [24, 25, 24])])
def test_days_are_as_long_as_the_clock_says(begin: str, hours: list[int]) -> None:
    start = at(begin)
    edges = [start, *midnights(start, start + 74 * 3600, BERLIN)]

    assert [(b - a) / 3600 for a, b in pairwise(edges)] == hours
    assert [first_second(day_of(edge, BERLIN), BERLIN) for edge in edges] == edges


def test_a_midnight_that_the_clock_leaves_out_ends_a_day_all_the_same() -> None:
    """Cairo goes from 23:59:59 to 01:00."""
    cairo = ZoneInfo("Africa/Cairo")
    edges = midnights(at("2026-04-22T12:00", cairo), at("2026-04-26T12:00", cairo), cairo)

    assert [str(day_of(edge, cairo)) for edge in edges] == ["2026-04-23", "2026-04-24", "2026-04-25", "2026-04-26"]


def test_without_a_midnight_between_there_is_no_cut() -> None:
    assert midnights(at("2026-11-30T01:00"), at("2026-11-30T23:00"), BERLIN) == []
    assert midnights(at("2026-11-30"), at("2026-11-30"), BERLIN) == []


@pytest.mark.parametrize("end", [-1e15, -1e30, -math.inf])
def test_a_period_that_ended_before_there_were_days_has_no_midnights(end: float) -> None:
    assert midnights(NOW, end, BERLIN) == [] == midnights(NOW, end)
