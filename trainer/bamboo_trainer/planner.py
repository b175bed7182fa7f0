"""Which arrangement is worth most on so many workers, decided purely. Rules, prices and assumptions: docs/planner.md.

What a job fixes is kept, as far as the workers suffice; what it leaves to the planner (``auto``) is searched: shapes
are ranked by a formula, the best of them are cut, protected stage by stage and run dry.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from bamboo_trainer.arrangement import Arrangement, uniform
from bamboo_trainer.outlook import Outlook, flow_s, outlook
from bamboo_trainer.partition import cut, shortest_longest
from bamboo_trainer.plan import split_microbatches
from bamboo_trainer.protection import protections
from bamboo_trainer.wanted import HORIZON_S, Wanted

MAX_SHAPES = 40
"""Of so many, ranked by the formula, each is looked at closely when there are no more; else of ``CLOSE_LOOKS``."""
CLOSE_LOOKS = 6
MARGIN = 0.05
"""A change that nothing forces has to promise so much more than the plan in force, beside its price: estimates err."""

Shape = tuple[int, ...]
"""Stages of each pipeline, the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    arrangement: Arrangement
    outlook: Outlook
    num_standbys: int
    reason: str
    """One sentence for people."""


@lru_cache(maxsize=256)
def arrange(num_workers: int, wanted: Wanted) -> Arrangement:
    """Raises ValueError when there is no worker."""
    if wanted.is_auto:
        return choose(num_workers, wanted).arrangement
    assert wanted.mode is not None and wanted.level is not None
    num_pipelines, num_stages = choose_shape(num_workers, wanted)
    layers = cut(wanted.costs_s, num_stages)
    return uniform([layers] * num_pipelines, wanted.num_microbatches, wanted.mode, wanted.level)


