"""State files that are damaged, in odd places, or where nothing can be written."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from bamboo_cli.coordinator import reader, schema, store
from bamboo_cli.errors import StateError


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT INTO machine (name, body) VALUES ('cluster', CAST(x'7b22ff227d' AS TEXT))",  # no UTF-8
        "UPDATE cluster SET job = '{'",  # no JSON
        # a moment that is NULL, where none can be
        "PRAGMA writable_schema = ON; "
        "UPDATE sqlite_master SET sql = replace(sql, 'from_at FLOAT NOT NULL', 'from_at FLOAT') WHERE name = 'prices'; "
        "PRAGMA writable_schema = RESET; "
        "INSERT INTO prices VALUES ('a', 't', 1.0, 1, 1, ''), ('a', 't', NULL, 1, 1, ''); "
        "PRAGMA writable_schema = ON; "
        "UPDATE sqlite_master SET sql = replace(sql, 'from_at FLOAT', 'from_at FLOAT NOT NULL') WHERE name = 'prices'; "
        "PRAGMA writable_schema = RESET",
    ],
)
def test_rows_that_are_damaged_are_called_so_and_no_bug(cluster_dir: Path, damage: str) -> None:
    path = store.state_path(cluster_dir)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(damage)

    with pytest.raises(StateError, match="is damaged") as caught:
        reader.read_money(path, now=10.0)

    assert "bamboo down" in caught.value.next_step


def test_what_is_wrong_with_bamboo_is_not_called_damage(cluster_dir: Path) -> None:
    with pytest.raises(TypeError, match="ours"), store.understood(store.state_path(cluster_dir)):
        raise TypeError("ours")


@pytest.mark.parametrize("name", ["100%41", "50% off", "a?b#c", "größer ✓", '\'"$HOME"'])
def test_a_folder_may_be_called_whatever_one_likes(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "clusters" / "demo"
    store.create_cluster(folder, name="demo", cloud="local", job_text="", job={}, wanted_nodes=1)

    assert reader.read_status(store.state_path(folder), now=0.0).name == "demo"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_where_nothing_can_be_written_is_read_all_the_same(
    cluster_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.os, "access", lambda path, mode: (path, mode) != (cluster_dir, os.W_OK))
    engine = store.open_for_reading(store.state_path(cluster_dir))

    with store.reading(engine) as connection:
        name = connection.execute(select(schema.cluster.c.name)).scalar_one()
        beside = [path.name for path in cluster_dir.iterdir()]

    engine.dispose()
    assert (name, beside) == ("demo", ["state.db"])


def test_a_file_with_writes_beside_it_is_read_with_them_or_not_at_all(
    cluster_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.state_path(cluster_dir)
    monkeypatch.setattr(store.os, "access", lambda path, mode: (path, mode) != (cluster_dir, os.W_OK))
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("UPDATE cluster SET wanted_nodes = 7")
        writer.commit()

        assert reader.read_status(path, now=0.0).wanted_nodes == 7
