"""What the coordinator knows of the cluster and its nodes, one frozen value per stored row."""

from dataclasses import dataclass

from bamboo_trainer.plan import NodeId, WorkerId, node_id_of

from bamboo_cli.coordinator.requested import Request
from bamboo_cli.coordinator.states import NodeReason, NodeState, WorkerState


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
    gives_back_at: float | None = None
    """When all nodes are given back unless a run begins before; None: one is on, or that is not wanted."""
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
    device: str = ""
    """What it computes on; empty before it is prepared."""
    device_bytes: int | None = None
    """Of that device's memory, free for the model; None: no limit is known."""

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
