"""What clusters cost, summed up for people: by run, day, zone, type and node, beside the on-demand price. Pure.

docs/money.md has the formulas.
"""

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import cache
from operator import attrgetter

from bamboo_cli.costs.ledger import Charge
from bamboo_cli.costs.periods import day_of, midnights
from bamboo_cli.providers.base import ON_DEMAND

MILLION = 1_000_000
CROSSING_MICROUSD_PER_GB = 20_000
"""Traffic between zones: $0.01 a GB on each side, of EC2 on 2026-11-30; between regions it is as much or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A sum of charges. Whole micro-dollars, so amounts add up exactly."""

    seconds: float
    """Of machines, not of the clock: two nodes for a minute are 120."""
    spot_microusd: int
    on_demand_microusd: int
    """What the same machine time would have cost on demand."""
    on_demand_note: str = ""
    """Where that is an estimate: that it is one, and of when. Empty: it is the cloud's own price."""

    @property
    def saved_microusd(self) -> int:
        return self.on_demand_microusd - self.spot_microusd

    @property
    def saved_share(self) -> float | None:
        return self.saved_microusd / self.on_demand_microusd if self.on_demand_microusd else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Which nodes had a stage, from ``at`` until the next one."""

    at: float
    node_ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run did with its money. ``wall_s``: from its start to its end, or to now."""

    run_id: str
    cluster_id: str = ""
    num_steps: int
    """Committed."""
    num_samples: int
    num_tokens: int
    wall_s: float
    pause_s: float
    steps_rerun: int = 0
    usual_step_s: float = 0.0
    """Of a step that nothing disturbs; 0: not known."""
    placings: tuple[Placing, ...] = ()
    """In the order of time."""
    steps_left: int = 0
    """Of a run that goes on."""
    crossing_bytes: int = 0
    """That its steps sent from one zone to another, where that costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Of a run that goes on as it did on average."""

    hours_left: float
    total_microusd: float
    """When it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBill:
    run_id: str
    amount: Amount
    microusd_per_step: float | None
    """None: no step is committed."""
    microusd_per_million_samples: float | None
    microusd_per_million_tokens: float | None
    pause_microusd: float
    """Of ``amount``: what the machines cost while the run stood still for losses and reconfigurations (pause seconds
    times the run's average price per second)."""
    steps_rerun: int
    rerun_microusd: float
    """Of the rest: what steps cost that were run again after a restore, at the run's average step."""
    stageless_microusd: int = 0
    """Of ``amount``: nodes that had no stage since the run's first plan, as they booted or stood by."""
    same_work_microusd: float | None = None
    """What the committed steps would have cost on demand: with as many nodes as ever had a stage at once, and nothing
    that disturbs. None: no undisturbed step is known."""
    projection: Projection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    total: Amount
    idle: Amount
    """Rented while no run was on: booting, waiting, going."""
    runs: tuple[RunBill, ...]
    by_zone: tuple[tuple[str, Amount], ...]
    by_type: tuple[tuple[str, Amount], ...]
    by_node: tuple[tuple[str, Amount], ...]
    """Empty, where there are more than were asked for."""
    price_sources: tuple[str, ...]
    """As offers have them, or that a price is unknown."""
    by_day: tuple[tuple[str, Amount], ...] = ()
    """YYYY-MM-DD, in order."""
    by_cluster: tuple[tuple[str, Amount], ...] = ()
    """By cluster id."""
    microusd_per_hour: int = 0
    """What is paid now."""
    disk_microusd: float = 0.0
    """Estimated, and in no other figure: root volumes for as long as their nodes lived."""
    crossing_bytes: int = 0
    crossing_microusd: float = 0.0
    """Estimated, and in no other figure: traffic of the steps from one zone to another."""

    @property
    def by_month(self) -> tuple[tuple[str, Amount], ...]:
        """YYYY-MM, in order."""
        months = itertools.groupby(self.by_day, lambda day: day[0][:7])
        return tuple((month, merged(amount for _, amount in days)) for month, days in months)


def merged(amounts: Iterable[Amount]) -> Amount:
    listed = list(amounts)
    notes = (note for one in listed for note in one.on_demand_note.split("; ") if note)
    return Amount(
        seconds=sum(one.seconds for one in listed),
        spot_microusd=sum(one.spot_microusd for one in listed),
        on_demand_microusd=sum(one.on_demand_microusd for one in listed),
        on_demand_note="; ".join(dict.fromkeys(notes)),
    )


def amount(charges: Iterable[Charge]) -> Amount:
    sources: dict[str, None] = {}
    seconds, spot, on_demand = 0.0, 0, 0
    for charge in charges:
        seconds += charge.to_at - charge.from_at
        spot += charge.spot_microusd
        on_demand += charge.on_demand_microusd
        sources[charge.price_source] = None
    return Amount(
        seconds=seconds,
        spot_microusd=spot,
        on_demand_microusd=on_demand,
        on_demand_note=_note(tuple(sources)),
    )


@cache
def _note(sources: tuple[str, ...]) -> str:
    notes = dict.fromkeys(source.partition(ON_DEMAND)[2] for source in sources)
    return "; ".join(note for note in notes if note)


def bill(
    charges: Sequence[Charge],
    runs: Iterable[RunFacts],
    *,
    microusd_per_hour: int = 0,
    disk_microusd: float = 0.0,
    zone: tzinfo | None = None,
    most_nodes: int | None = None,
) -> Bill:
    """Runs in the order given; zones, types, nodes and clusters in the order in which they first cost something.

    ``charges`` are cut at midnights of the time zone ``zone`` (None: the machine's) and at the runs' placings.
    ``most_nodes``: if there are more, they are not told one by one, which is most of the work for a hundred thousand.
    """
    is_by_node = most_nodes is None or len({charge.node_id for charge in charges}) <= most_nodes
    listed, by_cluster = list(runs), _grouped(charges, attrgetter("cluster_id"))
    of_runs: dict[tuple[str, str | None], list[Charge]] = defaultdict(list)
    for charge in charges:
        of_runs[charge.cluster_id, charge.run_id].append(charge)
    return Bill(
        total=merged(amount for _, amount in by_cluster),
        idle=merged(amount(found) for (_, run_id), found in of_runs.items() if run_id is None),
        runs=tuple(run_bill(of_runs[facts.cluster_id, facts.run_id], facts, microusd_per_hour) for facts in listed),
        by_zone=_grouped(charges, attrgetter("zone")),
        by_type=_grouped(charges, attrgetter("instance_type")),
        by_node=_grouped(charges if is_by_node else (), attrgetter("node_id")),
        price_sources=tuple(dict.fromkeys(charge.price_source for charge in charges)),
        by_day=tuple(sorted(_grouped(charges, _days(charges, zone)))),
        by_cluster=by_cluster,
        microusd_per_hour=microusd_per_hour,
        disk_microusd=disk_microusd,
        crossing_bytes=(crossing := sum(facts.crossing_bytes for facts in listed)),
        crossing_microusd=crossing / 1e9 * CROSSING_MICROUSD_PER_GB,
    )


def run_bill(charges: Sequence[Charge], facts: RunFacts, microusd_per_hour: int = 0) -> RunBill:
    """``charges``: of the run."""
    spent = amount(charges)
    pause = spent.spot_microusd * min(1.0, facts.pause_s / facts.wall_s) if facts.wall_s > 0 else 0.0
    all_steps = facts.num_steps + facts.steps_rerun
    return RunBill(
        run_id=facts.run_id,
        amount=spent,
        microusd_per_step=_per(spent, facts.num_steps),
        microusd_per_million_samples=_per(spent, facts.num_samples, MILLION),
        microusd_per_million_tokens=_per(spent, facts.num_tokens, MILLION),
        pause_microusd=pause,
        steps_rerun=facts.steps_rerun,
        rerun_microusd=(spent.spot_microusd - pause) * facts.steps_rerun / all_steps if all_steps else 0.0,
        stageless_microusd=_stageless(charges, facts.placings),
        same_work_microusd=_same_work(spent, facts),
        projection=projection(
            spent.spot_microusd,
            steps_left=facts.steps_left,
            num_steps=facts.num_steps,
            wall_s=facts.wall_s,
            microusd_per_hour=microusd_per_hour,
        ),
    )


def projection(
    spent_microusd: int, *, steps_left: int, num_steps: int, wall_s: float, microusd_per_hour: int
) -> Projection | None:
    """``num_steps``: of the run in ``wall_s``; ``spent_microusd``: so far, of the run or of its whole cluster. None: no
    step is committed, or none is left; or the clock was put back to before the run began."""
    if not (steps_left and num_steps) or wall_s <= 0:
        return None
    hours_left = steps_left * wall_s / num_steps / 3600.0
    return Projection(hours_left=hours_left, total_microusd=spent_microusd + hours_left * microusd_per_hour)


def _stageless(charges: Iterable[Charge], placings: Sequence[Placing]) -> int:
    starts = [placing.at for placing in placings]
    found = 0
    for charge in charges if placings else ():
        number = bisect_right(starts, charge.from_at) - 1
        if number >= 0 and charge.node_id not in placings[number].node_ids:
            found += charge.spot_microusd
    return found


def _same_work(spent: Amount, facts: RunFacts) -> float | None:
    most = max((len(placing.node_ids) for placing in facts.placings), default=0)
    if not (spent.seconds and most and facts.usual_step_s):
        return None
    return facts.num_steps * facts.usual_step_s * most * spent.on_demand_microusd / spent.seconds


def _per(spent: Amount, count: int, unit: int = 1) -> float | None:
    return spent.spot_microusd * unit / count if count else None


def _days(charges: Sequence[Charge], zone: tzinfo | None) -> Callable[[Charge], str]:
    """The day of a charge, looked up: there may be very many."""
    begin = min((charge.from_at for charge in charges), default=0.0)
    edges = midnights(begin, max((charge.to_at for charge in charges), default=0.0), zone)
    names = [str(day_of(edge, zone)) for edge in (begin, *edges)]
    return lambda charge: names[bisect_right(edges, charge.from_at)]


def _grouped(charges: Iterable[Charge], key: Callable[[Charge], str]) -> tuple[tuple[str, Amount], ...]:
    groups: dict[str, list[Charge]] = defaultdict(list)
    for charge in charges:
        groups[key(charge)].append(charge)
    return tuple((name, amount(group)) for name, group in groups.items())
