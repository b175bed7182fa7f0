"""What the machine knows, from its stored rows, for the reader."""

from dataclasses import dataclass

from bamboo_trainer.plan import Plan
from sqlalchemy import Connection, select

from bamboo_cli.coordinator import schema
from bamboo_cli.coordinator.entities import Cluster, Node, Worker
from bamboo_cli.coordinator.rows import decode_row
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


def entities(connection: Connection) -> Known:
    rows = connection.execute(select(schema.machine.c.name, schema.machine.c.body))
    found = {name: decode_row(name, body) for name, body in rows}
    return Known(
        cluster=found.get("cluster", Cluster()),
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
    types = {row.node_id: row.instance_type for row in connection.execute(select(schema.instances))}
    beats = {row.node_id: row.last_beat_at for row in connection.execute(select(schema.beats))}
    run = known.runs[-1] if known.runs else None
    plan = run.plan if run is not None and run.state not in ENDED else None
    return tuple(_node(node, plan, types.get(node.node_id, ""), beats.get(node.node_id)) for node in known.nodes)


def _node(node: Node, plan: Plan | None, instance_type: str, last_beat_at: float | None) -> NodeStatus:
    return NodeStatus(
        node_id=node.node_id,
        state=node.state,
        zone=node.zone,
        instance_type=instance_type,
        instance_id=node.instance_id or None,
        address=node.address or None,
        workers=tuple(_worker(worker, plan) for worker in node.workers),
        notice_deadline=node.deadline,
        last_beat_at=last_beat_at,
        reason=": ".join(part for part in (node.reason, node.detail) if part),
    )


def _worker(worker: Worker, plan: Plan | None) -> WorkerStatus:
    return WorkerStatus(
        worker_id=worker.worker_id,
        accelerator=worker.accelerator,
        state=worker.state,
        hosts=tuple(stage.place for stage in plan.hosted_by(worker.worker_id)) if plan is not None else (),
        shadows=tuple(stage.place for stage in plan.shadowed_by(worker.worker_id)) if plan is not None else (),
        device=worker.device,
    )
