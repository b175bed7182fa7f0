"""A recipe to start from: a small network that learns the sum of its inputs, cut into layers that Bamboo can spread.

A recipe is one function that returns what to train. Its arguments are the job file's ``recipe_options``. It is called
on every node, and must return the same each time; each node then builds only the layers that it holds.
"""

from collections.abc import Sequence

import torch
from bamboo_trainer.recipe import LayerFactory, Recipe
from torch import Tensor, nn


class Sums:
    """Samples by number. The same numbers must always give the same samples."""

    def __init__(self, seeds: range, num_inputs: int) -> None:
        """A sample for each of ``seeds``; other seeds, other samples."""
        self.seeds, self.num_inputs = seeds, num_inputs

    def __len__(self) -> int:
        return len(self.seeds)

    def batch(self, sample_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs (samples, num_inputs) for the first layer and targets (samples, 1) for the loss."""
        inputs = torch.stack([self._sample(self.seeds[sample_id]) for sample_id in sample_ids])
        return inputs, inputs.sum(dim=1, keepdim=True)

    def _sample(self, seed: int) -> Tensor:
        return torch.randn(self.num_inputs, generator=torch.Generator().manual_seed(seed))


def recipe(width: int = 64, depth: int = 6) -> Recipe:
    num_inputs = 8

    def first() -> nn.Module:
        return nn.Sequential(nn.Linear(num_inputs, width), nn.GELU())

    def middle() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))

    def last() -> nn.Module:
        return nn.Linear(width, 1)

    return Recipe(
        layers=(
            LayerFactory("first", first),
            *(LayerFactory(f"middle{index}", middle) for index in range(depth)),
            LayerFactory("last", last),
        ),
        loss=nn.functional.mse_loss,
        dataset=Sums(range(10_000), num_inputs),
        held_out=Sums(range(10_000, 10_500), num_inputs),  # never trained on; `bamboo eval` tells the loss on them
        optimizer=lambda parameters: torch.optim.AdamW(parameters, weight_decay=0.01),
        learning_rate=lambda step: 1e-3 * min(1.0, (step + 1) / 20),
        clip_norm=1.0,
    )
