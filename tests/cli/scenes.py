"""Clusters in trouble, as state files: what the live view is tested with, and what the pictures of docs/ show."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bamboo_trainer.plan import NodeId
from sqlalchemy import Connection, delete, insert, update

from bamboo_cli.coordinator import journal, schema, store
from bamboo_cli.coordinator.looking import Look
from bamboo_cli.coordinator.reader import read_look
from bamboo_cli.coordinator.rows import encode_row
from bamboo_cli.coordinator.states import NodeReason, NodeState
from tests.cli import wide_file

NOW = 1_767_182_400.0
"""Noon of a day, UTC."""


def storm(home: Path, *, wide: bool = False) -> Look:
    """One node under notice, one silent, one lost and taken over, one lost and not yet; others stand by and boot."""
    shape = {"num_pipelines": 25, "num_stages": 8} if wide else {"num_pipelines": 2, "num_stages": 4}
    path = wide_file.make(
        home / "clusters" / "storm", now=NOW, num_standbys=1, num_losses=1, hours=2.0, num_steps=1_200, **shape
    )
    hosts = [NodeId(f"n{number + 1}") for number in range(shape["num_pipelines"] * shape["num_stages"])]
    noticed, silent, taken_over, lost = (hosts[i] for i in (1, 3, 5, -1))
    plan = wide_file.without(wide_file.plan_of(hosts, **shape), taken_over)
    run = replace(wide_file.run_of(plan, 1_200, NOW - 7_200), base_generation=1)
    begin, coming = NOW - 7_200, NodeId(f"n{len(hosts) + 2}")
    nodes = [
        wide_file.node_of(
            noticed, NodeState.DRAINING, begin, reason=NodeReason.NOTICED, leaving=True, deadline=NOW + 17.0
        ),
        wide_file.node_of(taken_over, NodeState.ENDED, begin),
        wide_file.node_of(lost, NodeState.LOST, begin, reason=NodeReason.SILENT, accelerators=()),
        wide_file.node_of(coming, NodeState.BOOTING, NOW - 40.0, detail="installing torch", accelerators=()),
    ]
    with _changing(path) as connection:
        journal.put_row(connection, f"run/{wide_file.RUN}", encode_row(f"run/{wide_file.RUN}", run))
        for node in nodes:
            journal.put_row(connection, f"node/{node.node_id}", encode_row(f"node/{node.node_id}", node))
        connection.execute(update(schema.beats).where(schema.beats.c.node_id == silent).values(last_beat_at=NOW - 7.2))
        _tell(connection, [*_sudden(taken_over, hosts[4]), (-13.0, "notice", noticed, f"{noticed} {NOTICE}")])
    found = read_look(path, now=NOW, num_events=5)
    alive = replace(found.cluster.coordinator, alive=True)
    return replace(found, cluster=replace(found.cluster, coordinator=alive, cluster_id="storm-5a1c03"))


def healed(home: Path) -> Path:
    """The state file of a run that has lost a node in mid-step, and is whole again."""
    path = wide_file.make(
        home / "clusters" / "healed", now=NOW, num_pipelines=2, num_stages=4, num_gone=1, hours=2.0, num_steps=1_200
    )
    with _changing(path) as connection:
        _tell(connection, [*_sudden(NodeId("n6"), NodeId("n5")), *AFTERWARDS])
    return path


NOTICE = "is noticed (terminate): 30 s left"
HANDOVER = "a stage lacks a shadow: 12 layers would take 2.1 s to hand over: training goes on meanwhile"
NEW_PLAN = "plan 3 from step 796: a stage lacks a shadow; 8 workers for 2 x 4 stages, 12 layers on the move"
AFTERWARDS = (
    (-93.5, "handover", None, HANDOVER),
    (-93.4, "node", "n9", "n9 is rented in us-east-1b"),
    (-91.6, "handover", None, "n7/1 has learned 12 layers in 1.9 s"),
    (-58.2, "node", "n9", "n9 joined from us-east-1b"),
    (-57.4, "worker", "n9", "worker n9/1 is ready"),
    (-45.1, "reconfiguration", None, NEW_PLAN),
)
Line = tuple[float, str, str | None, str]


def _sudden(taken: NodeId, shadow: NodeId) -> Sequence[Line]:
    """In step 790."""
    took_over = f"{shadow}/1 hosts stage 1 of pipeline 1 too, in step 790; 3 forwards were at hand"
    return (
        (-94.2, "node", taken, f"the link to the agent of {taken} ended"),
        (-94.1, "preemption", taken, f"{taken} is gone: preempted"),
        (-94.1, "failover", None, f"lost {taken}/1: {shadow}/1 hosts stage 1 of pipeline 1"),
        (-93.9, "failover", shadow, took_over),
    )


def _tell(connection: Connection, lines: Sequence[Line]) -> None:
    """The story; and the step of the loss takes longer than others."""
    columns = ("at", "kind", "node_id", "text")
    rows = [dict(zip(columns, (NOW + at, *rest), strict=True)) for at, *rest in lines]
    connection.execute(delete(schema.events))
    connection.execute(insert(schema.events), [{**row, "run_id": wide_file.RUN, "numbers": {}} for row in rows])
    earlier = update(schema.steps).where(schema.steps.c.step < 790)
    connection.execute(earlier.values(committed_at=schema.steps.c.committed_at - 4.3))


@contextmanager
def _changing(path: Path) -> Iterator[Connection]:
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        yield connection
    engine.dispose()
