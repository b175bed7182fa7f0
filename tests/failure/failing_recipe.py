"""The MLP, on a device that fails once: the first worker whose last layer has been called so often loses it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from bamboo_trainer.models import mlp
from bamboo_trainer.recipe import LayerFactory, Recipe
from torch import Tensor, nn


class FailsOnce(nn.Module):
    def __init__(self, inner: nn.Module, flag: Path, calls: int) -> None:
        super().__init__()
        self.inner, self.flag, self.calls_left = inner, flag, calls

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            self.calls_left -= 1
        if self.calls_left <= 0 and not self.flag.exists():
            self.flag.touch()
            raise torch.AcceleratorError("the device fell off the bus")
        return self.inner(x)


def recipe(*, flag: str, calls: int) -> Recipe:
    """``calls``: of the layer in one process, before it fails."""
    plain = mlp.recipe(sleep_forward_s=0.004, sleep_backward_s=0.004)
    last = plain.layers[-1]

    def build() -> nn.Module:
        return FailsOnce(last.build(), Path(flag), calls)

    return replace(plain, layers=(*plain.layers[:-1], LayerFactory(last.name, partial(build))))
