"""The autograd graphs of one stage and microbatch, one graph per layer.

The graph is cut between layers, so that a layer computes the same bits in any cut of the model into stages, redundant
computation can go on layer by layer, and a layer's memory is free as soon as its backward is done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bamboo_trainer.host_memory import HostMemory, LayerAside

Activation = Any
"""A tensor, or a tuple of tensors: what one layer gives the next."""


class StageGraph:
    def __init__(self, inputs: Activation) -> None:
        self.output: Activation = inputs
        """Of the layers done so far, detached."""
        self._input = inputs
        self._output_aside: HostMemory | None = None
        self._layers: list[tuple[Activation, Activation] | LayerAside] = []
        """Of each layer done so far: input (leaves) and output (with its graph), or what it has in host memory."""

    @property
    def num_layers_done(self) -> int:
        return len(self._layers)

    def advance(self, layer: Callable[..., Activation], *, needs_input_gradient: bool) -> None:
        """Forward through one more layer."""
        inputs = _leaf(self.output) if needs_input_gradient else self.output
        output = layer(*inputs) if isinstance(inputs, tuple) else layer(inputs)
        self._layers.append((inputs, output))
        self.output = _handed_on(output)

    def advance_aside(
        self,
        layer: Callable[..., Activation],
        *,
        needs_input_gradient: bool,
        host: HostMemory,
        own: Sequence[Tensor],
    ) -> None:
        """The same, with what is kept for the backward in host memory. ``own``: the layer's parameters and buffers."""
        output, aside = host.forward(
            layer,
            self.output,
            needs_input_gradient=needs_input_gradient,
            left_alone=(*own, *_as_tuple(self._input)),
        )
        self._layers.append(aside)
        self.output = _handed_on(output)

    def set_output_aside(self, host: HostMemory) -> None:
        self.output = _each(self.output, host.to_host)
        self._output_aside = host

    def fetch_output(self) -> None:
        """It is where it can be computed with."""
        if self._output_aside is not None:
            self.output = _each(self.output, self._output_aside.to_device)
            self._output_aside = None

    def backward(self, gradient: Activation | None) -> Activation | None:
        """Backward through the last layer that is left, whose graph is freed. Returns the gradient of its input."""
        last = self._layers.pop()
        if isinstance(last, LayerAside):
            return last.backward(gradient)
        inputs, output = last
        if gradient is not None:
            pairs = zip(_as_tuple(output), _as_tuple(gradient), strict=True)
            used = [(tensor, part) for tensor, part in pairs if tensor.requires_grad and part is not None]
            if used:
                torch.autograd.backward([tensor for tensor, _ in used], [part for _, part in used])
        if isinstance(inputs, tuple):
            return tuple(_gradient(tensor) for tensor in inputs)
        return _gradient(inputs)


def _leaf(value: Activation) -> Activation:
    if isinstance(value, tuple):
        return tuple(_leaf(part) for part in value)
    return value.detach().requires_grad_() if value.is_floating_point() else value


def _handed_on(value: Activation) -> Activation:
    """Row-major, as after a journey to another worker: the strides of an input may change a kernel's bits."""
    return _each(value, lambda part: part.detach().contiguous())


def _each(value: Activation, change: Callable[[Tensor], Tensor]) -> Activation:
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


def _as_tuple(value: Activation) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _gradient(leaf: Tensor) -> Tensor | None:
    if not leaf.requires_grad:
        return None
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
