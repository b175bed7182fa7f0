"""A residual multilayer perceptron that learns to tell generated points apart: a training that takes seconds."""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bamboo_trainer.models.emulated_device import EmulatedDeviceTime
from bamboo_trainer.randomness import seed_of
from bamboo_trainer.recipe import LayerFactory, Recipe, RecipeError

NUM_FEATURES = 16
NUM_CLASSES = 8


def recipe(
    *,
    width: int = 32,
    depth: int = 6,
    dropout: float = 0.1,
    num_samples: int = 4096,
    num_held_out: int = 512,
    data_seed: int = 0,
    learning_rate: float = 1e-2,
    clip_norm: float | None = 1.0,
    sleep_forward_s: float = 0.0,
    sleep_backward_s: float = 0.0,
) -> Recipe:
    """``depth``: layers, first and last included. ``sleep_*_s``: emulated device time per layer and microbatch."""
    if depth < 2:
        raise RecipeError(f"recipe mlp: depth is {depth}; it needs at least 2 layers")
    blocks = [LayerFactory(f"block.{i}", partial(Block, width, dropout)) for i in range(depth - 2)]
    layers = [
        LayerFactory("input", partial(nn.Linear, NUM_FEATURES, width)),
        *blocks,
        LayerFactory("output", partial(nn.Linear, width, NUM_CLASSES)),
    ]
    if sleep_forward_s or sleep_backward_s:
        layers = [
            LayerFactory(layer.name, partial(_emulated, layer.build, sleep_forward_s, sleep_backward_s))
            for layer in layers
        ]
    dataset = GeneratedPoints(num_samples, data_seed)
    return Recipe(
        layers=tuple(layers),
        loss=functional.cross_entropy,
        dataset=dataset,
        held_out=dataset.others(num_held_out) if num_held_out else None,
        optimizer=partial(torch.optim.AdamW, foreach=True),
        learning_rate=lambda step: learning_rate,
        clip_norm=clip_norm,
    )


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) to (batch, width)"""
        hidden = self.down(functional.gelu(self.up(self.norm(x))))
        return x + self.dropout(hidden)  # type: ignore[no-any-return]


class GeneratedPoints:
    """Points with the class that a small random network gives them."""

    def __init__(self, num_samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(num_samples, NUM_FEATURES, generator=generator)
        self._first = torch.randn(NUM_FEATURES, 32, generator=generator)
        self._second = torch.randn(32, NUM_CLASSES, generator=generator)
        self.classes = self._classes_of(self.points)
        self._seed = seed

    def others(self, num_samples: int) -> "GeneratedPoints":
        """Of the same network, other points."""
        found = copy.copy(self)
        generator = torch.Generator().manual_seed(seed_of("held-out", self._seed))
        found.points = torch.randn(num_samples, NUM_FEATURES, generator=generator)
        found.classes = self._classes_of(found.points)
        return found

    def _classes_of(self, points: Tensor) -> Tensor:
        return (torch.tanh(points @ self._first) @ self._second).argmax(dim=1)

    def __len__(self) -> int:
        return len(self.points)

    def batch(self, sample_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(batch, NUM_FEATURES) and (batch,)"""
        index = torch.tensor(sample_ids)
        return self.points[index], self.classes[index]


def _emulated(build: Callable[[], nn.Module], forward_s: float, backward_s: float) -> nn.Module:
    return EmulatedDeviceTime(build(), forward_s=forward_s, backward_s=backward_s)
