"""A cluster at a glance: what it is, what it costs, how its figures went. Cheap enough for a look every second."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from sqlalchemy import Connection, select

from bamboo_cli.coordinator import money, schema
from bamboo_cli.coordinator.known import Known, cluster_state, entities, node_statuses
from bamboo_cli.coordinator.lock import is_locked
from bamboo_cli.coordinator.rows import Entity
from bamboo_cli.coordinator.run_status import run_status
from bamboo_cli.coordinator.status import ClusterStatus, CoordinatorStatus, RunStatus, Series, StoryEvent
from bamboo_cli.costs import ledger, report

MONEY_S = 5.0
"""Who looks again and again adds the ledger up this often."""
NUM_LOSSES = 120
"""More than a line has bars are drawn as fewer."""
NUM_RATES = 60
"""A bar each; a narrower line has the newest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """Up to ``at``."""

    at: float
    total: report.Amount
    microusd_per_hour: int


@dataclass(slots=True)
class Seen:
    """What one look leaves to the next."""

    decoded: dict[str, tuple[str, Entity]] = field(default_factory=dict)
    paid: Paid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    cluster: ClusterStatus
    series: Series
    story: tuple[StoryEvent, ...]
    """The newest events, oldest first."""


def look(connection: Connection, path: Path, now: float, story: tuple[StoryEvent, ...], seen: Seen) -> Look:
    known = entities(connection, seen.decoded)
    if seen.paid is None or not 0.0 <= now - seen.paid.at < MONEY_S:
        seen.paid = paid(connection, known, now)
    cluster = cluster_status(connection, path, known, seen.paid, now)
    series = Series() if cluster.run is None else _series(connection, cluster.run)
    return Look(cluster=cluster, series=series, story=story)


def paid(connection: Connection, known: Known, now: float) -> Paid:
    rentals, prices = money.rentals(connection), money.prices(connection)
    charges = ledger.charges(rentals, prices, money.intervals(known), now)
    return Paid(
        at=now,
        total=report.amount(charges),
        microusd_per_hour=ledger.paid_now(rentals, prices, now),
    )


def cluster_status(connection: Connection, path: Path, known: Known, spent: Paid, now: float) -> ClusterStatus:
    row = connection.execute(select(schema.cluster)).one()
    run = run_status(connection, known, known.runs[-1], now) if known.runs else None
    projected = None if run is None or run.ended_at is not None else _projection(run, spent, now)
    return ClusterStatus(
        name=row.name,
        cluster_id=row.cluster_id,
        cloud=row.cloud,
        state=cluster_state(known.cluster),
        job_text=row.job_text,
        job=row.job,
        wanted_nodes=row.wanted_nodes,
        created_at=row.created_at,
        coordinator=CoordinatorStatus(
            alive=is_locked(path.parent), pid=row.coordinator_pid, heartbeat_at=row.heartbeat_at, port=row.port
        ),
        nodes=node_statuses(connection, known),
        plan=known.runs[-1].plan if known.runs else None,
        run=run,
        spot_microusd=spent.total.spot_microusd,
        on_demand_microusd=spent.total.on_demand_microusd,
        on_demand_note=spent.total.on_demand_note,
        gives_back_at=None if known.cluster.closing else known.cluster.gives_back_at,
        gave_up=known.cluster.gave_up,
        microusd_per_hour=spent.microusd_per_hour,
        hours_left=projected.hours_left if projected is not None else None,
        projected_microusd=projected.total_microusd if projected is not None else None,
    )


def _projection(run: RunStatus, spent: Paid, now: float) -> report.Projection | None:
    return report.projection(
        spent.total.spot_microusd,
        steps_left=run.num_steps - run.committed_steps,
        num_steps=max(0, run.committed_steps - run.begins_at_step),
        wall_s=now - run.started_at,
        microusd_per_hour=spent.microusd_per_hour,
    )


def _series(connection: Connection, run: RunStatus) -> Series:
    first, last = run.begins_at_step, run.committed_steps - 1
    if last < first:
        return Series()
    return Series(losses=_losses(connection, run.run_id, first, last), samples_per_s=_rates(connection, run, last))


def _losses(connection: Connection, run_id: str, first: int, last: int) -> tuple[float | None, ...]:
    num = min(NUM_LOSSES, last - first + 1)
    wanted = [first + round(i * (last - first) / max(1, num - 1)) for i in range(num)]
    table = schema.steps
    rows = connection.execute(
        select(table.c.step, table.c.loss).where(table.c.run_id == run_id, table.c.step.in_(wanted))
    )
    told = {row.step: float("nan") if row.loss is None else row.loss for row in rows}
    return tuple(told.get(step) for step in wanted)


def _rates(connection: Connection, run: RunStatus, last: int) -> tuple[float | None, ...]:
    """Steps that were told of at once, after a silence, have only their own time."""
    table = schema.steps
    columns = (table.c.num_samples, table.c.step_s, table.c.committed_at)
    query = select(*columns).where(table.c.run_id == run.run_id, table.c.step <= last)
    newest_first = connection.execute(query.order_by(table.c.step.desc()).limit(NUM_RATES + 1)).all()
    rows = newest_first[::-1]
    found: list[float | None] = []
    for before, row in pairwise(rows):
        took_s = max(row.step_s, row.committed_at - before.committed_at)
        found.append(row.num_samples / took_s if took_s > 0 else None)
    return tuple(found)
