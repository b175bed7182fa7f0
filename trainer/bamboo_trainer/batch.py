"""One microbatch from the recipe's data set. What a data set gives wrongly is told in its own terms."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.data import sample_ids
from bamboo_trainer.recipe import Dataset, Recipe, RecipeError
from bamboo_trainer.stage import Activation

IDS_TOLD = 4
EXPECTED = "it must give (inputs, targets), the inputs a tensor or a tuple of tensors, stacked over the samples"


def load_batch(spec: TrainingSpec, recipe: Recipe, step: int, microbatch: int) -> tuple[Activation, Any]:
    """Inputs of the first layer and targets of the loss. Raises RecipeError with the samples that were asked for."""
    ids = sample_ids(
        seed=spec.seed,
        step=step,
        microbatch=microbatch,
        num_microbatches=spec.num_microbatches,
        microbatch_size=spec.microbatch_size,
        num_samples=len(recipe.dataset),
    )
    return check_batch(recipe.dataset, ids, f"step {step}, microbatch {microbatch}")


def check_batch(dataset: Dataset, ids: Sequence[int], where: str) -> tuple[Activation, Any]:
    """These samples. ``where``: for messages. Raises RecipeError."""
    told = f"data set {type(dataset).__name__}, {where}: batch() of {_names(ids)}"
    try:
        batch: Any = dataset.batch(ids)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{told} raised {type(error).__name__}: {error}") from error
    if wrong := _what_is_wrong(batch, len(ids)):
        raise RecipeError(f"{told} gave {wrong}; {EXPECTED}")
    inputs, targets = batch
    return inputs, targets


def _what_is_wrong(batch: Any, num_samples: int) -> str:
    """Empty: nothing that can be told. Targets are the loss's own affair, but for the rows of a tensor."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return describe(batch)
    inputs, targets = batch
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        return f"inputs that are {describe(inputs)}"
    if num_samples not in parts[0].shape:  # along whichever dimension: sequences may come time first
        return f"inputs of {num_samples} samples that are {describe(inputs)}"
    if isinstance(targets, Tensor) and targets.dim() > 0 and targets.shape[0] % num_samples:
        return f"targets of {num_samples} samples that are {describe(targets)}"
    return ""


def _names(ids: Sequence[int]) -> str:
    more = ", …" if len(ids) > IDS_TOLD else ""
    return f"{'sample' if len(ids) == 1 else 'samples'} {', '.join(map(str, ids[:IDS_TOLD]))}{more}"


def describe(value: Any) -> str:
    """Shapes and dtypes, for people and for comparisons."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(describe(part) for part in value)})"
    return type(value).__name__
