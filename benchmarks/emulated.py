"""A recipe whose layers sleep as long as an accelerator would compute, and compute next to nothing.

For replays with eight and more workers on two cores, where the layers of ``mlp`` would keep the cores busy.
"""

from functools import partial

import torch
from bamboo_trainer.models.emulated_device import EmulatedDeviceTime
from bamboo_trainer.models.mlp import NUM_CLASSES, NUM_FEATURES, GeneratedPoints
from bamboo_trainer.recipe import LayerFactory, Recipe
from torch import nn
from torch.nn import functional


def recipe(*, depth: int, sleep_forward_s: float, sleep_backward_s: float) -> Recipe:
    """Seconds per layer and microbatch."""

    def build(num_outputs: int) -> nn.Module:
        layer = nn.Linear(NUM_FEATURES, num_outputs)
        return EmulatedDeviceTime(layer, forward_s=sleep_forward_s, backward_s=sleep_backward_s)

    widths = [NUM_FEATURES] * (depth - 1) + [NUM_CLASSES]
    return Recipe(
        layers=tuple(LayerFactory(f"layer.{i}", partial(build, width)) for i, width in enumerate(widths)),
        loss=functional.cross_entropy,
        dataset=GeneratedPoints(4096, 0),
        optimizer=partial(torch.optim.AdamW, foreach=True),
        learning_rate=lambda step: 1e-3,
        clip_norm=None,
    )
