"""What one look at a state file finds, and what the next one need not find again."""

from pathlib import Path

import pytest
from sqlalchemy import insert, update

from bamboo_cli.bills import read_run_bill
from bamboo_cli.coordinator import journal, schema, store
from bamboo_cli.coordinator.looking import MONEY_S, Seen
from bamboo_cli.coordinator.reader import read_look, read_status
from bamboo_cli.coordinator.rows import encode_row
from bamboo_cli.coordinator.states import NodeState
from tests.cli import wide_file

NOW = 1_767_182_400.0
BEGIN = NOW - 7_200.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return wide_file.make(
        tmp_path / "clusters" / "c", now=NOW, num_pipelines=2, num_stages=2, hours=2.0, num_steps=600, num_events=20
    )


def test_what_the_cluster_will_have_cost_is_what_it_has_and_what_the_bill_says_that_the_run_will(path: Path) -> None:
    """Its nodes booted for half an hour before the run began."""
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        connection.execute(update(schema.instances).values(launched_at=BEGIN - 1_800.0))
    engine.dispose()

    status, bill = read_status(path, now=NOW), read_run_bill(path, wide_file.RUN, now=NOW)

    assert bill.projection is not None and status.projected_microusd is not None
    to_come = bill.projection.total_microusd - bill.amount.spot_microusd
    assert status.spot_microusd == pytest.approx(1.25 * bill.amount.spot_microusd)
    assert status.projected_microusd == pytest.approx(status.spot_microusd + to_come)
    assert status.hours_left == bill.projection.hours_left == pytest.approx(2.0 * 199 / 401)
    assert status.microusd_per_hour == 4 * 302_000


def test_a_second_look_finds_what_has_changed(path: Path) -> None:
    seen = Seen()
    first = read_look(path, now=NOW, num_events=5, before=seen)
    lost = wide_file.node_of(first.cluster.nodes[1].node_id, NodeState.LOST, BEGIN)
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        journal.put_row(connection, "node/n2", encode_row("node/n2", lost))
        connection.execute(update(schema.beats).where(schema.beats.c.node_id == "n3").values(last_beat_at=NOW + 1))
        connection.execute(
            insert(schema.events).values(at=NOW, kind="loss", node_id="n2", text="n2 is lost", numbers={})
        )
    engine.dispose()

    second = read_look(path, now=NOW + 1.0, num_events=5, before=seen)

    assert [node.state for node in first.cluster.nodes] == ["active"] * 4
    assert [node.state for node in second.cluster.nodes] == ["active", "lost", "active", "active"]
    assert second.cluster.nodes[2].last_beat_at == NOW + 1
    assert [event.text for event in second.story[:-1]] == [event.text for event in first.story[1:]]
    assert second.story[-1].text == "n2 is lost"
    fresh = read_look(path, now=NOW + 1.0, num_events=5)
    assert (second.cluster.nodes, second.series, second.story) == (fresh.cluster.nodes, fresh.series, fresh.story)


def test_the_ledger_is_added_up_every_few_seconds_only(path: Path) -> None:
    seen = Seen()

    spent = [
        read_look(path, now=NOW + later, num_events=1, before=seen).cluster.spot_microusd
        for later in (0.0, MONEY_S / 2, MONEY_S)
    ]

    assert spent[0] == spent[1] < spent[2] == read_status(path, now=NOW + MONEY_S).spot_microusd


def test_losses_are_of_the_whole_run_and_speeds_of_its_newest_steps(path: Path) -> None:
    series = read_look(path, now=NOW, num_events=1).series

    assert len(series.losses) == 120 and len(series.samples_per_s) == 60
    assert series.losses[0] == pytest.approx(9.7) and series.losses[-1] == pytest.approx(2.1 + 7.6 / 9)
    assert series.samples_per_s[-1] == pytest.approx(1024 * 401 / 7200)


def test_a_step_that_nobody_told_of_is_a_gap_and_a_loss_that_is_no_number_is_kept(path: Path) -> None:
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        table = schema.steps
        connection.execute(table.delete().where(table.c.step == 0))
        connection.execute(update(table).where(table.c.step == 400).values(loss=None))
    engine.dispose()

    series = read_look(path, now=NOW, num_events=1).series

    assert series.losses[0] is None
    assert series.losses[-1] is not None and series.losses[-1] != series.losses[-1]


def test_a_cluster_without_a_run_is_looked_at_too(tmp_path: Path) -> None:
    store.create_cluster(tmp_path / "c", name="c", cloud="local", job_text="", job={}, wanted_nodes=2)

    found = read_look(store.state_path(tmp_path / "c"), now=NOW, num_events=5)

    assert found.cluster.run is None and found.story == () and found.series.losses == ()
    assert found.cluster.microusd_per_hour == 0 and found.cluster.projected_microusd is None
