"""Recorded traces of spot instances, and what the local cloud makes of one: values and functions of them, no I/O.

A trace is a file with a line ``milliseconds,add,name`` or ``milliseconds,remove,name`` for each instance that came or
went, as the traces of the Bamboo paper were published (https://github.com/uclasystem/bamboo, ``simulator/traces``).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self


class TraceError(ValueError):
    """One sentence, with the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All that came and went at one time."""

    at_s: float
    num_added: int
    num_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``at_s``: from the start of the replay."""

    at_s: float
    num_taken: int
    """Live instances that are preempted then."""
    capacity: int
    """Instances that can be had from then on; what lives beyond it is taken as well."""


def read_trace(text: str) -> tuple[Moment, ...]:
    """Moments in order. Raises TraceError."""
    events: list[tuple[float, str]] = []
    live: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip() for cell in line.split(",")]
        if cells == [""]:
            continue
        if len(cells) != 3:
            raise TraceError(f"line {number} is {line[:60]!r}, not `milliseconds,add or remove,name`")
        at_ms, verb, name = cells
        if not (at_ms.isascii() and at_ms.isdigit()):
            raise TraceError(f"line {number}: {at_ms[:30]!r} is not a whole number of milliseconds")
        if verb not in ("add", "remove"):
            raise TraceError(f"line {number}: {verb[:30]!r} is neither `add` nor `remove`")
        if events and int(at_ms) / 1e3 < events[-1][0]:
            raise TraceError(f"line {number} goes back in time, from {events[-1][0] * 1e3:.0f} to {at_ms} ms")
        if (verb == "add") == (name in live):
            raise TraceError(f"line {number}: {name[:30]!r} {'is there already' if verb == 'add' else 'is not there'}")
        live ^= {name}
        events.append((int(at_ms) / 1e3, verb))
    if not events:
        raise TraceError("the file has no line `milliseconds,add or remove,name`")
    return tuple(_moment(at_s, [verb for _, verb in group]) for at_s, group in groupby(events, key=lambda e: e[0]))


def _moment(at_s: float, verbs: Sequence[str]) -> Moment:
    return Moment(at_s=at_s, num_added=verbs.count("add"), num_removed=verbs.count("remove"))


def scale(trace: Sequence[Moment], *, num_nodes: int, speed: float = 1.0, start_s: float = 0.0) -> tuple[Change, ...]:
    """The trace for a cluster of ``num_nodes``, which stand for the most instances that it ever had.

    Capacity follows the trace in proportion, rounded. A moment with losses takes as many nodes as the capacity falls
    by, and at least one: losses keep their moments, however small the cluster. Such a one can be had anew at once.
    ``speed``: seconds of the trace in one of the replay. ``start_s``: where in the trace to begin.
    """
    counts: list[int] = []
    for moment in trace:
        counts.append((counts[-1] if counts else 0) + moment.num_added - moment.num_removed)
    before = [count for moment, count in zip(trace, counts, strict=True) if moment.at_s <= start_s]
    capacities = [int(num_nodes * count / max(counts) + 0.5) for count in [before[-1] if before else 0, *counts]]
    changes = [Change(at_s=0.0, num_taken=0, capacity=capacities[0])]
    for moment, capacity in zip(trace, capacities[1:], strict=True):
        if moment.at_s > start_s:
            taken = max(1, changes[-1].capacity - capacity) if moment.num_removed else 0
            changes.append(Change(at_s=(moment.at_s - start_s) / speed, num_taken=taken, capacity=capacity))
    return tuple(changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A cluster's trace and how far it has come."""

    changes: tuple[Change, ...]
    seed: int
    """Of who is taken."""
    started_at: float
    """Seconds since the epoch."""
    num_done: int = 0

    @property
    def capacity(self) -> int:
        return self.changes[self.num_done - 1].capacity if self.num_done else 0

    def next_due(self, now: float) -> Change | None:
        if self.num_done < len(self.changes) and self.started_at + self.changes[self.num_done].at_s <= now:
            return self.changes[self.num_done]
        return None

    def done(self) -> Self:
        return replace(self, num_done=self.num_done + 1)

    def victims(self, zones: Mapping[str, str], count: int) -> tuple[str, ...]:
        """Instances that the next change takes. They share a zone as far as one has enough of them, as real ones do.

        ``zones``: of each instance that can be taken, in the order of their creation.
        """
        chance = random.Random(f"{self.seed}/{self.num_done}")
        shuffled = chance.sample(list(zones), k=len(zones))
        return tuple(sorted(shuffled, key=lambda i: zones[i] != zones[shuffled[0]])[:count])
