"""What a worker and its agent say to each other, as one JSON object a line over a socket pair.
Over 300 lines because it is one vocabulary, to be read side by side; there is no logic in it.

Everything is a frozen dataclass with a ``kind``; ``encode`` and ``decode_*`` are the only codec. The agent relays
worker messages to the coordinator unread, so these types are also the coordinator's view of a worker.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from bamboo_trainer.plan import Fetch, Member, Plan, RedundancyMemory, StepSummary, WorkerId

# --- the training job, as a worker needs to know it ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A drill: the node of the worker vanishes (SIGKILL to its process group) when it reaches this place.

    ``action``: ``1F0`` / ``1B2`` / ``1FRC0`` (stage, kind, microbatch), or one of ``REDUCE``, ``COMMIT``,
    ``OPTIMIZER``, ``CHECKPOINT``, ``TAKEOVER``.
    ``how``: ``kill``, ``freeze`` (SIGSTOP of the worker), ``freeze_node`` (of all its processes), ``cut`` (its links to
    its peers drop and stay down).
    Exactly one of ``node_id`` and (``pipeline_index``, ``stage_index``) names the victim.
    """

    step: int
    action: str
    how: Literal["kill", "freeze", "freeze_node", "cut"] = "kill"
    node_id: str | None = None
    pipeline_index: int | None = None
    stage_index: int | None = None


class DeviceWish(StrEnum):
    """Where a worker shall compute. ``auto``: on a GPU where torch finds one, else on the CPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """One run, as every worker of it is told. The global batch is ``num_microbatches * microbatch_size`` samples."""

    run_id: str
    recipe: str
    """``gpt2``, ``mlp``, or an absolute path of a Python file (``file.py`` or ``file.py:function``)."""
    recipe_options: dict[str, Any]
    recipe_source: str = ""
    """The text of that file, for machines that have not got it; empty: they have."""
    num_steps: int
    num_microbatches: int
    microbatch_size: int
    seed: int
    checkpoint_url: str
    """fsspec URL of the folder that holds the run's checkpoints."""
    checkpoint_every: int
    """Steps between checkpoints; the last step is always saved."""
    digest_every: int = 100
    """Steps between comparisons of shadows with their owners; 0: never."""
    redundancy_memory: RedundancyMemory = RedundancyMemory.DEVICE
    device: DeviceWish = DeviceWish.AUTO
    num_threads: int = 1
    """Fixed, since sums over threads change bits (LayerNorm and bias gradients)."""
    kills: tuple[Kill, ...] = ()


