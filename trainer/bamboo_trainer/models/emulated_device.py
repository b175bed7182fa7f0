"""Emulated device time: a layer that sleeps as long as an accelerator would compute, for benchmarks of scheduling.

It says nothing about kernels, memory bandwidth, or the overlap of communication with computation beyond sleeping.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn


class EmulatedDeviceTime(nn.Module):
    """``module``, after whose forward (and before whose backward) the worker sleeps. Seconds per microbatch."""

    def __init__(self, module: nn.Module, *, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.module = module
        self.forward_s = forward_s
        self.backward_s = backward_s

    def forward(self, x: Tensor) -> Tensor:
        output = self.module(x)
        if output.is_meta:
            return output  # type: ignore[no-any-return]
        return _Sleep.apply(output, self.forward_s, self.backward_s)  # type: ignore[no-untyped-call, no-any-return]


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradient, None, None
