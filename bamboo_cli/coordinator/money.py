"""What a bill is made from, as it is in ``state.db``; bamboo_cli.costs makes it."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bamboo_trainer.plan import node_id_of
from sqlalchemy import Connection, func, select

from bamboo_cli.coordinator import schema
from bamboo_cli.coordinator.crossing import crossing_bytes
from bamboo_cli.coordinator.known import Known
from bamboo_cli.coordinator.status import RunStatus
from bamboo_cli.costs import ledger
from bamboo_cli.costs.ledger import Charge, Price, Rental, RunInterval
from bamboo_cli.costs.periods import midnights
from bamboo_cli.costs.report import Placing

STEPS_LOOKED_AT = 200
CHARGED_BY_ZONE = ("aws",)
"""Clouds on which traffic between zones costs."""
# The columns are the fields of Rental and Price, in order.
_RENTALS = (
    "SELECT instance_id, node_id, zone, instance_type, launched_at, ended_at, {is_spot} FROM instances "
    "WHERE launched_at IS NOT NULL"
)
_PRICES = (
    "SELECT zone, instance_type, from_at, spot_microusd_per_hour, on_demand_microusd_per_hour, price_source FROM prices"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Seconds since the epoch."""

    since: float = -math.inf
    until: float = math.inf

    def holds(self, begin: float, end: float) -> bool:
        return self.since <= begin and end <= self.until

    def holds_some_of(self, begin: float, end: float) -> bool:
        return begin < self.until and end > self.since


ALL_TIME = Period()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMoney:
    """Of one state file, in a period."""

    cluster_id: str
    cloud: str
    job: Mapping[str, Any]
    charges: tuple[Charge, ...]
    placings: Mapping[str, tuple[Placing, ...]]
    """By run."""
    committed: Mapping[str, tuple[int, int, int]]
    """By run, of those that lie in the period in part: steps, samples and tokens in it."""
    microusd_per_hour: int
    """Of instances that run."""
    usual_step_s: Mapping[str, float]
    """By run: the median of steps all over it."""
    crossing_bytes: Mapping[str, int]
    """By run, of its whole life: estimated to have gone from one zone to another. Of clouds that charge for it."""
    runs: tuple[RunStatus, ...] = ()
    """Oldest first; also those outside the period."""


def read(connection: Connection, known: Known, *, now: float, period: Period) -> ClusterMoney:
    cluster = connection.execute(select(schema.cluster)).one()
    rented, runs, placed = rentals(connection), intervals(known), placings(connection)
    until = min(now, period.until)
    begin = max(period.since, min((rental.launched_at for rental in rented), default=until))
    cuts = {placing.at for listed in placed.values() for placing in listed}
    cuts |= {moment for moment in (period.since, period.until) if math.isfinite(moment)}
    cuts |= set(midnights(begin, until))
    listed = prices(connection)
    charges = ledger.charges(rented, listed, runs, now, cuts=sorted(cuts), cluster_id=cluster.cluster_id)
    spans = {run.run_id: (run.started_at, now if run.ended_at is None else run.ended_at) for run in runs}
    return ClusterMoney(
        cluster_id=cluster.cluster_id,
        cloud=cluster.cloud,
        job=cluster.job,
        charges=ledger.within(charges, period.since, period.until),
        placings=placed,
        committed={
            run_id: committed(connection, run_id, period)
            for run_id, span in spans.items()
            if period.holds_some_of(*span) and not period.holds(*span)
        },
        microusd_per_hour=ledger.paid_now(rented, listed, now),
        usual_step_s={run.run_id: usual_step_s(connection, run.run_id) for run in runs},
        crossing_bytes=_crossing(connection, known, rented) if cluster.cloud in CHARGED_BY_ZONE else {},
    )


def _crossing(connection: Connection, known: Known, rented: Iterable[Rental]) -> Mapping[str, int]:
    zones = {rental.node_id: rental.zone for rental in rented}
    return {
        run.run_id: crossing_bytes(connection, run.run_id, run.costs, progress.committed_step + 1, zones)
        for run in known.runs
        if (progress := known.progress.get(run.run_id)) is not None
    }


def spent_on(connection: Connection, run_id: str, started_at: float, now: float) -> int:
    """Micro-dollars, of a run that goes on."""
    going = [RunInterval(run_id=run_id, started_at=started_at)]
    charges = ledger.charges(rentals(connection), prices(connection), going, now)
    return sum(charge.spot_microusd for charge in charges if charge.run_id == run_id)


def rentals(connection: Connection) -> list[Rental]:
    """Everything that was launched. In plain SQL: there may be very many rows."""
    columns = {row.name for row in connection.exec_driver_sql("PRAGMA table_info(instances)")}
    rows = connection.exec_driver_sql(_RENTALS.format(is_spot="is_spot" if "is_spot" in columns else "1")).all()
    return [Rental._make((*facts, bool(is_spot))) for *facts, is_spot in rows]


def prices(connection: Connection) -> list[Price]:
    return list(map(Price._make, connection.exec_driver_sql(_PRICES).all()))


def intervals(known: Known) -> list[RunInterval]:
    return [RunInterval(run_id=run.run_id, started_at=run.started_at, ended_at=run.ended_at) for run in known.runs]


def placings(connection: Connection) -> Mapping[str, tuple[Placing, ...]]:
    """By run."""
    found: dict[str, list[Placing]] = defaultdict(list)
    rows = connection.exec_driver_sql("SELECT run_id, made_at, plan FROM plans ORDER BY generation")
    for run_id, made_at, plan in rows:
        found[run_id].append(Placing(at=made_at, node_ids=_hosts(json.loads(plan))))
    return {run_id: tuple(listed) for run_id, listed in found.items()}


def _hosts(plan: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(node_id_of(stage["host"]) for pipeline in plan["pipelines"] for stage in pipeline["stages"])


def usual_step_s(connection: Connection, run_id: str) -> float:
    """Of steps that are spread evenly over the whole run; so it does not change with what the latest ones met. 0: there
    are none."""
    table = schema.steps
    of_run = table.c.run_id == run_id
    # one by one, which SQLite answers from the ends of its index; together it would go through all of it
    first, last = (connection.scalar(select(end(table.c.step)).where(of_run)) for end in (func.min, func.max))
    if first is None or last is None:
        return 0.0
    some = range(first, last + 1, (last - first) // STEPS_LOOKED_AT + 1)
    found = connection.execute(select(table.c.step_s).where(of_run, table.c.step.in_(some))).scalars().all()
    return median(found) if found else 0.0


def committed(connection: Connection, run_id: str, period: Period) -> tuple[int, int, int]:
    """Steps, samples and tokens."""
    table = schema.steps
    sums = select(
        func.count(), func.coalesce(func.sum(table.c.num_samples), 0), func.coalesce(func.sum(table.c.num_tokens), 0)
    )
    row = connection.execute(
        sums.where(table.c.run_id == run_id, table.c.committed_at > period.since, table.c.committed_at <= period.until)
    ).one()
    return int(row[0]), int(row[1]), int(row[2])
