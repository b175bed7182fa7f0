"""Which part of a recorded trace trace_replay.py plays, and how fast."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bamboo_cli.providers.local_cloud.trace import Change, Moment, scale

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What everybody meets. Times in seconds of the replay."""

    path: Path
    num_nodes: int
    speed: float
    start_s: float
    """Of the trace, where the replay begins."""
    first_s: float
    end_s: float
    """What is committed between the two counts."""
    changes: tuple[Change, ...]

    def losses(self) -> tuple[Change, ...]:
        """The changes that take nodes while it counts."""
        return tuple(change for change in self.changes if change.num_taken and change.at_s >= self.first_s)

    def node_seconds(self) -> float:
        """That the trace gives between ``first_s`` and ``end_s``."""
        ends = [change.at_s for change in self.changes[1:]] + [self.end_s]
        spans = zip(self.changes, ends, strict=True)
        return sum(c.capacity * max(0.0, min(end, self.end_s) - max(c.at_s, self.first_s)) for c, end in spans)


def weather(
    trace: Sequence[Moment],
    path: Path,
    *,
    num_losses: int,
    span_s: float,
    num_nodes: int,
    speed: float,
    warm_up_s: float,
) -> tuple[Weather, int]:
    """The first hour in which the replay loses so many nodes; and the losses that the trace itself has in it."""
    begin_s = warm_up_s * speed
    while begin_s < trace[-1].at_s:
        start_s = begin_s - warm_up_s * speed
        end_s = warm_up_s + span_s / speed
        changes = scale(trace, num_nodes=num_nodes, speed=speed, start_s=start_s)
        sky = Weather(
            path=path,
            num_nodes=num_nodes,
            speed=speed,
            start_s=start_s,
            first_s=warm_up_s,
            end_s=end_s,
            changes=tuple(change for change in changes if change.at_s < end_s),
        )
        if sum(change.num_taken for change in sky.losses()) >= num_losses:
            return sky, sum(m.num_removed for m in trace if begin_s <= m.at_s < begin_s + span_s)
        begin_s += MINUTE_S
    raise SystemExit(f"no {span_s:.0f} s of the trace hold {num_losses} losses; take fewer with --losses")


def perfect_steps(
    spans: Sequence[tuple[float, float]], num_nodes: int, step_s: float, *, num_microbatches: int, num_layers: int
) -> float:
    """That one pipeline over whatever nodes there are would make, if it were cut anew in no time.

    ``step_s``: with ``num_nodes``; with n it is as much as (microbatches + n - 1) times the layers of the longest stage
    differ.
    """

    def length(nodes: int) -> int:
        return (num_microbatches + nodes - 1) * math.ceil(num_layers / nodes)

    moments = sorted({moment for span in spans for moment in span})
    steps = 0.0
    for begin, end in pairwise(moments):
        nodes = sum(span[0] <= begin and span[1] >= end for span in spans)
        steps += (end - begin) / (step_s * length(nodes) / length(num_nodes)) if nodes else 0.0
    return steps
