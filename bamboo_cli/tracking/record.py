"""What is on record of a run beyond a position, from the state file, as trackers are told it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, or_, select

from bamboo_cli.coordinator import asked, money, schema
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.rows import decode_row
from bamboo_cli.coordinator.run_entities import Progress, Run
from bamboo_cli.coordinator.states import ENDED
from bamboo_cli.coordinator.store import RequestKind
from bamboo_cli.costs import ledger
from bamboo_cli.costs.ledger import Rental, RunInterval
from bamboo_cli.tracking.points import Note, Point
from bamboo_cli.tracking.position import Position

MOST = 500
"""Steps, and lines of the story, that are told at a time."""
TOLD = (
    StoryKind.RUN,
    StoryKind.NOTICE,
    StoryKind.PREEMPTION,
    StoryKind.LOSS,
    StoryKind.FAILOVER,
    StoryKind.RECONFIGURATION,
    StoryKind.RESTORE,
    StoryKind.HANDOVER,
    StoryKind.CHECKPOINT,
    StoryKind.DRILL,
    StoryKind.BUDGET,
    StoryKind.WAIT,
)
"""Lines of the story that are about the training, or about why it stood still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``position``: once it is told."""

    points: tuple[Point, ...] = ()
    notes: tuple[Note, ...] = ()
    rewind_to: int | None = None
    position: Position
    awaited: int | None = None
    """A committed step of which nobody has told so far; nor may anybody ever."""
    state: str
    """Of the run."""

    @property
    def is_last(self) -> bool:
        """The run has ended, and there is nothing behind it."""
        return self.position.over

    @property
    def is_empty(self) -> bool:
        return not self.points and not self.notes and self.rewind_to is None


def run_of(connection: Connection, run_id: str) -> Run:
    table, name = schema.machine, f"run/{run_id}"
    found: Run = decode_row(name, connection.execute(select(table.c.body).where(table.c.name == name)).scalar_one())
    return found


def job_of(connection: Connection, run_id: str) -> tuple[Mapping[str, Any], str]:
    """The job of the run, and its text: as it was asked for, else the cluster's."""
    cluster, table = connection.execute(select(schema.cluster)).one(), schema.requests
    for row in connection.execute(select(table).where(table.c.kind == RequestKind.TRAIN)):
        if asked.run_id_of(cluster.cluster_id, row.request_id) == run_id:
            return row.payload["job"], str(row.payload.get("job_text", ""))
    return cluster.job, cluster.job_text


def read(connection: Connection, run: Run, position: Position, *, rewinds: bool, patient: bool) -> Batch:
    """All in one view of the file. ``rewinds``: the tracker takes back steps that are run again; else it keeps what it
    was told first, which has the same bits. ``patient``: wait for steps that nobody has told of so far.
    """
    progress, is_over = _progress(connection, run.run_id), run.state in ENDED
    events = _events(connection, run, position.event_id)
    rewind_to = _rewind(events, position.next_step) if rewinds else None
    next_step = position.next_step if rewind_to is None else rewind_to
    end = max(next_step, progress.committed_step + 1)
    awaited = next((first for first, _ in progress.untold if first >= next_step), None)
    if awaited is not None and patient and not is_over:
        end = awaited
    rows = _steps(connection, run.run_id, next_step, end)
    if len(rows) == MOST:
        end = rows[-1]["step"] + 1
    if rewinds and end == next_step and not is_over:
        # A new start takes back what is told at the next step and later: so nothing is, before that step itself.
        return Batch(position=position, awaited=awaited, state=run.state)
    points, spent = _points(connection, run, position, rows)
    return Batch(
        points=points,
        notes=tuple(_note(event, next_step, end - 1) for event in events),
        rewind_to=rewind_to,
        position=replace(
            position,
            next_step=end,
            event_id=events[-1].event_id if events else position.event_id,
            microusd=spent,
            over=is_over and MOST not in (len(rows), len(events)),
        ),
        awaited=awaited,
        state=run.state,
    )


def _rewind(events: Sequence[Any], next_step: int) -> int | None:
    """The first step that has to be taken back."""
    back_to = min((e.step for e in events if e.kind == StoryKind.RESTORE and e.step is not None), default=next_step)
    return back_to if back_to < next_step else None


def _progress(connection: Connection, run_id: str) -> Progress:
    table, name = schema.machine, f"progress/{run_id}"
    body = connection.execute(select(table.c.body).where(table.c.name == name)).scalar_one_or_none()
    return Progress(run_id=run_id) if body is None else decode_row(name, body)


