"""A cluster as the state file might describe it, for the views."""

from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator.status import (
    ClusterStatus,
    CoordinatorStatus,
    NodeStatus,
    RunStatus,
    StoryEvent,
    WorkerStatus,
)
from bamboo_cli.coordinator.store import ClusterState

NOW = 1_000_000.0


def worker(number: int, incarnation: int, stage: int | None, accelerator: int = 0) -> WorkerStatus:
    return WorkerStatus(
        worker_id=WorkerId(f"n{number}/{incarnation}"),
        accelerator=accelerator,
        state="prepared",
        hosts=() if stage is None else ((0, stage),),
        shadows=() if stage is None else ((0, stage + 1),),
    )


def node(number: int, *, state: str = "active", stage: int | None = None, deadline: float | None = None) -> NodeStatus:
    return NodeStatus(
        node_id=NodeId(f"n{number}"),
        state=state,
        zone=f"local-{'abc'[number % 3]}",
        instance_type="local.small",
        instance_id=f"i-{number}",
        address=f"127.0.0.{number}",
        workers=(worker(number, 1, stage),),
        notice_deadline=deadline,
        last_beat_at=NOW - 0.5,
        reason="",
    )


def run(*, state: str = "running", ended_at: float | None = None, committed_steps: int = 41) -> RunStatus:
    return RunStatus(
        run_id="demo-3f2a1c-1",
        state=state,
        spec={"num_steps": 120, "checkpoint_url": "file:///checkpoints"},
        num_steps=120,
        min_nodes=2,
        started_at=NOW - 60,
        ended_at=ended_at,
        committed_steps=committed_steps,
        first_loss=5.6012,
        loss=2.3456,
        learning_rate=1e-3,
        samples_per_s=81.25,
        num_samples=656,
        num_tokens=41_984,
        preemptions=2,
        failovers=1,
        reconfigurations=3,
        restores=0,
        steps_rerun=0,
        pause_s=1.25,
        checkpoint_step=39,
        model_url=None,
        weights_sha256=None,
        reason="",
    )


def cluster(*, alive: bool = True, nodes: tuple[NodeStatus, ...] = (), of: RunStatus | None = None) -> ClusterStatus:
    return ClusterStatus(
        name="demo",
        cluster_id="demo-3f2a1c",
        cloud="local",
        state=ClusterState.UP,
        job_text="",
        job={},
        wanted_nodes=4,
        created_at=NOW - 90,
        coordinator=CoordinatorStatus(alive=alive, pid=4242, heartbeat_at=NOW - 0.3, port=5000),
        nodes=nodes,
        plan=None,
        run=of,
        spot_microusd=12_345,
        on_demand_microusd=40_000,
    )


def event(text: str, *, node_id: str | None = None, step: int | None = None) -> StoryEvent:
    return StoryEvent(
        event_id=1,
        at=NOW,
        kind="loss",
        node_id=NodeId(node_id) if node_id else None,
        run_id="demo-3f2a1c-1",
        step=step,
        text=text,
        numbers={},
    )
