"""``state.db``: made, opened, refused."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from bamboo_trainer.plan import NodeId
from sqlalchemy import Connection, insert, select

from bamboo_cli.coordinator import journal, lock, reader, schema, store
from bamboo_cli.coordinator.events import RecordStep, StoryKind, Tell, Tick
from bamboo_cli.errors import StateError


def test_a_new_cluster_reads_back_with_the_coordinator_away(cluster_dir: Path) -> None:
    status = reader.read_status(store.state_path(cluster_dir), now=0.0)

    assert (status.name, status.wanted_nodes, status.state) == ("demo", 4, store.ClusterState.UP)
    assert status.cluster_id.startswith("demo-")
    assert not status.coordinator.alive
    assert status.nodes == () and status.run is None and status.plan is None and status.spot_microusd == 0


def test_the_state_file_is_for_its_user_only(cluster_dir: Path) -> None:
    assert store.state_path(cluster_dir).stat().st_mode & 0o077 == 0
    assert cluster_dir.stat().st_mode & 0o077 == 0


def test_a_cluster_is_not_made_over_another(cluster_dir: Path) -> None:
    with pytest.raises(StateError, match="already holds a cluster"):
        store.create_cluster(cluster_dir, name="demo", cloud="local", job_text="", job={}, wanted_nodes=1)


def test_of_commands_that_make_a_cluster_at_once_one_succeeds(tmp_path: Path) -> None:
    def make(_: int) -> str:
        try:
            return store.create_cluster(tmp_path, name="demo", cloud="local", job_text="", job={}, wanted_nodes=1)
        except StateError as error:
            assert "already holds a cluster" in error.message
            return ""

    with ThreadPoolExecutor(4) as pool:
        made = [cluster_id for cluster_id in pool.map(make, range(4)) if cluster_id]

    assert [reader.read_status(tmp_path / "state.db", now=0.0).cluster_id] == made
    assert not list(tmp_path.glob("*.new*"))


def test_reading_what_is_not_there_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no cluster"):
        reader.read_status(tmp_path / "state.db", now=0.0)

    assert list(tmp_path.iterdir()) == []


def test_a_reader_cannot_write(cluster_dir: Path) -> None:
    engine = store.open_for_reading(store.state_path(cluster_dir))

    with pytest.raises(StateError, match="readonly"), store.reading(engine) as connection:
        connection.execute(schema.cluster.delete())


def test_a_file_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE songs (title TEXT)")
    foreign.close()
    before = path.read_bytes()

    with pytest.raises(StateError, match="not written by Bamboo"):
        store.open_for_writing(path)

    assert path.read_bytes() == before


def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database at all" * 100)

    with pytest.raises(StateError, match="damaged") as caught:
        store.open_for_writing(path)

    assert "bamboo down" in caught.value.next_step
    assert path.read_bytes() == b"not a database at all" * 100


def test_a_row_of_another_version_is_refused_with_what_to_do(cluster_dir: Path) -> None:
    engine = store.open_for_writing(store.state_path(cluster_dir))
    with store.writing(engine) as connection:
        connection.execute(insert(schema.machine).values(name="cluster", body='{"generation": "many"}'))
    engine.dispose()

    with pytest.raises(StateError, match="another version wrote it") as caught:
        reader.read_status(store.state_path(cluster_dir), now=0.0)

    assert "bamboo down" in caught.value.next_step


def test_a_file_of_a_newer_bamboo_is_refused(cluster_dir: Path) -> None:
    with sqlite3.connect(store.state_path(cluster_dir)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.schema_version() + 1}")

    with pytest.raises(StateError, match="newer Bamboo") as caught:
        reader.read_runs(store.state_path(cluster_dir))

    assert "pip install -U" in caught.value.next_step


def test_an_older_file_is_migrated_in_order_and_only_once(cluster_dir: Path) -> None:
    done: list[str] = []

    def add_colour(connection: Connection) -> None:
        done.append("colour")
        connection.exec_driver_sql("ALTER TABLE plans ADD COLUMN colour TEXT")

    def paint(connection: Connection) -> None:
        done.append("paint")
        connection.exec_driver_sql("UPDATE plans SET colour = 'green'")

    engine = store.open_for_writing(store.state_path(cluster_dir))
    with store.writing(engine) as connection:
        connection.exec_driver_sql("PRAGMA user_version = 1")
        schema.migrate(connection, (add_colour, paint))
    with store.writing(engine) as connection:
        version = schema.migrate(connection, (add_colour, paint))

    assert done == ["colour", "paint"]
    assert version == 3


STEP = RecordStep(
    run_id="demo-1",
    step=7,
    generation=2,
    loss=0.5,
    gradient_norm=1.0,
    learning_rate=1e-3,
    step_s=0.1,
    num_samples=16,
    num_tokens=0,
    first_sample=112,
    losses=(0.1 + 0.2, float("nan"), -0.0, 5e-324),
    square_norms=(1e308,),
)


def record(path: Path, step: RecordStep) -> None:
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        journal.record(connection, Tick(), {}, (step,), now=0.0)
    engine.dispose()


def test_a_steps_fingerprint_reads_back_bit_for_bit(cluster_dir: Path) -> None:
    path = store.state_path(cluster_dir)

    record(path, STEP)

    (row,) = reader.read_steps(path, "demo-1")
    assert row.losses is not None and row.square_norms is not None and row.first_sample == 112
    assert schema.pack((*row.losses, *row.square_norms)) == schema.pack((*STEP.losses, *STEP.square_norms))


def test_a_file_from_before_the_fingerprints_is_read_as_it_is_and_migrated_when_written(cluster_dir: Path) -> None:
    path = store.state_path(cluster_dir)
    record(path, STEP)
    with sqlite3.connect(path) as connection:
        for column in ("first_sample", "losses", "square_norms"):
            connection.execute(f"ALTER TABLE steps DROP COLUMN {column}")
        connection.execute("ALTER TABLE instances DROP COLUMN is_spot")
        connection.execute("PRAGMA user_version = 2")

    assert reader.read_charges(path, now=1.0) == ()
    (old,) = reader.read_steps(path, "demo-1")
    record(path, replace(STEP, step=8))
    rows = reader.read_steps(path, "demo-1")

    assert (old.loss, old.losses, old.first_sample) == (0.5, None, None)
    assert [row.losses is not None for row in rows] == [False, True]


def test_a_damaged_fingerprint_is_named_by_its_step(cluster_dir: Path) -> None:
    path = store.state_path(cluster_dir)
    record(path, STEP)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE steps SET losses = x'0102'")

    with pytest.raises(StateError, match="the row of step 7 of run demo-1 is damaged: 2 bytes"):
        reader.read_steps(path, "demo-1")


def test_a_transaction_that_fails_leaves_nothing(cluster_dir: Path) -> None:
    engine = store.open_for_writing(store.state_path(cluster_dir))
    row = {"name": "cluster", "body": "{}"}

    with pytest.raises(StateError), store.writing(engine) as connection:
        connection.execute(insert(schema.machine).values(row))
        connection.execute(insert(schema.machine).values(row))

    with store.reading(engine) as connection:
        assert connection.execute(select(schema.machine)).all() == []


def test_a_request_waits_until_it_is_answered(cluster_dir: Path) -> None:
    path = store.state_path(cluster_dir)
    request_id = store.make_request(path, store.RequestKind.PREEMPT, {"node_id": "n2", "notice_s": None})

    pending = store.request_outcome(path, request_id)

    assert pending == store.RequestOutcome(state=store.RequestState.PENDING, outcome="")
    with pytest.raises(StateError, match="no request 99"):
        store.request_outcome(path, 99)


def test_a_second_coordinator_is_refused(cluster_dir: Path) -> None:
    with (
        lock.held(cluster_dir),
        pytest.raises(StateError, match="another coordinator"),
        lock.held(cluster_dir, patience_s=0.0),
    ):
        pass


def test_whether_a_coordinator_lives_is_seen_from_outside(cluster_dir: Path) -> None:
    with lock.held(cluster_dir):
        assert reader.read_status(store.state_path(cluster_dir), now=0.0).coordinator.alive
    assert not reader.read_status(store.state_path(cluster_dir), now=0.0).coordinator.alive


def test_the_story_of_a_node_is_what_is_told_of_it_and_what_names_it(cluster_dir: Path) -> None:
    path = store.state_path(cluster_dir)
    lines = [
        ("n3", "is ready"),
        ("n4", "is ready"),
        (None, "n3/1 is lost: n4/1 takes over stage 2"),
        (None, "n30/1 is lost; xn3 and n3x do not exist"),
        (None, "stage 1 goes to n3"),
        (None, "what * and ? [mean"),
    ]
    with store.writing(store.open_for_writing(path)) as connection:
        for node, text in lines:
            line = Tell(kind=StoryKind.NODE, text=text, node_id=None if node is None else NodeId(node))
            journal.tell(connection, line, 1.0)

    def story(node: str) -> list[str]:
        return [event.text for event in reader.read_events(path, node=node)]

    assert story("n3") == ["is ready", "n3/1 is lost: n4/1 takes over stage 2", "stage 1 goes to n3"]
    assert story("n4") == ["is ready", "n3/1 is lost: n4/1 takes over stage 2"]
    assert story("*") == story("?") == ["what * and ? [mean"]
    assert story("[mean") == ["what * and ? [mean"]
