"""What workers say to each other. Every frame carries the generation that its sender runs under."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bamboo_trainer.compute import Value
from bamboo_trainer.plan import StepSummary
from bamboo_trainer.schedule import Key, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One keyed value of a step. ``loss``: with ``B`` frames, that of the microbatch."""

    generation: int
    step: int
    key: Key
    value: Value
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The sender holds the reduced gradients of all its layers; with what the commit needs to know from it."""

    generation: int
    step: int
    losses: dict[int, float]
    """By microbatch, as far as the sender knows them: from hosts of last stages, and those before them."""
    square_norms: dict[int, float]
    """By unit, from the hosts in pipeline 0."""
    stop: bool
    """Asked to stop at this boundary."""
    digests: dict[int, str] = field(default_factory=dict)
    """By layer, of the state before this step; only on steps that compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState:
    """What the sender has of its step; sent when a plan is adopted in mid-step and when a link comes up."""

    generation: int
    step: int
    have: frozenset[Key]
    last: StepSummary | None
    """Of the last committed step, ``step - 1``."""
    stopped: bool
    """The sender stopped at the boundary after ``last``."""
    losses: dict[int, float] = field(default_factory=dict)
    """By microbatch, as far as the sender knows them."""
    spared: frozenset[Share] = frozenset()
    """What it hosts of lost workers, and does not run since its sums are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLayer:
    generation: int
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHere:
    generation: int
    layer: int
    state: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnLayer:
    """Let me follow the layer. ``generation``, here and below: of the boundary plan under which it is taught."""

    generation: int
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """The layer as it is after ``step``. ``Update`` frames follow, one a step."""

    generation: int
    layer: int
    step: int
    state: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What the layer's optimizer step needs. ``sums``: chunks of reduced gradients by unit."""

    generation: int
    layer: int
    summary: StepSummary
    sums: dict[int, list[Value]]


Frame = Datum | Held | SyncState | FetchLayer | LayerHere | LearnLayer | Taught | Update


def with_values(frame: Frame, change: Callable[[Value], Value]) -> Frame:
    """The frame with the values of a step changed. States of layers stay: they are host bytes anyway."""
    match frame:
        case Datum():
            return replace(frame, value=change(frame.value))
        case Update():
            return replace(frame, sums={unit: [change(chunk) for chunk in sums] for unit, sums in frame.sums.items()})
    return frame
