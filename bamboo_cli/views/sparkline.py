"""Numbers as one line of small bars."""

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
NO_NUMBER = "×"


def sparkline(values: Sequence[float | None], width: int, *, from_zero: bool = False) -> str:
    """At most ``width`` bars; of more values, each bar is the mean of neighbours. The lowest bar is the least value, or
    0 with ``from_zero``. What is not finite shows as a cross, and None as a gap."""
    if width <= 0 or not values:
        return ""
    shown = _gathered(values, width)
    finite = [value for value in shown if value is not None and math.isfinite(value)]
    if not finite:
        return "".join(" " if value is None else NO_NUMBER for value in shown)
    low, high = (min(0.0, *finite) if from_zero else min(finite)), max(finite)
    return "".join(" " if value is None else _bar(value, low, high) for value in shown)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NO_NUMBER
    if high <= low:
        return BARS[len(BARS) // 2]
    return BARS[min(len(BARS) - 1, int((value - low) / (high - low) * len(BARS)))]


def _gathered(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [_mean(values[begin:end]) for begin, end in pairwise(edges)]


def _mean(values: Sequence[float | None]) -> float | None:
    """Not finite if one of them is not: it must not be hidden."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
