"""What each layer costs, measured one layer at a time, so that the whole model is never in memory.

On the way it is checked that every layer takes what the one before it gives, and the loss what the last one gives.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from bamboo_trainer.batch import describe, load_batch
from bamboo_trainer.control import LayerCost, TrainingSpec
from bamboo_trainer.device import CPU, NOT_OF_THE_RECIPE, Device
from bamboo_trainer.layout import build
from bamboo_trainer.recipe import LayerFactory, Recipe, RecipeError
from bamboo_trainer.stage import Activation, StageGraph

NUM_REPEATS = 3
"""After one that warms caches up; the median counts."""


def measure_layers(spec: TrainingSpec, recipe: Recipe, device: Device = CPU) -> tuple[LayerCost, ...]:
    """Seconds and bytes of each layer for one microbatch. Raises RecipeError when layers do not fit together.

    Layers whose factories are equal ``functools.partial`` objects and whose inputs have equal shapes are measured once.
    """
    torch.set_num_threads(spec.num_threads)
    value, targets = device.to_device(load_batch(spec, recipe, 0, 0))
    costs: list[LayerCost] = []
    measured: dict[tuple[object, ...], tuple[LayerCost, Activation]] = {}
    for index, layer in enumerate(recipe.layers):
        key = (*_identity(layer), describe(value), index == 0, index == len(recipe.layers) - 1)
        if key not in measured:
            measured[key] = _measure(recipe, index, value, targets, device)
        cost, value = measured[key]
        costs.append(replace(cost, name=layer.name))
    return tuple(costs)


def forward_layer(recipe: Recipe, index: int, module: nn.Module, value: Activation, targets: Any) -> StageGraph:
    """Forward through layer ``index`` (and the loss, after the last). Raises RecipeError in terms of the recipe."""
    graph = StageGraph(value)
    versions = [buffer._version for buffer in module.buffers()]

    def checked(*inputs: Tensor) -> Activation:
        output = module(*inputs)
        _check_output(recipe.layers[index].name, output)
        return output

    try:
        graph.advance(checked, needs_input_gradient=index > 0)
    except RecipeError:
        raise
    except NOT_OF_THE_RECIPE:
        raise
    except Exception as error:
        giver = f"layer {recipe.layers[index - 1].name}" if index else "the data set"
        raise RecipeError(
            f"layer {recipe.layers[index].name} does not take what {giver} gives it, {describe(value)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if versions != [buffer._version for buffer in module.buffers()]:
        raise RecipeError(
            f"layer {recipe.layers[index].name} changes a buffer in forward (as BatchNorm does), which a "
            "redundant forward would do twice; use a layer without running statistics, such as LayerNorm or GroupNorm"
        )
    if index == len(recipe.layers) - 1:
        _add_loss(recipe, graph, targets)
    return graph


def _add_loss(recipe: Recipe, graph: StageGraph, targets: Any) -> None:
    output = graph.output
    what = f"the output of layer {recipe.layers[-1].name}, {describe(output)}, and the targets, {describe(targets)}"
    try:
        graph.advance(lambda *x: recipe.loss(x if len(x) > 1 else x[0], targets), needs_input_gradient=True)
    except NOT_OF_THE_RECIPE:
        raise
    except Exception as error:
        raise RecipeError(f"the loss does not take {what}: {type(error).__name__}: {error}") from error
    loss = graph.output
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.dim() != 0:
        raise RecipeError(f"the loss gives {describe(loss)}; it must give the mean over the samples, a scalar tensor")


def _check_output(name: str, output: Any) -> None:
    parts = output if isinstance(output, tuple) else (output,)
    if not all(isinstance(part, Tensor) for part in parts):
        raise RecipeError(f"layer {name} gives {describe(output)}; it must give a tensor or a tuple of tensors")


def keep_track(run: Callable[[], StageGraph], module: nn.Module) -> tuple[StageGraph, int]:
    """What ``run`` gives, and the bytes that its forward keeps: its output, and what is saved for the backward,
    parameters aside. Also on the meta device."""
    own = {p.untyped_storage()._cdata for p in module.parameters()}
    kept: dict[int, UntypedStorage] = {}  # held on to, so that no address is given out twice

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        graph = run()
    for part in _parts(graph.output):
        note(part)
    return graph, sum(storage.nbytes() for storage in kept.values())


def measure_optimizer(recipe: Recipe, module: nn.Module, device: Device = CPU) -> tuple[int, float]:
    """Bytes of its state, and seconds of a step that does not have to make it. The parameters have gradients."""
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        return 0, 0.0
    optimizer = recipe.optimizer(trained)
    optimizer.step()
    device.synchronize()
    begun = time.perf_counter()
    optimizer.step()
    device.synchronize()
    took_s = time.perf_counter() - begun
    tensors = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return sum(num_bytes(tensor) for tensor in tensors), took_s


def _measure(
    recipe: Recipe, index: int, value: Activation, targets: Any, device: Device
) -> tuple[LayerCost, Activation]:
    module = build(recipe.layers[index]).train().to(device.torch_device)
    forwards, backwards, output = [], [], value
    for _ in range(1 + NUM_REPEATS):
        begun = time.perf_counter()
        graph = forward_layer(recipe, index, module, value, targets)
        device.synchronize()
        middle = time.perf_counter()
        if index < len(recipe.layers) - 1:
            output = graph.output
        gradient = _ones_like(graph.output)
        while graph.num_layers_done:
            gradient = graph.backward(gradient)
        device.synchronize()
        forwards.append(middle - begun)
        backwards.append(time.perf_counter() - middle)
    _, kept_bytes = keep_track(partial(forward_layer, recipe, index, module, value, targets), module)
    optimizer_bytes, update_s = measure_optimizer(recipe, module, device)
    cost = LayerCost(
        name=recipe.layers[index].name,
        forward_s=statistics.median(forwards[1:]),
        backward_s=statistics.median(backwards[1:]),
        parameter_bytes=sum(p.numel() * p.element_size() for p in module.parameters()),
        activation_bytes=num_bytes(graph.output if index == len(recipe.layers) - 1 else output),
        kept_bytes=kept_bytes,
        optimizer_bytes=optimizer_bytes,
        update_s=update_s,
    )
    return cost, output


def _identity(layer: LayerFactory) -> tuple[object, ...]:
    """Equal for layers that are built alike; its own for each other layer."""
    build = layer.build
    if not isinstance(build, partial):
        return (layer.name,)
    return build.func, repr(build.args), repr(sorted(build.keywords.items()))


def _parts(value: Activation) -> Sequence[Tensor]:
    return value if isinstance(value, tuple) else (value,)


def _ones_like(value: Activation) -> Activation:
    parts = tuple(torch.ones_like(part) for part in _parts(value))
    return parts if isinstance(value, tuple) else parts[0]


def num_bytes(value: Activation) -> int:
    return sum(part.numel() * part.element_size() for part in _parts(value))
