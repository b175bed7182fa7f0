"""What ``bamboo_trainer.replay`` is asked and what it answers, as JSON: one order in, one line out for each answer.

No torch here: the command that compares is on the other side.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from bamboo_trainer.control import LayerSaved, TrainingSpec
from bamboo_trainer.plan import StepSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps ``[first_step, end_step)``, which ran under the same split of the microbatches over pipelines."""

    first_step: int
    end_step: int
    microbatches: tuple[tuple[int, int], ...]
    """Per pipeline: the first one, and the one after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    spec: TrainingSpec
    segments: tuple[Segment, ...]
    """Without a gap. The layers come from the checkpoint of the step before the first, at step 0 from the seed."""
    layers_after: tuple[int, ...] = ()
    """Steps after which all layers are to be described."""
    num_committed: int = 0
    """Steps whose samples are looked at, computed again or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBegun:
    kind: Literal["begun"] = "begun"
    unit_names: tuple[str, ...]
    """By reduction unit: its layer, or its layers where a parameter is tied."""
    num_samples: int
    """Of the data set."""
    repeated: tuple[int, int] | None
    """An epoch and a sample that is drawn twice in it, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReplayed:
    kind: Literal["step"] = "step"
    summary: StepSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersReplayed:
    """As a checkpoint of ``step`` would have them, in layer order."""

    kind: Literal["layers"] = "layers"
    step: int
    layers: tuple[LayerSaved, ...]


Answer = ReplayBegun | StepReplayed | LayersReplayed

_ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def decode_answer(line: bytes) -> Answer:
    """Written by ``control.encode``. Raises pydantic.ValidationError on anything else."""
    return _ANSWER.validate_json(line)
