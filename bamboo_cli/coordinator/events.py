"""What can happen (events) and what is to be done (instructions). The machine turns the one into the other.
Over 300 lines because it is one vocabulary, to be read side by side; there is no logic in it.

The machine, as the shell sees it (``bamboo_cli.coordinator.machine``)::

    machine = Machine(config)                  # and machine.load(rows), where some were stored; then Started()
    instructions = machine.handle(event, now)  # now: seconds since the epoch
    rows = machine.changed_rows()              # {row name: JSON text} that differ since the last call

Handle one event per transaction, store the changed rows in it (``cluster``, ``node/n3``, ``run/…``, ``progress/…``,
``checkpoints/…``), then carry out the instructions in order. An event may be given twice. Every ``CreateInstance``,
``TerminateInstance``, ``MarkCheckpoint`` and ``ListCheckpoints`` is answered by an event, sooner or later; after a
restart the machine asks again, with the same token.
"""

from dataclasses import dataclass
from enum import StrEnum

from bamboo_agent.messages import AgentMessage, Join, ToAgent
from bamboo_trainer.control import LayerSaved, Recorded
from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator.requested import CloseCluster as CloseCluster
from bamboo_cli.coordinator.requested import Drain as Drain
from bamboo_cli.coordinator.requested import Request as Request
from bamboo_cli.coordinator.requested import StartRun as StartRun
from bamboo_cli.coordinator.requested import StopRun as StopRun
from bamboo_cli.coordinator.settings import Resumes
from bamboo_cli.coordinator.story_kinds import StoryKind as StoryKind
from bamboo_cli.providers.base import EndReason, Instance

# --- events: time and agents -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The coordinator begins, with a new state or a loaded one. No agent is linked; all leases start anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passes; about every quarter of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJoined:
    """An agent with the right secret is on the line. Answered by ``Welcome`` or ``RefuseAgent``."""

    join: Join


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDropped:
    """The newest link of the node ended. (An older one that a newer has replaced ends unsaid.)"""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBeat:
    node_id: NodeId
    silence_s: dict[str, float]
    sent_at: float = 0.0
    """By the agent's clock; 0: it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSaid:
    """An envelope, opened. A number that this ``boot_id`` has used before is acknowledged again and else ignored."""

    node_id: NodeId
    message: AgentMessage
    boot_id: str = ""
    sequence: int = 0
    """0: unnumbered, always handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerRefused:
    """Somebody without the secret, or who speaks another language, was turned away by the server. For the story."""

    address: str
    detail: str


# --- events: the cloud -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSeen:
    """The cloud lists the instance, not yet terminated. Once, and when its facts change."""

    instance: Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnded:
    """The cloud says that the instance is gone, or no longer lists it.

    Also the answer to ``TerminateInstance`` where there was nothing.
    """

    node_id: NodeId
    reason: EndReason
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSucceeded:
    instance: Instance


class CreateFault(StrEnum):
    CAPACITY = "capacity"
    QUOTA = "quota"
    CREDENTIALS = "credentials"
    REFUSED = "refused"
    """The request itself is wrong."""
    CLOUD = "cloud"
    """Anything else. Whether an instance came of it is unknown: the same token is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFailed:
    node_id: NodeId
    token: str
    fault: CreateFault
    detail: str


# --- events: machines that are made nodes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegun:
    """The machine is being prepared; ``doing`` is for people. Again when its preparation is begun again."""

    node_id: NodeId
    instance_id: str
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationFailed:
    """The machine cannot be made a node, or not be reached any more; told again while that lasts."""

    node_id: NodeId
    instance_id: str
    step: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WayLost:
    """The bastion, through which all machines are reached, cannot be reached itself. Once, until ``WayFound``."""

    bastion: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WayFound:
    """The bastion lets us through again."""

    bastion: str


# --- events: checkpoints ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoints:
    """Answer to ``ListCheckpoints``: the steps with a marker, in order."""

    run_id: str
    steps: tuple[int, ...]
    not_copied: str = ""
    """Why the checkpoint of the run that this one goes on from is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFailed:
    """``ListCheckpoints`` could not be done and is tried again."""

    run_id: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMarked:
    run_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkFailed:
    run_id: str
    step: int
    detail: str


# --- events: requests of the user ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSoFar:
    """By the ledger, on the run."""

    run_id: str
    microusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMade:
    request_id: int
    request: Request


Event = (
    Started
    | Tick
    | AgentJoined
    | AgentDropped
    | AgentBeat
    | AgentSaid
    | StrangerRefused
    | InstanceSeen
    | InstanceEnded
    | CreateSucceeded
    | CreateFailed
    | StepBegun
    | PreparationFailed
    | WayLost
    | WayFound
    | CompleteCheckpoints
    | ListingFailed
    | CheckpointMarked
    | MarkFailed
    | RequestMade
    | SpentSoFar
)

# --- instructions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToAgent:
    """Dropped when the node is not linked: what still holds is said again when it joins."""

    node_id: NodeId
    message: ToAgent


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseAgent:
    """Send ``Refused`` and close the link that has just joined."""

    node_id: NodeId
    reason: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateInstance:
    """Answered by ``CreateSucceeded`` or ``CreateFailed``."""

    node_id: NodeId
    zone: str
    token: str
    on_demand: bool = False
    """Where no spot instance is to be had, one on demand may be rented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateInstance:
    """Whatever carries the tag of this node. Answered by ``InstanceEnded`` once the cloud has it no more."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptInstance:
    """A drill: ask the cloud to take the node, with its usual notice or at once."""

    node_id: NodeId
    notice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCheckpoints:
    """Answered by ``CompleteCheckpoints``."""

    run_id: str
    url: str
    resumes: Resumes | None = None
    """To be copied there first, unless it has been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCheckpoint:
    """All layers of the step are durable (``entries`` in layer order): write the marker.

    Answered by ``CheckpointMarked`` or ``MarkFailed``.
    """

    run_id: str
    url: str
    step: int
    entries: tuple[LayerSaved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCheckpoints:
    """Delete complete checkpoints of the run but these. Best effort, not answered."""

    run_id: str
    url: str
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStep:
    """A committed step, once; again (same ``step``, overwrite) when it was run again after a restore."""

    run_id: str
    step: int
    generation: int
    loss: float
    gradient_norm: float
    learning_rate: float
    step_s: float
    num_samples: int
    num_tokens: int
    first_sample: int
    """Position in the run's endless row of samples (``bamboo_trainer.data``)."""
    losses: tuple[float, ...]
    """Per microbatch; with ``square_norms``, the fingerprint of the step: see ``StepSummary``."""
    square_norms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPage:
    """A page of a worker's flight recorder, for ``bamboo trace``. Again: overwrite."""

    worker_id: WorkerId
    page: Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """One line of the story of the cluster, a node or a run."""

    kind: StoryKind
    text: str
    node_id: NodeId | None = None
    run_id: str | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    """By name, for ``--json``: seconds, steps, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRequest:
    request_id: int
    ok: bool
    text: str
    """What came of it, for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCoordinator:
    """The cluster is closed and nothing is rented: the coordinator may end."""


Instruction = (
    SendToAgent
    | RefuseAgent
    | CreateInstance
    | TerminateInstance
    | PreemptInstance
    | ListCheckpoints
    | MarkCheckpoint
    | PruneCheckpoints
    | RecordStep
    | KeepPage
    | Tell
    | FinishRequest
    | StopCoordinator
)