# --- agent to worker -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Import the recipe; answered by ``Prepared`` or ``WorkerFailed``. ``profile``: also measure the layers."""

    kind: Literal["prepare"] = "prepare"
    spec: TrainingSpec
    profile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Run under this plan. Plans that are not newer than the current one are ignored."""

    kind: Literal["adopt"] = "adopt"
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """Stop at the next step boundary that all members agree on; answered by ``Stopped``."""

    kind: Literal["quiesce"] = "quiesce"
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Stop at once, drop the step in flight and refuse generations below this one; answered by ``Stopped``."""

    kind: Literal["halt"] = "halt"
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learn:
    """Get these layers and follow them, for a plan that is to come; answered by ``Learned``. docs/handover.md."""

    kind: Literal["learn"] = "learn"
    base_generation: int
    """Of the boundary plan in force, or that the one in force descends from."""
    fetches: tuple[Fetch, ...]
    sources: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Save the layers after this step, as if a checkpoint were due. Too late for a step that is past, but for the last
    one: then the checkpoint stays incomplete, and invisible."""

    kind: Literal["save"] = "save"
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteModel:
    """Merge the layer files of a complete checkpoint into one safetensors file; answered by ``ModelWritten``."""

    kind: Literal["write_model"] = "write_model"
    checkpoint_step: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    kind: Literal["exit"] = "exit"


ToWorker = Prepare | Adopt | Quiesce | Halt | Learn | Save | WriteModel | Exit

# --- worker to agent (and, relayed, to the coordinator) --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """torch is loaded and the worker listens for peers."""

    kind: Literal["worker_ready"] = "worker_ready"
    address: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Measured on the worker for one microbatch. Seconds and bytes."""

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    activation_bytes: int
    """Of the layer's output for one microbatch."""
    kept_bytes: int | None = None
    """What its forward keeps for the backward of one microbatch; None: not measured, taken for twice the output."""
    optimizer_bytes: int | None = None
    """Of the optimizer's state; None: not measured, taken for Adam's two moments."""
    update_s: float = 0.0
    """Of one optimizer step."""

    @property
    def kept(self) -> int:
        return 2 * self.activation_bytes if self.kept_bytes is None else self.kept_bytes

    @property
    def state_bytes(self) -> int:
        """Parameters and optimizer state: what travels when the layer changes hands."""
        moments = 2 * self.parameter_bytes if self.optimizer_bytes is None else self.optimizer_bytes
        return self.parameter_bytes + moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    kind: Literal["prepared"] = "prepared"
    run_id: str
    layer_names: tuple[str, ...]
    costs: tuple[LayerCost, ...] = ()
    """Only after ``Prepare(profile=True)``."""
    device: str = ""
    """Name of the device that the worker computes on."""
    device_bytes: int | None = None
    """Of its memory, free before the worker put anything there; None: no limit is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """All layers of the plan are here; the worker trains (or waits for its peers to)."""

    kind: Literal["adopted"] = "adopted"
    generation: int
    fetched_bytes: int = 0
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """All layers of ``Learn`` are here, and follow."""

    kind: Literal["learned"] = "learned"
    base_generation: int
    layers: tuple[int, ...]
    num_bytes: int = 0
    took_s: float = 0.0
    """From ``Learn`` to the last layer's arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """From the plan's reporter. Told again under a new plan (see ``Plan.told_step``): count each step once."""

    kind: Literal["step_committed"] = "step_committed"
    generation: int
    plan_generation: int
    """Of the plan under which it was committed."""
    summary: StepSummary
    learning_rate: float
    step_s: float
    """From the previous commit that this worker saw to this one."""
    num_samples: int
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """In answer to ``Quiesce`` or ``Halt``. All held layers are at ``committed_step``."""

    kind: Literal["stopped"] = "stopped"
    generation: int
    committed_step: int
    """The last step applied here; -1: none."""
    layers: tuple[int, ...]
    summary: StepSummary | None
    """Of ``committed_step``, where known."""
    held_step: int | None = None
    """A step beyond it whose reduced gradients are all held here: it can be rolled forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBroken:
    """The link to a peer ended and could not be made again at once."""

    kind: Literal["peer_broken"] = "peer_broken"
    generation: int
    peer: WorkerId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRestored:
    kind: Literal["peer_restored"] = "peer_restored"
    generation: int
    peer: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver:
    """The worker hosts a lost stage in mid-step. For the story."""

    kind: Literal["took_over"] = "took_over"
    generation: int
    step: int
    pipeline_index: int
    stage_index: int
    forwards_at_hand: int
    """FRC results that did not have to be computed again."""


class Slot(NamedTuple):
    """What a worker's loop did, from when to when: microseconds since the page's ``began_at``.

    ``action``: as the schedule spells it (``1F0``, ``R4.0``, ``COMMIT``), or ``PLAN5`` and ``FAILOVER5`` (the plan of
    generation 5 is adopted), ``LOAD3`` and ``GIVE3`` (layer 3 is put in place, is copied for a peer).
    """

    action: str
    pipeline_index: int
    start_us: int
    end_us: int


class Arrival(NamedTuple):
    """A datum of the step from a peer: named by the action that made it, or ``C4.0`` (a contribution), ``SUM3.5`` (of
    layer 3, the microbatches before 5), ``LAYER3``.

    ``at_us`` as in ``Slot``; below zero: it came while this worker was still at the step before.
    """

    datum: str
    pipeline_index: int
    sender: WorkerId
    at_us: int