def choose_shape(num_workers: int, wanted: Wanted) -> tuple[int, int]:
    """Pipelines and stages where both are fixed: the pipelines first, since the bits depend on their number.

    As long as every pipeline can have two workers (one, where nothing is shadowed), their number is kept. Raises
    ValueError when there is no worker.
    """
    assert wanted.num_pipelines is not None and wanted.num_stages is not None
    num_pipelines = _fed_pipelines(num_workers, wanted, wanted.num_pipelines)
    return num_pipelines, min(wanted.num_stages, num_workers // num_pipelines, wanted.num_layers)


def _fed_pipelines(num_workers: int, wanted: Wanted, num_pipelines: int) -> int:
    if num_workers < 1:
        raise ValueError("no worker to plan with")
    feedable = num_workers // 2 if wanted.is_redundant and num_workers >= 2 else num_workers
    return min(num_pipelines, feedable, wanted.num_microbatches)


@lru_cache(maxsize=256)
def choose(num_workers: int, wanted: Wanted) -> Choice:
    """The arrangement that commits the most, of those that fit into memory if any does; where the protection is left to
    the planner, of those that no single loss sends back to a checkpoint, if any does. Equals by their numbers.

    Raises ValueError when there is no worker.
    """
    found = [
        _Candidate(
            arrangement,
            seen := outlook(arrangement, wanted, num_workers - arrangement.num_hosts),
            wanted.mode is not None or seen.losses_survived > 0,
        )
        for shape in _worth_a_look(num_workers, wanted)
        for arrangement in protections(_cut(shape, wanted), _share_out(shape, wanted), wanted)
    ]
    found.sort(key=_Candidate.rank)
    best = found[0]
    num_standbys = num_workers - best.arrangement.num_hosts
    return Choice(
        arrangement=best.arrangement,
        outlook=best.outlook,
        num_standbys=num_standbys,
        reason=_explain(found, wanted, num_standbys),
    )


@dataclass(frozen=True, slots=True)
class _Candidate:
    arrangement: Arrangement
    outlook: Outlook
    is_safe: bool

    def rank(self) -> tuple[int, bool, float, tuple[int, ...], int]:
        """Better ones first: what fits, or comes nearest to it; what is safe. Scores that differ by less than a
        millionth are one."""
        a, o = self.arrangement, self.outlook
        over_bytes = 0 if o.fits else o.peak_bytes
        return over_bytes, not self.is_safe, -float(f"{o.microbatches_per_hour:.6g}"), a.num_stages, a.level

    @property
    def name(self) -> str:
        return f"{self.arrangement.shape} with {protection_name(self.arrangement)}"


def is_worth_it(new: float, old: float, *, switch_s: float, horizon_s: float = HORIZON_S) -> bool:
    """Whether a change from one score to another pays its price within the horizon, with ``MARGIN`` to spare.

    The price is counted twice: what comes because it came goes again.
    """
    left = max(0.0, horizon_s - 2 * switch_s)
    return new * left > old * horizon_s * (1 + MARGIN)


# --- shapes -----------------------------------------------------------------------------------------------------


def _worth_a_look(num_workers: int, wanted: Wanted) -> list[Shape]:
    shapes = sorted(set(_shapes(num_workers, wanted)))
    if len(shapes) <= MAX_SHAPES:
        return shapes
    longest = shortest_longest(wanted.costs_s)
    through_s = sum(wanted.costs_s)
    weather = wanted.weather
    state_s = sum(c.parameter_bytes for c in wanted.costs) / weather.link_bytes_per_s

    def quick_s(shape: Shape) -> float:
        """Of a step, roughly."""
        made_s = max(flow_s(through_s, longest[p], _roughly(p, shape, wanted)) for p in {shape[0], shape[-1]})
        sums_s = 2 * (len(shape) - 1) / len(shape) * state_s / min(shape)
        missing = weather.hazard / 3600.0 * weather.boot_s if sum(shape) == num_workers else 0.0
        return (made_s + sums_s) * (1 + missing)

    return sorted(shapes, key=lambda shape: (quick_s(shape), shape))[:CLOSE_LOOKS]


def _shapes(num_workers: int, wanted: Wanted) -> Iterator[Shape]:
    """Those that the job allows; what it fixes is lowered only where the workers or the layers do not suffice."""
    if num_workers < 1:
        raise ValueError("no worker to plan with")
    if wanted.num_pipelines is not None:
        numbers: Iterable[int] = [_fed_pipelines(num_workers, wanted, wanted.num_pipelines)]
    else:
        numbers = range(1, _fed_pipelines(num_workers, wanted, num_workers) + 1)
    for num_pipelines in numbers:
        if wanted.num_stages is not None:
            most = min(wanted.num_stages, num_workers, wanted.num_layers)
            num_stages = min(most, num_workers // num_pipelines)
            if num_stages == most or wanted.num_pipelines is not None:
                yield (num_stages,) * num_pipelines
            continue
        least = 2 if wanted.is_redundant and num_workers >= 2 * num_pipelines else 1
        for num_hosts in range(least * num_pipelines, min(num_workers, num_pipelines * wanted.num_layers) + 1):
            base, extra = divmod(num_hosts, num_pipelines)
            yield (base + 1,) * extra + (base,) * (num_pipelines - extra)


def _cut(shape: Shape, wanted: Wanted) -> tuple[tuple[range, ...], ...]:
    return tuple(_cut_into(num_stages, wanted.costs_s) for num_stages in shape)


@lru_cache(maxsize=256)
def _cut_into(num_stages: int, costs_s: tuple[float, ...]) -> tuple[range, ...]:
    return cut(costs_s, num_stages)


def _share_out(shape: Shape, wanted: Wanted) -> tuple[range, ...]:
    """Microbatches by pipeline. Evenly unless the number of pipelines is the planner's: other shares, other bits."""
    if wanted.num_pipelines is not None or len(set(shape)) == 1:
        return split_microbatches(wanted.num_microbatches, len(shape))
    return _uneven(shape, wanted.num_microbatches)


def _roughly(num_stages: int, shape: Shape, wanted: Wanted) -> float:
    """Microbatches of a pipeline with so many stages."""
    is_even = wanted.num_pipelines is not None
    return wanted.num_microbatches * (1 / len(shape) if is_even else num_stages / sum(shape))


def _uneven(shape: Shape, num_microbatches: int) -> tuple[range, ...]:
    """In proportion to the stages, for the longest stage sets the pace; what is left goes to who has least to do."""
    counts = [max(1, num_microbatches * num_stages // sum(shape)) for num_stages in shape]
    while (left := num_microbatches - sum(counts)) != 0:
        pick = min if left > 0 else max
        d = pick((d for d in range(len(shape)) if left > 0 or counts[d] > 1), key=lambda d: (counts[d] / shape[d], d))
        counts[d] += 1 if left > 0 else -1
    ends = [0, *accumulate(counts)]
    return tuple(range(start, end) for start, end in pairwise(ends))


# --- words ------------------------------------------------------------------------------------------------------


def protection_name(arrangement: Arrangement) -> str:
    """``bubble``, or ``bubble and off`` where stages differ; the level where it is not 1."""
    modes = dict.fromkeys(mode for row in arrangement.modes for mode in row)
    level = f" at level {arrangement.level}" if arrangement.level > 1 and any(m.has_shadows for m in modes) else ""
    return " and ".join(modes) + level


def _explain(found: list[_Candidate], wanted: Wanted, num_standbys: int) -> str:
    best = found[0]
    spare = f" and {_count(num_standbys, 'standby')}" if num_standbys else ""
    text = f"{best.name}{spare} {_against_the_next(found)}"
    if best.outlook.fatal_per_hour > 0:
        text += f"; all holders of a layer go together about once in {_span(1 / best.outlook.fatal_per_hour)}"
    limit = wanted.weather.memory_bytes
    if limit is not None and not best.outlook.fits:
        text += f"; it does not fit: {best.outlook.peak_bytes / 1e9:.2f} GB after a loss, of {limit / 1e9:.2f} GB"
    return text


def _against_the_next(found: list[_Candidate]) -> str:
    best = found[0]
    others = [c for c in found[1:] if c.name != best.name]
    fitting = [c for c in others if c.outlook.fits or not best.outlook.fits]
    as_safe = [c for c in fitting if c.is_safe or not best.is_safe]
    if not others:
        return "is all that can be done"
    if not fitting:
        return "is all that fits into memory"
    if not as_safe:
        return "is all that survives any one loss"
    more = best.outlook.microbatches_per_hour / max(1e-12, as_safe[0].outlook.microbatches_per_hour) - 1
    return f"should commit {more:.1%} more than {as_safe[0].name}"


def _span(hours: float) -> str:
    """As coarse as what is known."""
    if hours < 1:
        return f"{hours * 60:.0f} min"
    if hours < 48:
        return f"{hours:.0f} h"
    days = hours / 24
    if days < 730:
        return f"{days:.0f} days"
    return f"{days / 365:.0f} years" if days <= 365_000 else "over 1000 years"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
