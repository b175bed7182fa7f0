"""What the machine knows, from its stored rows, for the reader."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_trainer.plan import Plan, WorkerId
from sqlalchemy import Connection

from bamboo_cli.coordinator.entities import Cluster, Node, Worker
from bamboo_cli.coordinator.rows import Entity, decode_row
from bamboo_cli.coordinator.run_entities import Checkpoints, Progress, Run
from bamboo_cli.coordinator.states import ENDED
from bamboo_cli.coordinator.status import NodeStatus, WorkerStatus
from bamboo_cli.coordinator.store import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the machine knows, sorted."""

    cluster: Cluster
    nodes: tuple[Node, ...]
    """By number."""
    runs: tuple[Run, ...]
    """Oldest first."""
    progress: dict[str, Progress]
    checkpoints: dict[str, Checkpoints]


def entities(connection: Connection, decoded: dict[str, tuple[str, Entity]] | None = None) -> Known:
    """``decoded``: rows by name as an earlier call found them, with what they mean; brought up to date."""
    seen = {} if decoded is None else decoded
    rows = connection.exec_driver_sql("SELECT name, body FROM machine").all()
    for name, body in rows:
        if name not in seen or seen[name][0] != body:
            seen[name] = (body, decode_row(name, body))
    found = {name: seen[name][1] for name, _ in rows}
    return Known(
        cluster=cluster if isinstance(cluster := found.get("cluster"), Cluster) else Cluster(),
        nodes=tuple(sorted((e for e in found.values() if isinstance(e, Node)), key=lambda node: node.number)),
        runs=tuple(sorted((e for e in found.values() if isinstance(e, Run)), key=lambda run: run.started_at)),
        progress={entity.run_id: entity for entity in found.values() if isinstance(entity, Progress)},
        checkpoints={entity.run_id: entity for entity in found.values() if isinstance(entity, Checkpoints)},
    )


def cluster_state(cluster: Cluster) -> ClusterState:
    if cluster.closed:
        return ClusterState.CLOSED
    return ClusterState.CLOSING if cluster.closing else ClusterState.UP


def node_statuses(connection: Connection, known: Known) -> tuple[NodeStatus, ...]:
    types = _by_node(connection, "SELECT node_id, instance_type FROM instances")
    beats = _by_node(connection, "SELECT node_id, last_beat_at FROM beats")
    run = known.runs[-1] if known.runs else None
    plan = run.plan if run is not None and run.state not in ENDED else None
    places = _places(plan)
    return tuple(_node(node, places, types.get(node.node_id, ""), beats.get(node.node_id)) for node in known.nodes)


Places = Mapping[WorkerId, list[tuple[int, int]]]


def _places(plan: Plan | None) -> tuple[Places, Places]:
    """The stages that each worker hosts, and those that it shadows: in one pass, for plans of hundreds of stages."""
    hosts: dict[WorkerId, list[tuple[int, int]]] = defaultdict(list)
    shadows: dict[WorkerId, list[tuple[int, int]]] = defaultdict(list)
    for stage in plan.stages() if plan is not None else ():
        hosts[stage.host].append(stage.place)
        for shadow in stage.shadows:
            shadows[shadow].append(stage.place)
    return hosts, shadows


def _by_node(connection: Connection, query: str) -> dict[str, Any]:
    return {node_id: value for node_id, value in connection.exec_driver_sql(query)}  # noqa: C416 - rows are no tuples


def _node(node: Node, places: tuple[Places, Places], instance_type: str, last_beat_at: float | None) -> NodeStatus:
    return NodeStatus(
        node_id=node.node_id,
        state=node.state,
        zone=node.zone,
        instance_type=instance_type,
        instance_id=node.instance_id or None,
        address=node.address or None,
        workers=tuple(_worker(worker, *places) for worker in node.workers),
        notice_deadline=node.deadline,
        last_beat_at=last_beat_at,
        reason=": ".join(part for part in (node.reason, node.detail) if part),
    )


def _worker(worker: Worker, hosts: Places, shadows: Places) -> WorkerStatus:
    return WorkerStatus(
        worker_id=worker.worker_id,
        accelerator=worker.accelerator,
        state=worker.state,
        hosts=tuple(hosts.get(worker.worker_id, ())),
        shadows=tuple(shadows.get(worker.worker_id, ())),
        device=worker.device,
    )