class RecordedWhy(StrEnum):
    FIRST = "first"
    """Of the first steps of a plan."""
    SAMPLE = "sample"
    CHANGE = "change"
    """In this step, or in the one before or after it, the plan changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A page of the flight recorder: one step, or one try at it, of this worker. docs/trace.md."""

    kind: Literal["recorded"] = "recorded"
    version: Literal[1] = 1
    """Of the meaning of what follows."""
    run_id: str
    generation: int
    """Under which the step was ended or given up."""
    step: int
    began_at: float
    """Seconds since the epoch on the worker's own clock."""
    committed: bool
    """False: the step was given up here, and run again under another plan."""
    why: RecordedWhy
    slots: tuple[Slot, ...]
    """Of the one thread that computes: in order, and none overlaps another."""
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSaved:
    """One layer file of a checkpoint is durable. The coordinator writes the marker when all are."""

    kind: Literal["layer_saved"] = "layer_saved"
    checkpoint_step: int
    layer: int
    name: str
    file: str
    num_bytes: int
    file_sha256: str
    parameters_sha256: str
    """Of the layer's parameter bytes in name order: equal wherever the parameters are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """Training goes on; the older checkpoints stay. That of the last step is tried again."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    checkpoint_step: int
    layer: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestMismatch:
    """A shadow's copy differs from its owner's. Sent by the shadow; it no longer counts as a holder of the layer."""

    kind: Literal["digest_mismatch"] = "digest_mismatch"
    generation: int
    step: int
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComplete:
    """The last step is committed and its checkpoint handed to the writer."""

    kind: Literal["run_complete"] = "run_complete"
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWritten:
    kind: Literal["model_written"] = "model_written"
    checkpoint_step: int
    url: str
    num_parameters: int
    weights_sha256: str


class Fault:
    """Values of ``WorkerFailed.fault``."""

    RECIPE = "recipe"
    LOSS_NOT_FINITE = "loss_not_finite"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    DEVICE = "device"
    OUT_OF_MEMORY = "out_of_memory"
    BUG = "bug"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """The run cannot go on as it is. ``detail`` is written for people; a traceback goes to the worker's log."""

    kind: Literal["worker_failed"] = "worker_failed"
    fault: Literal["recipe", "loss_not_finite", "checkpoint_unreadable", "device", "out_of_memory", "bug"]
    detail: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat:
    """Every ``beat_s`` from a thread of its own; kept by the agent, not relayed."""

    kind: Literal["worker_beat"] = "worker_beat"


FromWorker = (
    WorkerReady
    | Prepared
    | Adopted
    | Learned
    | StepCommitted
    | Stopped
    | PeerBroken
    | PeerRestored
    | TookOver
    | Recorded
    | LayerSaved
    | CheckpointFailed
    | DigestMismatch
    | RunComplete
    | ModelWritten
    | WorkerFailed
    | WorkerBeat
)

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


@cache
def _to_worker() -> TypeAdapter[ToWorker]:
    """Built when it is first used: whoever only reads a state file would wait for nothing."""
    return TypeAdapter(Annotated[ToWorker, Field(discriminator="kind")])


@cache
def _from_worker() -> TypeAdapter[FromWorker]:
    return TypeAdapter(Annotated[FromWorker, Field(discriminator="kind")])


def warm_up() -> None:
    """Before forks, so that it is done once for all of them."""
    _to_worker(), _from_worker()


def encode(message: object) -> bytes:
    """One line of JSON without the newline."""
    return json.dumps(_ANY.dump_python(message, mode="json"), separators=(",", ":"), allow_nan=True).encode()


def decode_to_worker(line: bytes) -> ToWorker:
    """Raises pydantic.ValidationError on anything else."""
    return _to_worker().validate_python(json.loads(line))


def decode_from_worker(line: bytes) -> FromWorker:
    """Raises pydantic.ValidationError on anything else."""
    return _from_worker().validate_python(json.loads(line))
