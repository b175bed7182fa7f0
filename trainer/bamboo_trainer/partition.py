"""Where to cut the model: contiguous stages whose longest is as short as can be. Pure; no torch."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

Fits = Callable[[int, int], bool]


def cut(
    costs_s: Sequence[float],
    num_stages: int,
    *,
    layer_bytes: Sequence[int] | None = None,
    limit_bytes: int | None = None,
) -> tuple[range, ...]:
    """The layers of each stage, none empty. ``costs_s``: forward and backward of each layer for one microbatch.

    The longest stage is as short as possible; among such cuts the most even one (least sum of squares) is taken, and
    among those the one whose first stages have the fewest layers, since they have the most microbatches in flight.
    ``limit_bytes``: no stage's ``layer_bytes`` sum to more. Raises ValueError when there is no such cut.
    """
    num_layers = len(costs_s)
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    total_ns = _totals_ns(costs_s)
    total_bytes = [0, *accumulate(layer_bytes or [0] * num_layers)]

    def fits(first: int, end: int) -> bool:
        return limit_bytes is None or total_bytes[end] - total_bytes[first] <= limit_bytes

    *_, longest = _shortest_longest(total_ns, num_stages, fits)
    if longest is None:
        raise ValueError(
            f"{num_layers} layers of {total_bytes[-1]} bytes do not fit into {num_stages} stages of {limit_bytes} bytes"
        )
    return _most_even(total_ns, num_stages, fits, longest)


def shortest_longest(costs_s: Sequence[float]) -> tuple[float, ...]:
    """Cost of the longest stage of the best cut into 0, 1, 2, … stages, up to one a layer. Of 0 it is 0."""
    found = _shortest_longest(_totals_ns(costs_s), len(costs_s), lambda first, end: True)
    return (0.0, *((ns or 0) / 1e9 for ns in found))


def _totals_ns(costs_s: Sequence[float]) -> list[int]:
    """Of the first 0, 1, 2, … layers. Whole nanoseconds: sums are exact, so equal costs are equal and every machine
    finds the same cut."""
    return [0, *accumulate(round(cost * 1e9) for cost in costs_s)]


def _shortest_longest(total: Sequence[int], num_stages: int, fits: Fits) -> list[int | None]:
    """Cost of the longest stage of the best cut into 1, 2, … stages; None when no cut fits. Dynamic programming over
    the first layers."""
    num_layers = len(total) - 1
    found: list[int | None] = []
    best: list[int | None] = [0] + [None] * num_layers  # of layers [0, end) in the stages so far
    for _ in range(num_stages):
        best = [
            min(
                (
                    max(before, total[end] - total[first])
                    for first in range(end)
                    if (before := best[first]) is not None and fits(first, end)
                ),
                default=None,
            )
            for end in range(num_layers + 1)
        ]
        found.append(best[num_layers])
    return found


def _most_even(total: Sequence[int], num_stages: int, fits: Fits, longest: int) -> tuple[range, ...]:
    num_layers = len(total) - 1
    # of layers [0, end): sum of squares, then the bounds, which are compared from the left: fewest layers first
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, (0,))] + [None] * num_layers
    for _ in range(num_stages):
        best = [
            min(
                (
                    (before[0] + (total[end] - total[first]) ** 2, (*before[1], end))
                    for first in range(end)
                    if (before := best[first]) is not None and total[end] - total[first] <= longest and fits(first, end)
                ),
                default=None,
            )
            for end in range(num_layers + 1)
        ]
    found = best[num_layers]
    assert found is not None, "the cut with this longest stage exists"
    return tuple(range(first, end) for first, end in pairwise(found[1]))
