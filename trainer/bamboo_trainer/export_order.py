"""What ``bamboo_trainer.export`` and ``bamboo_trainer.evaluate`` are asked and what they answer, as JSON. No torch."""

from dataclasses import dataclass

from bamboo_trainer.control import TrainingSpec

TRAINING_DATA = "training"
"""In place of a path: the data that was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOrder:
    spec: TrainingSpec
    step: int
    """Of a complete checkpoint."""
    target_url: str
    """The folder to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    files: tuple[str, ...]
    num_parameters: int
    """In the file: a tied one once."""
    weights_sha256: str
    """As the checkpoint and the run have it."""
    architecture: str
    """Class of ``transformers`` that loads it; empty: the recipe does not say how one would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOrder:
    spec: TrainingSpec
    step: int
    num_batches: int | None
    """None: all of the data."""
    batch_size: int
    data: str | None
    """None: what the recipe holds out; ``TRAINING_DATA``; else for the recipe to open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    loss: float
    """The mean over the samples."""
    num_samples: int
    num_samples_there: int
    num_tokens: int
    """0: the recipe does not count tokens."""