def _events(connection: Connection, run: Run, after_id: int) -> Sequence[Any]:
    """Of the run; of nodes and the cloud, while it was on."""
    table = schema.events
    until = math.inf if run.ended_at is None else run.ended_at
    others = table.c.run_id.is_(None) & table.c.at.between(run.started_at, until)
    query = select(table).where(table.c.event_id > after_id, table.c.kind.in_(TOLD))
    query = query.where(or_(table.c.run_id == run.run_id, others))
    return connection.execute(query.order_by(table.c.event_id).limit(MOST)).all()


def _note(event: Any, first: int, last: int) -> Note:
    """At the step that it names, as far as that is among those that are told with it."""
    where = "" if event.node_id is None or event.node_id in event.text else f"{event.node_id}: "
    step = max(0, min(max(first, event.step or 0), last))
    return Note(step=step, at=event.at, kind=event.kind, text=f"{where}{event.text}")


def _steps(connection: Connection, run_id: str, first: int, end: int) -> Sequence[RowMapping]:
    """Rows of ``end`` and later ones are from before a restore."""
    table = schema.steps
    names = ("step", "generation", "loss", "gradient_norm", "learning_rate", "step_s", "num_samples", "num_tokens")
    columns = [table.c[name] for name in (*names, "committed_at")]
    query = select(*columns).where(table.c.run_id == run_id, table.c.step >= first, table.c.step < end)
    return connection.execute(query.order_by(table.c.step).limit(MOST)).mappings().all()


def _points(
    connection: Connection, run: Run, position: Position, rows: Sequence[RowMapping]
) -> tuple[tuple[Point, ...], int]:
    """And what was paid up to the last of them, in micro-dollars."""
    if not rows:
        return (), position.microusd
    rentals = money.rentals(connection)
    moments = sorted(row["committed_at"] for row in rows)
    paid = _paid(connection, run, rentals, moments)
    pipelines = _pipelines(connection, {row["generation"] for row in rows})
    points = tuple(
        Point(
            step=row["step"],
            at=row["committed_at"],
            values={
                **_training(row),
                "cost/usd": ledger.usd(position.before_microusd + paid[row["committed_at"]]),
                "cluster/nodes": _num_there(rentals, row["committed_at"]),
                **pipelines.get(row["generation"], {}),
            },
        )
        for row in rows
    )
    return points, position.before_microusd + paid[moments[-1]]


def _training(row: RowMapping) -> dict[str, float]:
    """SQLite stores NaN as NULL. Of a step that was told of by others than its reporter, no time is known."""
    values = {
        "train/loss": math.nan if row["loss"] is None else row["loss"],
        "train/gradient_norm": math.nan if row["gradient_norm"] is None else row["gradient_norm"],
    }
    if row["step_s"] > 0:
        values["train/learning_rate"] = row["learning_rate"]
        values["speed/step_s"] = row["step_s"]
        values["speed/samples_per_s"] = row["num_samples"] / row["step_s"]
        if row["num_tokens"]:
            values["speed/tokens_per_s"] = row["num_tokens"] / row["step_s"]
    return values


def _paid(connection: Connection, run: Run, rentals: Sequence[Rental], moments: Sequence[float]) -> Mapping[float, int]:
    """Micro-dollars that the run had cost by each moment, as the bill has it."""
    interval = RunInterval(run_id=run.run_id, started_at=run.started_at, ended_at=run.ended_at)
    charges = ledger.charges(rentals, money.prices(connection), [interval], moments[-1], cuts=moments)
    listed = sorted((c.to_at, c.spot_microusd) for c in charges if c.run_id == run.run_id)
    found, total, index = {}, 0, 0
    for moment in moments:
        while index < len(listed) and listed[index][0] <= moment:
            total += listed[index][1]
            index += 1
        found[moment] = total
    return found


def _num_there(rentals: Sequence[Rental], moment: float) -> int:
    return sum(r.launched_at <= moment and (r.ended_at is None or r.ended_at > moment) for r in rentals)


def _pipelines(connection: Connection, generations: set[int]) -> dict[int, dict[str, float]]:
    """By generation."""
    table = schema.plans
    query = select(table.c.generation, table.c.plan).where(table.c.generation.in_(generations))
    return {
        row.generation: {
            "cluster/pipelines": len(row.plan["pipelines"]),
            "cluster/stages": sum(len(pipeline["stages"]) for pipeline in row.plan["pipelines"]),
        }
        for row in connection.execute(query)
    }
