"""What commands read from ``state.db``. Works whether or not a coordinator is there, and changes nothing.

Every function takes the path of the file and raises StateError as ``store.open_for_reading``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import Plan
from pydantic import TypeAdapter
from sqlalchemy import Column, Connection, RowMapping, Select, Table, literal, or_, select

from bamboo_cli.coordinator import looking, money, schema
from bamboo_cli.coordinator.entities import Cluster
from bamboo_cli.coordinator.known import Known, cluster_state, entities
from bamboo_cli.coordinator.money import ALL_TIME, ClusterMoney, Period
from bamboo_cli.coordinator.rows import decode_row
from bamboo_cli.coordinator.run_status import run_status
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import ENDED
from bamboo_cli.coordinator.status import (
    ClusterStatus,
    Rented,
    RunLedger,
    RunStatus,
    StepRow,
    StoryEvent,
)
from bamboo_cli.coordinator.store import ClusterState, open_for_reading, reading, understood
from bamboo_cli.coordinator.story_kinds import StoryKind
from bamboo_cli.costs import ledger
from bamboo_cli.errors import StateError
from bamboo_cli.signals import unbroken


def read_status(path: Path, *, now: float) -> ClusterStatus:
    """``now``: up to when instances that still run are billed, in seconds since the epoch."""
    with _connection(path) as connection:
        known = entities(connection)
        return looking.cluster_status(connection, path, known, looking.paid(connection, known, now), now)


def read_look(path: Path, *, now: float, num_events: int, before: looking.Seen | None = None) -> looking.Look:
    """The cluster, what its figures were lately, and the newest so many events, at one instant.

    ``before``: what the look before this one has left, for whoever looks again and again.
    """
    table = schema.events
    newest = select(table).order_by(table.c.event_id.desc()).limit(num_events)
    with _connection(path) as connection:
        return looking.look(connection, path, now, _events(connection, newest), before or looking.Seen())


def read_state(path: Path) -> ClusterState:
    """Of the cluster, and nothing else of it."""
    row = select(schema.machine.c.body).where(schema.machine.c.name == "cluster")
    with _connection(path) as connection:
        body = connection.execute(row).scalar_one_or_none()
        return cluster_state(Cluster() if body is None else decode_row("cluster", body))


def read_cluster_id(path: Path) -> str:
    with _connection(path) as connection:
        return str(connection.execute(select(schema.cluster.c.cluster_id)).scalar_one())


def read_runs(path: Path) -> tuple[RunStatus, ...]:
    """Oldest first."""
    with _connection(path) as connection:
        known = entities(connection)
        return tuple(run_status(connection, known, run) for run in known.runs)


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


def read_instances(path: Path) -> dict[str, str | None]:
    """The instance id of every node that ever was, by number; None: nothing is rented for it yet."""
    with _connection(path) as connection:
        return {node.node_id: node.instance_id or None for node in entities(connection).nodes}


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


def read_commits(
    path: Path, run_id: str, begin: float, end: float, *, num_before: int
) -> tuple[tuple[int, float], ...]:
    """Steps and when they were committed, in the order of time: between these moments, so many before them, and the
    first one after them."""
    table = schema.steps
    commits = select(table.c.step, table.c.committed_at).where(table.c.run_id == run_id)
    at = table.c.committed_at
    queries = (
        commits.where(at <= begin).order_by(at.desc()).limit(num_before),
        commits.where(at > begin, at <= end),
        commits.where(at > end).order_by(at).limit(1),
    )
    with _connection(path) as connection:
        found = [(row.step, row.committed_at) for query in queries for row in connection.execute(query)]
    return tuple(sorted(found, key=lambda commit: commit[1]))


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
            run=run_status(connection, known, run),
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
        return replace(found, runs=tuple(run_status(connection, known, run) for run in known.runs))


def read_charges(path: Path, *, now: float) -> tuple[ledger.Charge, ...]:
    """The ledger up to ``now``, seconds since the epoch. Feed it to ``bamboo_cli.costs.report``."""
    with _connection(path) as connection:
        return _charges(connection, entities(connection), now)


@contextmanager
def _connection(path: Path) -> Iterator[Connection]:
    with unbroken():
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
    decoder: TypeAdapter[Plan] = TypeAdapter(Plan)
    return tuple(decoder.validate_python(plan) for plan in connection.execute(query).scalars())


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


def _charges(connection: Connection, known: Known, now: float) -> tuple[ledger.Charge, ...]:
    return ledger.charges(money.rentals(connection), money.prices(connection), money.intervals(known), now)
