"""What a cluster cost, summed up for people: by run, zone, type and node, beside the on-demand price. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bamboo_cli.costs.ledger import Charge
from bamboo_cli.providers.base import ON_DEMAND

MILLION = 1_000_000


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
class RunFacts:
    """What a run did with its money. ``wall_s``: from its start to its end, or to now."""

    run_id: str
    num_steps: int
    """Committed."""
    num_samples: int
    num_tokens: int
    wall_s: float
    pause_s: float
    steps_rerun: int = 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    total: Amount
    idle: Amount
    """Rented while no run was on: booting, waiting, going."""
    runs: tuple[RunBill, ...]
    by_zone: tuple[tuple[str, Amount], ...]
    by_type: tuple[tuple[str, Amount], ...]
    by_node: tuple[tuple[str, Amount], ...]
    price_sources: tuple[str, ...]
    """As offers have them, or that a price is unknown."""


def amount(charges: Iterable[Charge]) -> Amount:
    listed = tuple(charges)
    return Amount(
        seconds=sum(charge.seconds for charge in listed),
        spot_microusd=sum(charge.spot_microusd for charge in listed),
        on_demand_microusd=sum(charge.on_demand_microusd for charge in listed),
        on_demand_note="; ".join(dict.fromkeys(note for note in map(_note, listed) if note)),
    )


def _note(charge: Charge) -> str:
    return charge.price_source.partition(ON_DEMAND)[2]


def bill(charges: tuple[Charge, ...], runs: Iterable[RunFacts]) -> Bill:
    """Runs in the order given; zones, types and nodes in the order in which they first cost something."""
    return Bill(
        total=amount(charges),
        idle=amount(charge for charge in charges if charge.run_id is None),
        runs=tuple(run_bill(charges, facts) for facts in runs),
        by_zone=_grouped(charges, lambda charge: charge.zone),
        by_type=_grouped(charges, lambda charge: charge.instance_type),
        by_node=_grouped(charges, lambda charge: charge.node_id),
        price_sources=tuple(dict.fromkeys(charge.price_source for charge in charges)),
    )


def run_bill(charges: Iterable[Charge], facts: RunFacts) -> RunBill:
    spent = amount(charge for charge in charges if charge.run_id == facts.run_id)
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
    )


def _per(spent: Amount, count: int, unit: int = 1) -> float | None:
    return spent.spot_microusd * unit / count if count else None


def _grouped(charges: tuple[Charge, ...], key: Callable[[Charge], str]) -> tuple[tuple[str, Amount], ...]:
    groups: dict[str, list[Charge]] = {}
    for charge in charges:
        groups.setdefault(key(charge), []).append(charge)
    return tuple((name, amount(group)) for name, group in groups.items())
