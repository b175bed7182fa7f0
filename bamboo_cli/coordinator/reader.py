"""What commands read from ``state.db``. Works whether or not a coordinator is there, and changes nothing.

Every function takes the path of the file and raises StateError as ``store.open_for_reading``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.plan import Plan
from pydantic import TypeAdapter
from sqlalchemy import Column, Connection, RowMapping, Select, Table, literal, or_, select

from bamboo_cli.coordinator import money, schema
from bamboo_cli.coordinator.budget import most_used
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.known import Known, cluster_state, entities, node_statuses
from bamboo_cli.coordinator.lock import is_locked
from bamboo_cli.coordinator.money import ALL_TIME, ClusterMoney, Period
from bamboo_cli.coordinator.progress import usual_step_s
from bamboo_cli.coordinator.run_entities import Checkpoints, Progress, Run
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import ENDED
from bamboo_cli.coordinator.status import (
    ClusterStatus,
    CoordinatorStatus,
    Rented,
    RunLedger,
    RunStatus,
    StepRow,
    StoryEvent,
)
from bamboo_cli.coordinator.store import open_for_reading, reading, understood
from bamboo_cli.costs import ledger
from bamboo_cli.costs.report import amount
from bamboo_cli.errors import StateError

RATE_STEPS = 10
"""Samples per second are averaged over so many steps."""

_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)
_SPEC: TypeAdapter[TrainingSpec] = TypeAdapter(TrainingSpec)


def read_status(path: Path, *, now: float) -> ClusterStatus:
    """``now``: up to when instances that still run are billed, in seconds since the epoch."""
    with _connection(path) as connection:
        row = connection.execute(select(schema.cluster)).one()
        known = entities(connection)
        spent = amount(_charges(connection, known, now))
        run = known.runs[-1] if known.runs else None
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
            plan=run.plan if run is not None else None,
            run=_run(connection, known, run, now) if run is not None else None,
            spot_microusd=spent.spot_microusd,
            on_demand_microusd=spent.on_demand_microusd,
            on_demand_note=spent.on_demand_note,
            gave_up=known.cluster.gave_up,
        )


def read_runs(path: Path) -> tuple[RunStatus, ...]:
    """Oldest first."""
    with _connection(path) as connection:
        known = entities(connection)
        return tuple(_run(connection, known, run) for run in known.runs)


def read_active_spec(path: Path) -> RunSpec | None:
    """What the run that goes on was asked to be; None when none does."""
    with _connection(path) as connection:
        runs = entities(connection).runs
        return runs[-1].spec if runs and runs[-1].state not in ENDED else None


def read_drills(path: Path, run_id: str) -> tuple[RunSpec, tuple[int, ...]]:
    """What the run was asked to be, and which of its drills struck. (Of its kills nobody lives to tell.)"""
    with _connection(path) as connection:
        run = next(run for run in entities(connection).runs if run.run_id == run_id)
        return run.spec, run.drills_struck


def read_plans(path: Path, run_id: str | None = None) -> tuple[Plan, ...]:
    """Every generation, oldest first."""
    with _connection(path) as connection:
        return _plans(connection, run_id)


def read_events(
    path: Path, after_id: int = 0, *, node: str | None = None, run: str | None = None, limit: int | None = None
) -> tuple[StoryEvent, ...]:
    """The story beyond ``after_id``, oldest first: ``node``: of that node, and what names it, such as a failover from
    it or to it. ``limit``: only the newest so many.
    """
    table = schema.events
    query = select(table).where(table.c.event_id > after_id).order_by(table.c.event_id.desc()).limit(limit)
    if node is not None:
        named = (literal(" ") + table.c.text + literal(" ")).op("GLOB")(
            f"*[^0-9A-Za-z-]{_as_it_is(node)}[^0-9A-Za-z-]*"
        )
        query = query.where(or_(table.c.node_id == node, named))
    if run is not None:
        query = query.where(table.c.run_id == run)
    with _connection(path) as connection:
        return _events(connection, query)


def _as_it_is(text: str) -> str:
    """In a GLOB pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def read_rented(path: Path) -> tuple[Rented, ...]:
    """All instances that the cluster ever had. Raises StateError."""
    table = schema.instances
    names = [field.name for field in fields(Rented)]
    with _connection(path) as connection:
        found = connection.execute(select(*(table.c[name] for name in names)).where(table.c.launched_at.is_not(None)))
        return tuple(Rented(**row._mapping) for row in found)


def read_refusal(path: Path) -> str | None:
    """Why the cloud refuses us, as the newest line about it says; None: it does not."""
    table = schema.events
    newest = select(table).where(table.c.kind == StoryKind.CLOUD).order_by(table.c.event_id.desc()).limit(1)
    with _connection(path) as connection:
        found = _events(connection, newest)
    return found[0].text if found and "refused" in found[0].numbers else None


def read_steps(path: Path, run_id: str, after_step: int = -1) -> tuple[StepRow, ...]:
    """In order of steps; a step that was run again is there once, as it was committed last."""
    with _connection(path) as connection:
        return _steps(connection, run_id, after_step)


def read_ledger(path: Path, run_id: str) -> RunLedger | None:
    """All that is on record of a run, as it was at one instant; None where there is no such run."""
    table = schema.events
    restores = select(table).where(table.c.run_id == run_id, table.c.kind == StoryKind.RESTORE)
    with _connection(path) as connection:
        known = entities(connection)
        run = next((run for run in known.runs if run.run_id == run_id), None)
        if run is None:
            return None
        return RunLedger(
            run=_run(connection, known, run),
            training=run.training or run.spec.training,
            steps=_steps(connection, run_id, -1),
            plans=_plans(connection, run_id),
            restores=_events(connection, restores.order_by(table.c.event_id.desc())),
        )


