"""Pages of the workers' flight recorders in ``state.db``: kept, pruned, read. docs/trace.md."""

from dataclasses import dataclass
from pathlib import Path

from bamboo_trainer.control import Recorded, RecordedWhy
from bamboo_trainer.plan import WorkerId
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, delete, inspect, select
from sqlalchemy.dialects import sqlite

from bamboo_cli.coordinator import schema
from bamboo_cli.coordinator.store import open_for_reading, reading

SAMPLES_KEPT = 2000
"""Of one run; a page is 1 to 10 kB. Older ones go."""
CHANGES_KEPT = 4000
"""Of one run, those around changes of plan: what one looks for, so they go last."""

_PAGE: TypeAdapter[Recorded] = TypeAdapter(Recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    worker_id: WorkerId
    recorded: Recorded


def keep(connection: Connection, worker_id: WorkerId, page: Recorded) -> None:
    """Overwrites: a page that turns out to stand beside a change is sent again. The oldest beyond the bound go."""
    table = schema.pages
    around_change = page.why is RecordedWhy.CHANGE
    values = {
        "began_at": page.began_at,
        "around_change": around_change,
        "page": _PAGE.dump_json(page).decode(),
    }
    statement = sqlite.insert(table).values(
        run_id=page.run_id, worker_id=worker_id, step=page.step, generation=page.generation, **values
    )
    keys = ["run_id", "worker_id", "step", "generation"]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))
    _prune(connection, page.run_id, around_change, CHANGES_KEPT if around_change else SAMPLES_KEPT)


def _prune(connection: Connection, run_id: str, around_change: bool, limit: int) -> None:
    table = schema.pages
    alike = (table.c.run_id == run_id, table.c.around_change == around_change)
    oldest_kept = connection.execute(
        select(table.c.began_at).where(*alike).order_by(table.c.began_at.desc()).offset(limit - 1).limit(1)
    ).scalar_one_or_none()
    if oldest_kept is not None:
        connection.execute(delete(table).where(*alike, table.c.began_at < oldest_kept))


def read_pages(path: Path, run_id: str) -> tuple[Page, ...]:
    """By begin. Those that a newer Bamboo wrote and this one cannot read are left out, and so is everything from a
    file that was made before there were any. Raises StateError as ``store.open_for_reading``.
    """
    engine = open_for_reading(path)
    try:
        with reading(engine) as connection:
            if not inspect(connection).has_table(schema.pages.name):
                return ()
            query = select(schema.pages.c.worker_id, schema.pages.c.page).where(schema.pages.c.run_id == run_id)
            rows = connection.execute(query.order_by(schema.pages.c.began_at)).all()
    finally:
        engine.dispose()
    found = ((WorkerId(row.worker_id), _decoded(row.page)) for row in rows)
    return tuple(Page(worker_id=worker_id, recorded=page) for worker_id, page in found if page is not None)


def _decoded(text: str) -> Recorded | None:
    try:
        return _PAGE.validate_json(text)
    except ValidationError:
        return None
