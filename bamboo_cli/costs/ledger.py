"""The ledger: what every instance-second cost, and what it would have cost on demand. Pure.

Charges follow from facts: when each instance was launched and ended, what its zone and type cost when, and when each
run began and ended. They are cut wherever a price or a run changes, never overlap, and leave no second out. Each is
rounded once to whole micro-dollars, so sums by any grouping agree exactly with the total.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MICROUSD = 1_000_000
"""Micro-dollars in a dollar."""
UNKNOWN = "unknown, so counted as nothing"
"""The source of a price that nobody has told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one zone and instance type, from ``from_at`` (seconds since the epoch) until the next one."""

    zone: str
    instance_type: str
    from_at: float
    spot_microusd_per_hour: int
    on_demand_microusd_per_hour: int
    price_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
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
    run_id: str
    started_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    instance_id: str
    node_id: str
    zone: str
    instance_type: str
    run_id: str | None
    """None: rented while no run was on."""
    from_at: float
    to_at: float
    spot_microusd_per_hour: int
    """What was paid; of an instance on demand, that price."""
    on_demand_microusd_per_hour: int
    price_source: str
    spot_microusd: int
    on_demand_microusd: int

    @property
    def seconds(self) -> float:
        return self.to_at - self.from_at


def charges(
    rentals: Iterable[Rental], prices: Iterable[Price], runs: Iterable[RunInterval], now: float
) -> tuple[Charge, ...]:
    """All charges up to ``now``, by instance and time.

    The first known price of a zone and type also holds before it. Without any, the time is billed as nothing and says
    ``UNKNOWN`` as its source: a bill with a hole in it is better than none.
    """
    by_market: dict[tuple[str, str], list[Price]] = {}
    for price in sorted(prices, key=lambda price: price.from_at):
        by_market.setdefault((price.zone, price.instance_type), []).append(price)
    intervals = sorted(runs, key=lambda run: run.started_at)
    found: list[Charge] = []
    for rental in sorted(rentals, key=lambda rental: (rental.launched_at, rental.instance_id)):
        market = by_market.get((rental.zone, rental.instance_type)) or [_no_price(rental)]
        found += _charges_of(rental, market, intervals, now)
    return tuple(found)


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


def _charges_of(rental: Rental, market: Sequence[Price], runs: Sequence[RunInterval], now: float) -> list[Charge]:
    start, end = rental.launched_at, now if rental.ended_at is None else rental.ended_at
    cuts = {start, end}
    cuts |= {price.from_at for price in market[1:]}
    cuts |= {run.started_at for run in runs} | {run.ended_at for run in runs if run.ended_at is not None}
    edges = sorted(cut for cut in cuts if start <= cut <= end)
    return [
        _charge(rental, _price_at(market, from_at), _run_at(runs, from_at), from_at, to_at)
        for from_at, to_at in itertools.pairwise(edges)
    ]


def _charge(rental: Rental, price: Price, run_id: str | None, from_at: float, to_at: float) -> Charge:
    paid = price.spot_microusd_per_hour if rental.is_spot else price.on_demand_microusd_per_hour
    return Charge(
        instance_id=rental.instance_id,
        node_id=rental.node_id,
        zone=rental.zone,
        instance_type=rental.instance_type,
        run_id=run_id,
        from_at=from_at,
        to_at=to_at,
        spot_microusd_per_hour=paid,
        on_demand_microusd_per_hour=price.on_demand_microusd_per_hour,
        price_source=price.price_source,
        spot_microusd=_cost(to_at - from_at, paid),
        on_demand_microusd=_cost(to_at - from_at, price.on_demand_microusd_per_hour),
    )


def _cost(seconds: float, microusd_per_hour: int) -> int:
    """Whole micro-dollars, computed in integers from whole microseconds, halves up."""
    per_hour = 3600 * 1_000_000
    return (round(seconds * 1_000_000) * microusd_per_hour * 2 + per_hour) // (2 * per_hour)


def _price_at(market: Sequence[Price], at: float) -> Price:
    return next((price for price in reversed(market) if price.from_at <= at), market[0])


def _run_at(runs: Sequence[RunInterval], at: float) -> str | None:
    for run in reversed(runs):
        if run.started_at <= at and (run.ended_at is None or at < run.ended_at):
            return run.run_id
    return None
