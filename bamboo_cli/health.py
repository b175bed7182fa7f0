"""How each stage of the newest plan is, and which nodes are about to go. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bamboo_trainer.plan import NodeId, StagePlan, WorkerId, node_id_of

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus, NodeStatus

GONE = ("released", "ended")
SILENT_S = 5.0
"""Without a sign of life; agents give one a second."""


class Health(StrEnum):
    """The worse, the later."""

    WELL = "well"
    BARE = "bare"
    """No shadow of it is there, though its protection wants one."""
    DOUBLED = "doubled"
    """Its worker runs another stage too, since a failover."""
    SILENT = "silent"
    GOING = "going"
    """Its node is under notice, or is being drained."""
    LOST = "lost"
    """Nobody runs it: its worker is gone, and no plan without it is in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One stage of one pipeline."""

    pipeline_index: int
    stage_index: int
    node_id: NodeId
    health: Health
    left_s: float | None = None
    """Until its node is taken."""


def present(cluster: "ClusterStatus") -> list["NodeStatus"]:
    """Nodes that are not given back."""
    return [node for node in cluster.nodes if node.state not in GONE]


def pipelines(cluster: "ClusterStatus", now: float) -> tuple[tuple[Place, ...], ...]:
    """None where no run goes on or nothing is planned yet."""
    plan, run = cluster.plan, cluster.run
    if plan is None or run is None or run.ended_at is not None:
        return ()
    nodes = {node.node_id: node for node in present(cluster)}
    live = {worker.worker_id for node in nodes.values() if node.state != "lost" for worker in node.workers}
    load = Counter(stage.host for stage in plan.stages())
    silent = set(silences(cluster))
    found = []
    for pipeline in plan.pipelines:
        places = []
        for stage in pipeline.stages:
            node = nodes.get(node_id_of(stage.host))
            places.append(
                Place(
                    pipeline_index=stage.pipeline_index,
                    stage_index=stage.stage_index,
                    node_id=node_id_of(stage.host),
                    health=_health(stage, node, live, load, silent),
                    left_s=seconds_left(node, now) if node is not None else None,
                )
            )
        found.append(tuple(places))
    return tuple(found)


def silences(cluster: "ClusterStatus") -> dict[NodeId, float]:
    """How long nodes have given no sign of life, by the coordinator's newest one: a coordinator that is dead makes
    nobody silent."""
    newest = cluster.coordinator.heartbeat_at
    if newest is None or not cluster.coordinator.alive:
        return {}
    heard = {node.node_id: node.last_beat_at for node in present(cluster) if node.state != "lost"}
    return {node_id: newest - at for node_id, at in heard.items() if at is not None and newest - at > SILENT_S}


def seconds_left(node: "NodeStatus", now: float) -> float | None:
    """None: nobody has said that it will be taken."""
    return None if node.notice_deadline is None else max(0.0, node.notice_deadline - now)


def going(cluster: "ClusterStatus") -> Iterator["NodeStatus"]:
    """The soonest first; those that are drained have no deadline and come last."""
    leaving = [node for node in present(cluster) if is_going(node)]
    yield from sorted(leaving, key=lambda node: (node.notice_deadline is None, node.notice_deadline))


def is_going(node: "NodeStatus") -> bool:
    return node.state == "draining" or (node.notice_deadline is not None and node.state != "lost")


def _health(
    stage: StagePlan, node: "NodeStatus | None", live: set[WorkerId], load: Counter[WorkerId], silent: set[NodeId]
) -> Health:
    if node is None or stage.host not in live:
        return Health.LOST
    if is_going(node):
        return Health.GOING
    if node.node_id in silent:
        return Health.SILENT
    if load[stage.host] > 1:
        return Health.DOUBLED
    if stage.mode.has_shadows and not any(shadow in live for shadow in stage.shadows):
        return Health.BARE
    return Health.WELL
