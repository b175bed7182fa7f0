"""What the coordinator knows, one frozen value per stored row, and the codec between the two."""

from dataclasses import dataclass
from typing import Any

from bamboo_trainer.control import LayerCost, LayerSaved, Stopped, TrainingSpec
from bamboo_trainer.plan import Fetch, NodeId, Plan, StepSummary, WorkerId, node_id_of
from pydantic import TypeAdapter

from bamboo_cli.coordinator.events import Request
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import NodeReason, NodeState, PauseKind, RunReason, RunState, WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneMemory:
    """When the zone last had no capacity, last took a node from us or hinted that it may, and its region's quota was
    last used up. Seconds since the epoch."""

    zone: str
    short_at: float | None = None
    took_at: float | None = None
    hinted_at: float | None = None
    quota_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLoss:
    """Of a node, or of a worker of it. ``incarnation``: of its newest worker then; noted once, whoever tells of it and
    however many workers go with it."""

    node_id: NodeId
    incarnation: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    request_id: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    generation: int = 0
    """The newest given out, in any run."""
    num_named: int = 0
    """Nodes n1 … n<num_named> have been named."""
    zones: tuple[ZoneMemory, ...] = ()
    run_id: str | None = None
    """The newest run."""
    closing: bool = False
    closed: bool = False
    last_request_id: int = 0
    requests: tuple[OpenRequest, ...] = ()
    failed_step: str = ""
    """In which machines could not be made nodes, lately and in a row."""
    num_failed: int = 0
    rent_after: float = 0.0
    """No new node before then."""
    gave_up: str = ""
    """Why no further node is rented, though some are wanted."""
    num_taken: int = 0
    """Nodes that the cloud has taken."""
    node_seconds: float = 0.0
    """Lived by nodes that have ended, from the joining of their agents; with ``num_taken``, the hazard."""
    losses: tuple[SeenLoss, ...] = ()
    """The latest, oldest first: the hazard lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The newest worker process on an accelerator."""

    worker_id: WorkerId
    accelerator: int = 0
    """Its number on the node."""
    state: WorkerState
    since: float
    address: str = ""
    port: int = 0

    @property
    def node_id(self) -> NodeId:
        return node_id_of(self.worker_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One of a node's; the CPU is one where there is no other."""

    worker: Worker | None = None
    incarnation: int = 0
    """Of its newest worker, whether or not that lives."""
    num_crashes: int = 0
    """Exits in a row of workers that never got prepared."""
    restart_at: float = 0.0
    """No new worker before then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    node_id: NodeId
    state: NodeState
    reason: NodeReason = NodeReason.NONE
    since: float
    zone: str
    token: str
    num_creates: int = 0
    asked: bool = False
    """A create call is out."""
    on_demand: bool = False
    """It may be bought on demand."""
    retry_at: float | None = None
    """When the cloud is asked again."""
    detail: str = ""
    """What is being done to it while it boots; why that failed."""
    moved_at: float = 0.0
    """When that was begun."""
    instance_id: str = ""
    address: str = ""
    joined_at: float | None = None
    boot_id: str = ""
    acknowledged: int = 0
    """Envelopes of ``boot_id`` up to here are handled."""
    incarnation: int = 0
    """Of the newest worker, on whichever accelerator."""
    accelerators: tuple[Accelerator, ...] = ()
    """As many as its agent said; none before it has joined."""
    leaving: bool = False
    """Noticed or drained."""
    deadline: float | None = None
    taken: bool = False
    """Counted as a preemption."""

    @property
    def number(self) -> int:
        return int(self.node_id[1:])

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Those that are there, by accelerator."""
        return tuple(each.worker for each in self.accelerators if each.worker is not None)

    def worker(self, worker_id: WorkerId) -> Worker | None:
        return next((worker for worker in self.workers if worker.worker_id == worker_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    worker_id: WorkerId
    stopped: Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Members were told to stop. ``generation``: of the plan (quiesce), or one of its own (halt)."""

    kind: PauseKind
    generation: int
    since: float
    reason: str
    stops: tuple[Stop, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLink:
    reporter: WorkerId
    peer: WorkerId
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distrusted:
    """A shadow's copy of a layer that differs from its owner's."""

    worker_id: WorkerId
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Layers that a worker is told to learn."""

    worker_id: WorkerId
    fetches: tuple[Fetch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Layers change hands before the plan that needs it. ``until``: when the change is made at the latest."""

    base_generation: int
    until: float
    lessons: tuple[Lesson, ...]
    learned: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What changes with decisions; what changes with every step is ``Progress``."""

    spec: RunSpec
    state: RunState = RunState.STARTING
    since: float
    reason: RunReason = RunReason.NONE
    detail: str = ""
    started_at: float
    ended_at: float | None = None
    stop_requested: bool = False
    profiler: WorkerId | None = None
    costs: tuple[LayerCost, ...] = ()
    training: TrainingSpec | None = None
    """``spec.training`` with ``checkpoint_every`` resolved."""
    plan: Plan | None = None
    base_generation: int = 0
    """Of the boundary plan that ``plan`` is or descends from."""
    settled: bool = False
    """That boundary plan was adopted by all: every member holds its layers."""
    restoring: int | None = None
    """Steps that are run again since that plan goes back to a checkpoint (or the seed); until all have read it."""
    adopted: tuple[WorkerId, ...] = ()
    complete: tuple[WorkerId, ...] = ()
    """Who said ``RunComplete``."""
    pause: Pause | None = None
    """Kept while waiting: who holds what."""
    change_since: float | None = None
    """When the reconfiguration that is wanted was first wanted."""
    handover: Handover | None = None
    broken: tuple[BrokenLink, ...] = ()
    suspects: tuple[WorkerId, ...] = ()
    """Once for each broken link of which the other end was blamed."""
    distrusted: tuple[Distrusted, ...] = ()
    drills_done: tuple[int, ...] = ()
    drills_struck: tuple[int, ...] = ()
    """Of those done, the ones that found somebody."""
    num_crashes: int = 0
    """Workers of the run that ended by themselves since a step beyond ``crashed_after`` was committed."""
    crashed_after: int = -1
    model_writer: WorkerId | None = None
    model_url: str = ""
    num_parameters: int = 0
    weights_sha256: str = ""

    @property
    def run_id(self) -> str:
        return self.spec.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    run_id: str
    committed_step: int = -1
    """The newest committed step; goes back at a restore."""
    untold_step: int | None = None
    """The first step that is committed though nobody has told of it."""
    loss: float | None = None
    first_loss: float | None = None
    summary: StepSummary | None = None
    """Of ``committed_step``, where known."""
    num_samples: int = 0
    """That count: a step that is run again counts once."""
    num_tokens: int = 0
    tokens_per_step: int = 0
    preemptions: int = 0
    failovers: int = 0
    reconfigurations: int = 0
    restores: int = 0
    steps_rerun: int = 0
    pause_s: float = 0.0
    last_commit_at: float | None = None
    disturbed: bool = False
    """By a loss or a reconfiguration since the last commit."""
    step_seconds: tuple[float, ...] = ()
    """Of the latest undisturbed steps."""
    link_bytes_per_s: float | None = None
    """What the last learner saw."""
    num_stale: int = 0
    """Messages of older generations that were refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checkpoint out of turn, of the members of one plan."""

    step: int
    generation: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    run_id: str
    listed: bool = False
    trouble: str = ""
    """Why they could not be listed."""
    complete: tuple[int, ...] = ()
    """Steps, oldest first."""
    unreadable: tuple[int, ...] = ()
    saved: tuple[LayerSaved, ...] = ()
    """Of checkpoints that lack layers or their marker."""
    last_failed: int | None = None
    """The step of the newest one that could not be written."""
    last_tries: int = 0
    """To write the one of the last step, that failed."""
    retry_at: float | None = None
    """When the members save the last step again. Until then, further failures are of the same try."""
    marking: tuple[int, ...] = ()
    """Steps whose marker is being written."""
    asked: Asked | None = None
    """The newest one that was asked for out of turn."""


Entity = Cluster | Node | Run | Progress | Checkpoints

_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "cluster": TypeAdapter(Cluster),
    "node": TypeAdapter(Node),
    "run": TypeAdapter(Run),
    "progress": TypeAdapter(Progress),
    "checkpoints": TypeAdapter(Checkpoints),
}


def encode_row(name: str, entity: Entity) -> str:
    return _ADAPTERS[name.partition("/")[0]].dump_json(entity).decode()


def decode_row(name: str, text: str) -> Any:
    """Raises pydantic.ValidationError when the row was not written by ``encode_row``."""
    return _ADAPTERS[name.partition("/")[0]].validate_json(text)
