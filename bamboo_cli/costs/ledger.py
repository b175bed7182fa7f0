"""The ledger: what every instance-second cost, and what it would have cost on demand. Pure.

Charges follow from facts: when each instance was launched and ended, what its zone and type cost when, and when each
run began and ended. They are cut wherever a run changes (and where whoever asks wants it), never overlap, and leave no
second out. What a price that changes in between comes to is summed up exactly; each charge is rounded once to whole
micro-dollars, so sums by any grouping agree exactly with the total.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, mul, sub
from typing import NamedTuple

MICROUSD = 1_000_000
"""Micro-dollars in a dollar."""
_HOUR = 3600 * 1_000_000
"""In microseconds."""
UNKNOWN = "unknown, so counted as nothing"
"""The source of a price that nobody has told."""


# Named tuples: of each there may be a million, and nothing is made faster.


class Price(NamedTuple):
    """Of one zone and instance type, from ``from_at`` (seconds since the epoch) until the next one."""

    zone: str
    instance_type: str
    from_at: float
    spot_microusd_per_hour: int
    on_demand_microusd_per_hour: int
    price_source: str


class Rental(NamedTuple):
    """One instance as the bill sees it. ``ended_at`` None: it still runs."""

    instance_id: str
    node_id: str
    zone: str
    instance_type: str
    launched_at: float
    ended_at: float | None = None
    is_spot: bool = True
    """False: it pays the price on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInterval:
    """Runs of a cluster follow each other."""

    run_id: str
    started_at: float
    ended_at: float | None = None


class Charge(NamedTuple):
    cluster_id: str
    instance_id: str
    node_id: str
    zone: str
    instance_type: str
    run_id: str | None
    """None: rented while no run was on."""
    from_at: float
    to_at: float
    price_source: str
    """All that told its price, with semicolons."""
    spot_microusd: int
    """What was paid; of an instance on demand, that price."""
    on_demand_microusd: int

    @property
    def seconds(self) -> float:
        return self.to_at - self.from_at


def charges(
    rentals: Iterable[Rental],
    prices: Iterable[Price],
    runs: Iterable[RunInterval],
    now: float,
    *,
    cuts: Sequence[float] = (),
    cluster_id: str = "",
) -> tuple[Charge, ...]:
    """All charges up to ``now``, by instance and time. ``cuts``: further moments to cut them at, in order.

    The first known price of a zone and type also holds before it. Without any, the time is billed as nothing and says
    ``UNKNOWN`` as its source: a bill with a hole in it is better than none.
    """
    markets, intervals = _markets(prices), _Runs(runs)
    found: list[Charge] = []
    for rental in sorted(rentals, key=attrgetter("launched_at", "instance_id")):
        market = markets.get((rental.zone, rental.instance_type)) or _Market([_no_price(rental)])
        found += _charges_of(rental, cluster_id, market, intervals, cuts, now)
    return tuple(found)


def paid_now(rentals: Iterable[Rental], prices: Iterable[Price], now: float) -> int:
    """Micro-dollars an hour, of all instances that run."""
    running = [rental for rental in rentals if rental.ended_at is None]
    markets, paid = _markets(prices) if running else {}, 0
    for rental in running:
        if market := markets.get((rental.zone, rental.instance_type)):
            price = market.at(now)
            paid += price.spot_microusd_per_hour if rental.is_spot else price.on_demand_microusd_per_hour
    return paid


def within(found: Iterable[Charge], since: float, until: float) -> tuple[Charge, ...]:
    """Of charges that are cut at both, those between them."""
    if since == -math.inf and until == math.inf:
        return tuple(found)
    return tuple(charge for charge in found if charge.from_at >= since and charge.to_at <= until)


def microusd(usd: float) -> int:
    return round(usd * MICROUSD)


def usd(amount: int) -> float:
    """Micro-dollars as dollars, for printing."""
    return amount / MICROUSD


def _no_price(rental: Rental) -> Price:
    return Price(
        zone=rental.zone,
        instance_type=rental.instance_type,
        from_at=rental.launched_at,
        spot_microusd_per_hour=0,
        on_demand_microusd_per_hour=0,
        price_source=UNKNOWN,
    )


def _markets(prices: Iterable[Price]) -> dict[tuple[str, str], "_Market"]:
    listed: dict[tuple[str, str], list[Price]] = defaultdict(list)
    for price in sorted(prices, key=attrgetter("from_at")):
        listed[price.zone, price.instance_type].append(price)
    return {key: _Market(found) for key, found in listed.items()}


