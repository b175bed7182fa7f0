"""What a verification finds."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    EQUAL = "equal"
    """Bit for bit."""
    DIFFERS = "differs"
    UNCHECKED = "unchecked"
    """There is nothing on record to compare with."""


class About(StrEnum):
    LEDGER = "ledger"
    SAMPLES = "samples"
    RECIPE = "recipe"
    CHECKPOINT = "checkpoint"
    MODEL = "model"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it must be."""

    about: About
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    step: int
    num_pipelines: int
    verdict: Verdict
    detail: str = ""
    """Where it differs, or why it could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersVerdict:
    """All layers after ``step``, against a checkpoint or the digest of the final weights."""

    step: int
    what: str
    verdict: Verdict
    detail: str = ""