def read_money(path: Path, *, now: float, period: Period = ALL_TIME) -> ClusterMoney:
    """Charges up to ``now`` or the period's end, cut as ``costs.report.bill`` wants them."""
    with _connection(path) as connection:
        known = entities(connection)
        found = money.read(connection, known, now=now, period=period)
        return replace(found, runs=tuple(_run(connection, known, run) for run in known.runs))


def read_charges(path: Path, *, now: float) -> tuple[ledger.Charge, ...]:
    """The ledger up to ``now``, seconds since the epoch. Feed it to ``bamboo_cli.costs.report``."""
    with _connection(path) as connection:
        return _charges(connection, entities(connection), now)


@contextmanager
def _connection(path: Path) -> Iterator[Connection]:
    engine = open_for_reading(path)
    try:
        with reading(engine) as connection, understood(path):
            yield connection
    finally:
        engine.dispose()


def _plans(connection: Connection, run_id: str | None) -> tuple[Plan, ...]:
    query = select(schema.plans.c.plan).order_by(schema.plans.c.generation)
    if run_id is not None:
        query = query.where(schema.plans.c.run_id == run_id)
    return tuple(_PLAN.validate_python(plan) for plan in connection.execute(query).scalars())


def _events(connection: Connection, newest_first: Select[Any]) -> tuple[StoryEvent, ...]:
    return tuple(StoryEvent(**row._mapping) for row in reversed(connection.execute(newest_first).all()))


def _steps(connection: Connection, run_id: str, after_step: int) -> tuple[StepRow, ...]:
    table = schema.steps
    query = select(*_columns(connection, table)).where(table.c.run_id == run_id, table.c.step > after_step)
    return tuple(_step_row(row._mapping) for row in connection.execute(query.order_by(table.c.step)))


def _columns(connection: Connection, table: Table) -> list[Column[Any]]:
    """Those that the file has: one that no coordinator of this version has opened yet lacks the newest."""
    there = {row.name for row in connection.exec_driver_sql(f"PRAGMA table_info({table.name})")}
    return [column for column in table.columns if column.name in there]


def _step_row(stored: RowMapping) -> StepRow:
    """Raises StateError."""
    row = dict(stored)
    try:
        fingerprint = {
            name: schema.unpack(row[name]) for name in ("losses", "square_norms") if row.get(name) is not None
        }
    except ValueError as error:
        raise StateError(
            f"the row of step {row['step']} of run {row['run_id']} is damaged: {error}",
            next_step="Nothing was changed. A copy of the state file from before may still have it.",
        ) from error
    numbers = {name: _number(row[name]) for name in ("loss", "gradient_norm")}
    return StepRow(**{**row, **numbers, **fingerprint})


def _number(stored: float | None) -> float:
    """SQLite stores NaN as NULL."""
    return float("nan") if stored is None else stored


def _run(connection: Connection, known: Known, run: Run, now: float | None = None) -> RunStatus:
    """``now``: for what is left of its limits."""
    progress = known.progress.get(run.run_id, Progress(run_id=run.run_id))
    checkpoints = known.checkpoints.get(run.run_id, Checkpoints(run_id=run.run_id))
    complete = checkpoints.complete
    training = run.training or run.spec.training
    table = schema.steps
    shown = select(table.c.step_s, table.c.num_samples, table.c.learning_rate)
    query = shown.where(table.c.run_id == run.run_id, table.c.step <= progress.committed_step)
    newest = connection.execute(query.order_by(table.c.step.desc()).limit(RATE_STEPS)).all()
    took = sum(step.step_s for step in newest)
    return RunStatus(
        run_id=run.run_id,
        state=run.state,
        spec=_SPEC.dump_python(training, mode="json"),
        num_steps=training.num_steps,
        min_nodes=run.spec.min_nodes,
        started_at=run.started_at,
        ended_at=run.ended_at,
        committed_steps=progress.committed_step + 1,
        first_loss=progress.first_loss,
        loss=progress.loss,
        learning_rate=newest[0].learning_rate if newest else None,
        samples_per_s=sum(step.num_samples for step in newest) / took if took > 0 else None,
        num_samples=progress.num_samples,
        num_tokens=progress.num_tokens,
        preemptions=progress.preemptions,
        failovers=progress.failovers,
        reconfigurations=progress.reconfigurations,
        restores=progress.restores,
        steps_rerun=progress.steps_rerun,
        pause_s=progress.pause_s,
        checkpoint_step=complete[-1] if complete else None,
        model_url=run.model_url or None,
        weights_sha256=run.weights_sha256 or None,
        reason=": ".join(part for part in (run.reason, run.detail) if part),
        checkpoint_steps=complete,
        checkpoint_trouble=checkpoints.trouble,
        recipe_sha256=run.spec.recipe_sha256 or None,
        begins_at_step=run.spec.begins_at_step,
        usual_step_s=usual_step_s(progress) or None,
        limit=_limit(run, progress, now),
    )


def _limit(run: Run, progress: Progress, now: float | None) -> str:
    used = most_used(run, progress, now) if now is not None and run.ended_at is None else None
    return "" if used is None else used.text


def _charges(connection: Connection, known: Known, now: float) -> tuple[ledger.Charge, ...]:
    return ledger.charges(money.rentals(connection), money.prices(connection), money.intervals(known), now)
