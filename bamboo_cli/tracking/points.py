"""What a tracker is told of a run, and what a tracker has to be able to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bamboo_cli.errors import BambooError


class TrackerError(BambooError):
    """A tracker could not take what it was given. Training does not care; it is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A committed step. ``at``: seconds since the epoch."""

    step: int
    at: float
    values: Mapping[str, float]
    """By name, such as ``train/loss``; what is not known of the step is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line of the story. ``step``: the newest one that was committed by then, or the one that the line names."""

    step: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What a tracker calls a run: those that go on from one another's checkpoints are one curve."""

    name: str
    run_id: str
    """The run that draws it now."""
    job: Mapping[str, Any]
    job_text: str
    first_step: int
    """Nothing before it is told again: earlier points stay."""
    is_new: bool
    """Nothing of this run was told before."""


class Tracker(Protocol):
    """Each call may take its time, and raises TrackerError, or anything else, when it fails."""

    rewinds: bool
    """A step may be told again, and then only counts as it was told last."""

    def begin(self, curve: Curve) -> int:
        """Returns the first step that it has not got for sure: ``curve.first_step``, or a later one."""
        ...

    def tell(self, points: tuple[Point, ...], notes: tuple[Note, ...], rewind_to: int | None) -> None:
        """``rewind_to``: what was told of this step and later ones does not count any more. Durable on return."""
        ...

    def end(self, state: str) -> None:
        """The run is over. ``state``: ``done``, ``stopped`` or ``failed``."""
        ...

    def close(self) -> None:
        """Let go of it; ``begin`` takes it up again. Never raises."""
        ...
