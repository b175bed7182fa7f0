"""What an agent and the coordinator say to each other over the link (a WebSocket; one JSON object a message).

Agent to coordinator, everything but ``Beat`` travels in an ``Envelope`` with a sequence number and is kept by the
agent until acknowledged, so nothing is lost while the coordinator is away; the coordinator acknowledges after its
transaction, so nothing is handled twice. Coordinator to agent, messages are derived from state: when a link is made
anew, the coordinator says again whatever still holds.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from bamboo_trainer.control import FromWorker, ToWorker
from bamboo_trainer.plan import NodeId, WorkerId
from pydantic import Field, TypeAdapter

PROTOCOL_VERSION = 2

# --- agent to coordinator --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A live worker process, as its agent knows it."""

    worker_id: WorkerId
    ready: bool
    address: str = ""
    port: int = 0
    run_id: str | None = None
    """Of the last ``Prepared``."""
    generation: int = 0
    """Of the last plan handed to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """First message on every connection."""

    kind: Literal["join"] = "join"
    protocol_version: int
    node_id: NodeId
    boot_id: str
    """Of this agent process; another value under the same node id is another life of the node."""
    instance_id: str
    zone: str
    address: str
    pid: int
    workers: tuple[WorkerState, ...]
    num_accelerators: int = 1
    """So many workers the node is given. (Version 1 did not say.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Liveness. ``silence_s``: seconds since each worker was last heard by the agent."""

    kind: Literal["beat"] = "beat"
    silence_s: dict[str, float]
    sent_at: float = 0.0
    """By the agent's clock; 0: an older agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    kind: Literal["worker_started"] = "worker_started"
    worker_id: WorkerId
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    kind: Literal["worker_exited"] = "worker_exited"
    worker_id: WorkerId
    exit_code: int
    """Negative: the signal that ended it."""
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    kind: Literal["worker_said"] = "worker_said"
    worker_id: WorkerId
    message: Annotated[FromWorker, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The cloud takes the node at ``deadline`` (seconds since the epoch, by the agent's clock)."""

    kind: Literal["notice"] = "notice"
    action: str
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A warning without a deadline (rebalance recommendation). Recorded, never acted on as a notice."""

    kind: Literal["hint"] = "hint"
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTrouble:
    """The metadata service answers badly; told once, polled on for ever."""

    kind: Literal["metadata_trouble"] = "metadata_trouble"
    detail: str


AgentMessage = WorkerStarted | WorkerExited | WorkerSaid | Notice | Hint | MetadataTrouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """``sequence`` counts from 1 within one ``boot_id``."""

    kind: Literal["envelope"] = "envelope"
    sequence: int
    sent_at: float
    message: Annotated[AgentMessage, Field(discriminator="kind")]


FromAgent = Join | Beat | Envelope

# --- coordinator to agent --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answer to ``Join``. Envelopes up to ``acknowledged`` need not be sent again."""

    kind: Literal["welcome"] = "welcome"
    acknowledged: int
    beat_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Answer to ``Join``: go away. ``final``: do not try again (the agent ends its workers and itself)."""

    kind: Literal["refused"] = "refused"
    reason: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    kind: Literal["acknowledge"] = "acknowledge"
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a worker process under this id, unless it already runs. Worker ids are given by the coordinator.

    ``accelerator``: its number on the node, from 0; the worker sees no other.
    """

    kind: Literal["start_worker"] = "start_worker"
    worker_id: WorkerId
    accelerator: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorker:
    """End the process: at once with ``fence`` (SIGKILL), else by asking first."""

    kind: Literal["stop_worker"] = "stop_worker"
    worker_id: WorkerId
    fence: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWorker:
    """Relay. Dropped (and logged) when the worker is not there: ``WorkerExited`` tells the coordinator."""

    kind: Literal["tell_worker"] = "tell_worker"
    worker_id: WorkerId
    message: Annotated[ToWorker, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The node is no longer wanted: end the workers and exit."""

    kind: Literal["leave"] = "leave"
    reason: str


ToAgent = Welcome | Refused | Acknowledge | StartWorker | StopWorker | TellWorker | Leave


@cache
def _from_agent() -> TypeAdapter[FromAgent]:
    """Built when it is first used, as the others: whoever only reads a state file would wait for nothing."""
    return TypeAdapter(Annotated[FromAgent, Field(discriminator="kind")])


@cache
def _envelope() -> TypeAdapter[Envelope]:
    return TypeAdapter(Envelope)


@cache
def _to_agent() -> TypeAdapter[ToAgent]:
    return TypeAdapter(Annotated[ToAgent, Field(discriminator="kind")])


def decode_from_agent(text: str | bytes) -> FromAgent:
    """Raises ValueError (pydantic.ValidationError, json.JSONDecodeError) on anything else."""
    value: Any = json.loads(text)
    return _from_agent().validate_python(value)


def decode_envelope(text: str | bytes) -> Envelope:
    """Raises ValueError on anything else."""
    return _envelope().validate_json(text)


def decode_to_agent(text: str | bytes) -> ToAgent:
    """Raises ValueError (pydantic.ValidationError, json.JSONDecodeError) on anything else."""
    value: Any = json.loads(text)
    return _to_agent().validate_python(value)
