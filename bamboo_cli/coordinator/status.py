"""What ``reader`` finds in the state file, as commands show it. Times in seconds since the epoch."""

from dataclasses import dataclass
from typing import Any

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.plan import NodeId, Plan, WorkerId

from bamboo_cli.coordinator.store import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    alive: bool
    """The lock is held: whoever would start another one would be refused."""
    pid: int | None
    heartbeat_at: float | None
    """About once a second while it is well."""
    port: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    worker_id: WorkerId
    accelerator: int
    """Its number on the node."""
    state: str
    hosts: tuple[tuple[int, int], ...]
    """(pipeline_index, stage_index) of the stages that it runs under the newest plan."""
    shadows: tuple[tuple[int, int], ...]
    device: str = ""
    """Name of what it computes on; empty before it is prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    node_id: NodeId
    state: str
    zone: str
    instance_type: str
    instance_id: str | None
    address: str | None
    workers: tuple[WorkerStatus, ...]
    """By accelerator."""
    notice_deadline: float | None
    last_beat_at: float | None
    reason: str
    """Why it is in this state, where that is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    run_id: str
    state: str
    spec: dict[str, Any]
    """The TrainingSpec as JSON."""
    num_steps: int
    min_nodes: int
    """With fewer it waits."""
    started_at: float
    ended_at: float | None
    committed_steps: int
    """Steps 0 … n-1 are committed."""
    first_loss: float | None
    loss: float | None
    learning_rate: float | None
    samples_per_s: float | None
    num_samples: int
    num_tokens: int
    preemptions: int
    failovers: int
    reconfigurations: int
    restores: int
    steps_rerun: int
    pause_s: float
    checkpoint_step: int | None
    """The newest complete checkpoint."""
    model_url: str | None
    weights_sha256: str | None
    reason: str
    checkpoint_steps: tuple[int, ...] = ()
    """Complete checkpoints, oldest first."""
    checkpoint_trouble: str = ""
    """Why the run cannot begin: its checkpoints cannot be listed."""
    recipe_sha256: str | None = None
    """Of the recipe's file when the run was asked for; None: told to a Bamboo that did not keep it."""
    usual_step_s: float | None = None
    """The median of the latest steps that nothing disturbed."""
    last_commit_at: float | None = None
    limit: str = ""
    """How much is used of the nearest limit of money or time that the job has; empty: it has none."""
    begins_at_step: int = 0
    """Steps before it are on record, and were paid, under the run that this one goes on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    name: str
    cluster_id: str
    cloud: str
    state: ClusterState
    job_text: str
    job: dict[str, Any]
    wanted_nodes: int
    created_at: float
    coordinator: CoordinatorStatus
    nodes: tuple[NodeStatus, ...]
    """All that ever were, by number."""
    plan: Plan | None
    """The newest."""
    run: RunStatus | None
    """The newest."""
    spot_microusd: int
    on_demand_microusd: int
    """What the same machine time would have cost on demand."""
    on_demand_note: str = ""
    """Where that is an estimate: that it is one, and of when."""
    gives_back_at: float | None = None
    """When all nodes are given back, unless a run begins before."""
    gave_up: str = ""
    """Why no further node is rented, though some are wanted."""
    microusd_per_hour: int = 0
    """What is paid now, for all instances that run."""
    hours_left: float | None = None
    """Of a run that goes on as it did on average."""
    projected_microusd: float | None = None
    """What the cluster will have cost when that run is done: ``spot_microusd``, and what is paid until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How a run's figures went, oldest first."""

    losses: tuple[float | None, ...] = ()
    """Of steps spread evenly over all that are committed. None: nobody lived to tell."""
    samples_per_s: tuple[float | None, ...] = ()
    """Of each of the newest steps, by the clock between commits: a pause is a dip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent:
    event_id: int
    at: float
    kind: str
    node_id: NodeId | None
    run_id: str | None
    step: int | None
    text: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    run_id: str
    step: int
    generation: int
    loss: float
    gradient_norm: float
    learning_rate: float
    step_s: float
    num_samples: int
    num_tokens: int
    committed_at: float
    first_sample: int | None = None
    """This and the next two are None in a row of a Bamboo that did not keep them."""
    losses: tuple[float, ...] | None = None
    """Per microbatch."""
    square_norms: tuple[float, ...] | None = None
    """Per reduction unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedger:
    """What is on record of a run."""

    run: RunStatus
    training: TrainingSpec
    """As its workers were told."""
    steps: tuple[StepRow, ...]
    plans: tuple[Plan, ...]
    """Oldest first."""
    restores: tuple[StoryEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """One instance that was had."""

    zone: str
    instance_type: str
    launched_at: float
    ended_at: float | None
    end_reason: str