class _Tariff:
    """What is paid from when on (microseconds), summed up from the first moment on."""

    def __init__(self, starts: Sequence[int], per_hour: Sequence[int]) -> None:
        self._starts, self._per_hour = starts, per_hour
        self._only = per_hour[0] if len(set(per_hour)) == 1 else None
        spans = map(sub, starts[1:], starts)
        self._before: list[int] = list(itertools.accumulate(map(mul, spans, per_hour), initial=0))

    def index(self, moment: int) -> int:
        """The first price also holds before it."""
        return max(0, bisect_right(self._starts, moment) - 1)

    def upto(self, moment: int) -> int:
        """In micro-dollars an hour, times microseconds. What lies between two moments is the difference."""
        if self._only is not None:
            return moment * self._only
        number = self.index(moment)
        return self._before[number] + (moment - self._starts[number]) * self._per_hour[number]


class _Market:
    """Prices of one zone and type, in the order of time."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self._prices = prices
        starts = [_microseconds(price.from_at) for price in prices]
        self._spot = _Tariff(starts, [price.spot_microusd_per_hour for price in prices])
        self._on_demand = _Tariff(starts, [price.on_demand_microusd_per_hour for price in prices])
        self._sources = tuple(dict.fromkeys(price.price_source for price in prices))

    def costs(self, edges: Sequence[float]) -> Iterator[tuple[int, int]]:
        """Spot and on demand, from each of the moments to the next one, in whole micro-dollars."""
        moments = list(map(_microseconds, edges))
        upto = [(self._spot.upto(moment), self._on_demand.upto(moment)) for moment in moments]
        for (spot, on_demand), (next_spot, next_on_demand) in itertools.pairwise(upto):
            yield _whole(next_spot - spot), _whole(next_on_demand - on_demand)

    def sources(self, from_at: float, to_at: float) -> str:
        if len(self._sources) == 1:
            return self._sources[0]
        begin, end = self._spot.index(_microseconds(from_at)), self._spot.index(_microseconds(to_at) - 1)
        return "; ".join(dict.fromkeys(price.price_source for price in self._prices[begin : end + 1]))

    def at(self, moment: float) -> Price:
        return self._prices[self._spot.index(_microseconds(moment))]


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _whole(microusd_microseconds_per_hour: int) -> int:
    """Micro-dollars, halves up."""
    return (2 * microusd_microseconds_per_hour + _HOUR) // (2 * _HOUR)


class _Runs:
    """Which run was on; of two that overlap, the one that began later."""

    def __init__(self, runs: Iterable[RunInterval]) -> None:
        listed = sorted(runs, key=attrgetter("started_at"))
        self._edges = sorted(
            {run.started_at for run in listed} | {r.ended_at for r in listed if r.ended_at is not None}
        )
        self._run_ids: list[str | None] = [None]
        begun, number = [], 0
        for edge in self._edges:
            while number < len(listed) and listed[number].started_at <= edge:
                begun.append(listed[number])
                number += 1
            begun = [run for run in begun if run.ended_at is None or edge < run.ended_at]
            self._run_ids.append(begun[-1].run_id if begun else None)

    def changes(self, begin: float, end: float) -> list[float]:
        return self._edges[bisect_left(self._edges, begin) : bisect_right(self._edges, end)]

    def at(self, moment: float) -> str | None:
        return self._run_ids[bisect_right(self._edges, moment)]


def _charges_of(
    rental: Rental, cluster_id: str, market: _Market, runs: _Runs, cuts: Sequence[float], now: float
) -> list[Charge]:
    start, end = rental.launched_at, now if rental.ended_at is None else rental.ended_at
    if end <= start:
        return []
    further = cuts[bisect_left(cuts, start) : bisect_right(cuts, end)]
    edges = sorted({start, end, *runs.changes(start, end), *further})
    return [
        Charge(  # by place: by name it takes twice as long, and there may be a million
            cluster_id,
            rental.instance_id,
            rental.node_id,
            rental.zone,
            rental.instance_type,
            runs.at(from_at),
            from_at,
            to_at,
            market.sources(from_at, to_at),
            spot if rental.is_spot else on_demand,
            on_demand,
        )
        for (from_at, to_at), (spot, on_demand) in zip(itertools.pairwise(edges), market.costs(edges), strict=True)
    ]
