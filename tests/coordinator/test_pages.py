"""Pages of the flight recorder: from a worker's message into the state file, bounded, and out again."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from bamboo_agent.messages import WorkerSaid
from bamboo_trainer.control import Arrival, Recorded, RecordedWhy, Slot
from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator import pages, schema, store
from tests.coordinator.scenario import Player

WORKER = WorkerId("n1/1")
PAGE = Recorded(
    run_id="r1",
    generation=1,
    step=0,
    began_at=100.0,
    committed=True,
    why=RecordedWhy.SAMPLE,
    slots=(Slot("0F0", 0, 0, 5), Slot("COMMIT", 0, 9, 12)),
    arrivals=(Arrival("1B0", 0, WorkerId("n2/1"), 7),),
)


def keep(cluster_dir: Path, *kept: Recorded, worker_id: WorkerId = WORKER) -> None:
    engine = store.open_for_writing(store.state_path(cluster_dir))
    with store.writing(engine) as connection:
        for page in kept:
            pages.keep(connection, worker_id, page)
    engine.dispose()


def at_step(step: int, why: RecordedWhy = RecordedWhy.SAMPLE) -> Recorded:
    return replace(PAGE, step=step, began_at=100.0 + step, why=why)


def read(cluster_dir: Path, run_id: str = "r1") -> list[Recorded]:
    return [page.recorded for page in pages.read_pages(store.state_path(cluster_dir), run_id)]


@pytest.mark.parametrize(("run_id", "instructions"), [("r1", 1), ("r0", 0)])
def test_the_machine_has_a_page_of_its_run_kept_and_forgets_one_of_another(run_id: str, instructions: int) -> None:
    player = Player(lambda world: None)
    player.perform("cluster nodes=2")
    player.perform("train steps=8 stages=2")
    world = player.world
    assert world is not None
    page = replace(PAGE, run_id=run_id)

    out = world.machine.handle(
        ev.AgentSaid(node_id=NodeId("n1"), message=WorkerSaid(worker_id=WORKER, message=page)), world.now
    )

    assert [i for i in out if isinstance(i, ev.KeepPage)] == [ev.KeepPage(worker_id=WORKER, page=page)] * instructions


def test_what_is_kept_is_read_again_by_run_in_the_order_of_time(cluster_dir: Path) -> None:
    keep(cluster_dir, at_step(1), at_step(0), replace(PAGE, run_id="r2"))

    assert read(cluster_dir) == [at_step(0), at_step(1)]


def test_a_page_that_comes_again_is_there_once_and_a_second_try_at_a_step_beside_the_first(cluster_dir: Path) -> None:
    beside_a_change = replace(PAGE, why=RecordedWhy.CHANGE)
    again = replace(PAGE, generation=2, began_at=101.0)

    keep(cluster_dir, PAGE, beside_a_change, again, again)

    assert read(cluster_dir) == [beside_a_change, again]


def test_the_oldest_samples_go_and_what_stands_around_a_change_stays(
    cluster_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SAMPLES_KEPT", 3)
    monkeypatch.setattr(pages, "CHANGES_KEPT", 2)
    changes = [at_step(step, RecordedWhy.CHANGE) for step in (1, 3, 5)]
    samples = [at_step(step) for step in (0, 2, 4, 6, 8)]

    keep(cluster_dir, *sorted([*changes, *samples], key=lambda page: page.step), replace(PAGE, run_id="r0"))

    assert [page.step for page in read(cluster_dir)] == [3, 4, 5, 6, 8]
    assert len(read(cluster_dir, "r0")) == 1


def test_a_page_of_a_newer_kind_is_left_out(cluster_dir: Path) -> None:
    keep(cluster_dir, at_step(0), at_step(1))
    with sqlite3.connect(store.state_path(cluster_dir)) as connection:
        connection.execute("""UPDATE pages SET page = replace(page, '"version":1', '"version":2') WHERE step = 0""")

    assert read(cluster_dir) == [at_step(1)]


def test_a_file_from_before_there_were_pages_has_none_until_it_is_migrated(cluster_dir: Path) -> None:
    path = store.state_path(cluster_dir)
    with sqlite3.connect(path) as connection:
        made_now = _columns(connection)
        connection.execute("DROP TABLE pages")
        for column in ("first_sample", "losses", "square_norms"):  # came later
            connection.execute(f"ALTER TABLE steps DROP COLUMN {column}")
        connection.execute("ALTER TABLE instances DROP COLUMN is_spot")
        connection.execute("PRAGMA user_version = 1")

    assert read(cluster_dir) == []
    keep(cluster_dir, PAGE)
    assert read(cluster_dir) == [PAGE]
    with sqlite3.connect(path) as connection:
        assert _columns(connection) == made_now
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.schema_version(),)


def _columns(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Of the table and of its index: names, types, what may be missing, keys."""
    return [
        *connection.execute("SELECT * FROM pragma_table_info('pages')"),
        *connection.execute("SELECT * FROM pragma_index_info('pages_by_age')"),
    ]
