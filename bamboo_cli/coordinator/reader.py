"""What commands read from ``state.db``. Works whether or not a coordinator is there, and changes nothing.

Every function takes the path of the file and raises StateError as ``store.open_for_reading``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import NodeId, Plan, WorkerId
from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, func, select

from bamboo_cli.coordinator import schema
from bamboo_cli.coordinator.lock import is_locked
from bamboo_cli.coordinator.store import ClusterState, open_for_reading, reading
from bamboo_cli.costs import ledger

RATE_STEPS = 10
"""Samples per second are averaged over so many steps."""

_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    alive: bool
    """The lock is held: whoever would start another one would be refused."""
    pid: int | None
    heartbeat_at: float | None
    """About once a second while it is well."""
    port: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    node_id: NodeId
    state: str
    zone: str
    instance_type: str
    instance_id: str | None
    address: str | None
    worker_id: WorkerId | None
    worker_state: str | None
    hosts: tuple[tuple[int, int], ...]
    """(pipeline_index, stage_index) of the stages that it runs under the newest plan."""
    shadows: tuple[tuple[int, int], ...]
    notice_deadline: float | None
    last_beat_at: float | None
    reason: str
    """Why it is in this state, where that is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    run_id: str
    state: str
    spec: dict[str, Any]
    """The TrainingSpec as JSON."""
    num_steps: int
    started_at: float
    ended_at: float | None
    committed_steps: int
    """Steps 0 … n-1 are committed."""
    first_loss: float | None
    loss: float | None
    learning_rate: float | None
    samples_per_s: float | None
    num_samples: int
    num_tokens: int
    preemptions: int
    failovers: int
    reconfigurations: int
    restores: int
    steps_rerun: int
    pause_s: float
    checkpoint_step: int | None
    """The newest complete checkpoint."""
    model_url: str | None
    weights_sha256: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    name: str
    cluster_id: str
    cloud: str
    state: ClusterState
    job_text: str
    job: dict[str, Any]
    wanted_nodes: int
    created_at: float
    coordinator: CoordinatorStatus
    nodes: tuple[NodeStatus, ...]
    """All that ever were, by number."""
    plan: Plan | None
    """The newest."""
    run: RunStatus | None
    """The newest."""
    spot_microusd: int
    on_demand_microusd: int
    """What the same machine time would have cost on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent:
    event_id: int
    at: float
    kind: str
    node_id: NodeId | None
    run_id: str | None
    step: int | None
    text: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    run_id: str
    step: int
    generation: int
    loss: float
    learning_rate: float
    step_s: float
    num_samples: int
    num_tokens: int
    committed_at: float


def read_status(path: Path, *, now: float) -> ClusterStatus:
    """``now``: up to when instances that still run are billed, in seconds since the epoch."""
    with _connection(path) as connection:
        row = connection.execute(select(schema.cluster)).one()
        plan = _newest_plan(connection)
        runs = _runs(connection)
        bill = _charges(connection, now)
        return ClusterStatus(
            name=row.name,
            cluster_id=row.cluster_id,
            cloud=row.cloud,
            state=ClusterState(row.state),
            job_text=row.job_text,
            job=row.job,
            wanted_nodes=row.wanted_nodes,
            created_at=row.created_at,
            coordinator=CoordinatorStatus(
                alive=is_locked(path.parent), pid=row.coordinator_pid, heartbeat_at=row.heartbeat_at, port=row.port
            ),
            nodes=_nodes(connection, plan),
            plan=plan,
            run=runs[-1] if runs else None,
            spot_microusd=sum(charge.spot_microusd for charge in bill),
            on_demand_microusd=sum(charge.on_demand_microusd for charge in bill),
        )


def read_runs(path: Path) -> tuple[RunStatus, ...]:
    """Oldest first."""
    with _connection(path) as connection:
        return _runs(connection)


def read_plans(path: Path, run_id: str | None = None) -> tuple[Plan, ...]:
    """Every generation, oldest first."""
    query = select(schema.plans.c.plan).order_by(schema.plans.c.generation)
    if run_id is not None:
        query = query.where(schema.plans.c.run_id == run_id)
    with _connection(path) as connection:
        return tuple(_PLAN.validate_python(plan) for plan in connection.execute(query).scalars())


def read_events(
    path: Path, after_id: int = 0, *, node: str | None = None, run: str | None = None, limit: int | None = None
) -> tuple[StoryEvent, ...]:
    """The story beyond ``after_id``, oldest first. ``limit``: only the newest so many."""
    table = schema.events
    query = select(table).where(table.c.event_id > after_id).order_by(table.c.event_id.desc()).limit(limit)
    if node is not None:
        query = query.where(table.c.node_id == node)
    if run is not None:
        query = query.where(table.c.run_id == run)
    with _connection(path) as connection:
        rows = connection.execute(query).all()
    return tuple(StoryEvent(**row._mapping) for row in reversed(rows))


def read_steps(path: Path, run_id: str, after_step: int = -1) -> tuple[StepRow, ...]:
    """In order of steps; a step that was run again is there once, as it was committed last."""
    table = schema.steps
    query = select(table).where(table.c.run_id == run_id, table.c.step > after_step).order_by(table.c.step)
    with _connection(path) as connection:
        return tuple(
            StepRow(**{**row._mapping, "loss": float("nan") if row.loss is None else row.loss})
            for row in connection.execute(query)
        )


def read_charges(path: Path, *, now: float) -> tuple[ledger.Charge, ...]:
    """The ledger up to ``now``, seconds since the epoch. Feed it to ``bamboo_cli.costs.report``."""
    with _connection(path) as connection:
        return _charges(connection, now)


@contextmanager
def _connection(path: Path) -> Iterator[Connection]:
    engine = open_for_reading(path)
    try:
        with reading(engine) as connection:
            yield connection
    finally:
        engine.dispose()


def _newest_plan(connection: Connection) -> Plan | None:
    query = select(schema.plans.c.plan).order_by(schema.plans.c.generation.desc()).limit(1)
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else _PLAN.validate_python(found)


def _nodes(connection: Connection, plan: Plan | None) -> tuple[NodeStatus, ...]:
    rows = connection.execute(select(schema.nodes)).all()
    return tuple(_node(row, plan) for row in sorted(rows, key=lambda row: (len(row.node_id), row.node_id)))


def _node(row: Row[Any], plan: Plan | None) -> NodeStatus:
    working = plan is not None and row.worker_id is not None
    hosted = plan.hosted_by(row.worker_id) if plan is not None and working else ()
    shadowed = plan.shadowed_by(row.worker_id) if plan is not None and working else ()
    return NodeStatus(
        **row._mapping,
        hosts=tuple((stage.pipeline_index, stage.stage_index) for stage in hosted),
        shadows=tuple((stage.pipeline_index, stage.stage_index) for stage in shadowed),
    )


def _runs(connection: Connection) -> tuple[RunStatus, ...]:
    rows = connection.execute(select(schema.runs).order_by(schema.runs.c.started_at, schema.runs.c.run_id))
    return tuple(_run(connection, row) for row in rows)


def _run(connection: Connection, row: Row[Any]) -> RunStatus:
    table = schema.steps
    mine = table.c.run_id == row.run_id
    totals = connection.execute(
        select(func.max(table.c.step), func.sum(table.c.num_samples), func.sum(table.c.num_tokens)).where(mine)
    ).one()
    newest = connection.execute(select(table).where(mine).order_by(table.c.step.desc()).limit(RATE_STEPS)).all()
    first_loss = connection.execute(
        select(table.c.loss).where(mine).order_by(table.c.step).limit(1)
    ).scalar_one_or_none()
    saved = schema.checkpoints
    checkpoint = select(func.max(saved.c.step)).where(saved.c.run_id == row.run_id, saved.c.pruned.is_(False))
    took = sum(step.step_s for step in newest)
    return RunStatus(
        **row._mapping,
        num_steps=int(row.spec["num_steps"]),
        committed_steps=0 if totals[0] is None else totals[0] + 1,
        first_loss=first_loss,
        loss=newest[0].loss if newest else None,
        learning_rate=newest[0].learning_rate if newest else None,
        samples_per_s=sum(step.num_samples for step in newest) / took if took > 0 else None,
        num_samples=totals[1] or 0,
        num_tokens=totals[2] or 0,
        checkpoint_step=connection.execute(checkpoint).scalar_one(),
    )


def _charges(connection: Connection, now: float) -> tuple[ledger.Charge, ...]:
    table = schema.instances
    launched = connection.execute(select(table).where(table.c.launched_at.is_not(None)))
    rentals = [
        ledger.Rental(
            instance_id=row.instance_id,
            node_id=row.node_id,
            zone=row.zone,
            instance_type=row.instance_type,
            launched_at=row.launched_at,
            ended_at=row.ended_at,
        )
        for row in launched
    ]
    prices = [ledger.Price(**row._mapping) for row in connection.execute(select(schema.prices))]
    runs = [
        ledger.RunInterval(run_id=row.run_id, started_at=row.started_at, ended_at=row.ended_at)
        for row in connection.execute(select(schema.runs))
    ]
    return ledger.charges(rentals, prices, runs, now)
