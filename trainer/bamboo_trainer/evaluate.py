"""``python -m bamboo_trainer.evaluate``: the loss of a checkpoint on data that it was not trained on.

Reads an ``EvaluationOrder`` as JSON from standard input and prints ``Evaluated`` as one line of JSON. Exit codes as
those of ``answering``. The whole model is in this one process, without gradients and optimizer.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from bamboo_trainer.answering import answer
from bamboo_trainer.batch import check_batch
from bamboo_trainer.checkpoint import read_layer
from bamboo_trainer.device import Device, DeviceError, find_device
from bamboo_trainer.export_order import TRAINING_DATA, Evaluated, EvaluationOrder
from bamboo_trainer.held_layer import BUFFER, PARAMETER
from bamboo_trainer.layout import build
from bamboo_trainer.manifest import CheckpointError, Manifest, read_manifest
from bamboo_trainer.recipe import Dataset, Recipe, RecipeError, load_recipe


def main() -> int:
    return answer(EvaluationOrder, evaluate_as_asked)


def evaluate_as_asked(order: EvaluationOrder) -> Evaluated:
    spec = order.spec
    recipe = load_recipe(spec.recipe, spec.recipe_options, spec.recipe_source)
    try:
        device = find_device(spec.device)
    except DeviceError as error:
        raise RecipeError(str(error)) from error
    return evaluate(order, recipe, device)


def evaluate(order: EvaluationOrder, recipe: Recipe, device: Device) -> Evaluated:
    """Samples in their order, layers in ``eval()``. Raises RecipeError, CheckpointError."""
    dataset = choose_data(recipe, order.data)
    manifest = read_manifest(order.spec.checkpoint_url, order.step, order.spec.run_id)
    modules = load_modules(order.spec.checkpoint_url, manifest, recipe, device)
    there = len(dataset)
    wanted = there if order.num_batches is None else min(there, order.num_batches * order.batch_size)
    total = 0.0
    with torch.inference_mode():
        for first in range(0, wanted, order.batch_size):
            ids = range(first, min(first + order.batch_size, wanted))
            inputs, targets = check_batch(dataset, ids, "evaluation")
            loss = recipe.loss(_through(modules, device.to_device(inputs)), device.to_device(targets))
            total += float(loss) * len(ids)
    return Evaluated(
        loss=total / wanted,
        num_samples=wanted,
        num_samples_there=there,
        num_tokens=wanted * recipe.tokens_per_sample,
    )


def choose_data(recipe: Recipe, data: str | None) -> Dataset:
    """Raises RecipeError."""
    if data == TRAINING_DATA:
        return recipe.dataset
    if data is not None:
        if recipe.open_data is None:
            raise RecipeError("the recipe opens no other data (it has no `open_data`), so --data cannot name any")
        found = recipe.open_data(data)
    elif recipe.held_out is None:
        raise RecipeError(
            "the recipe holds no data out (it has no `held_out`): give it some, see docs/export.md, or name data with "
            "--data"
        )
    else:
        found = recipe.held_out
    if len(found) < 1:
        raise RecipeError("there is no sample to evaluate")
    return found


def load_modules(url: str, manifest: Manifest, recipe: Recipe, device: Device) -> list[nn.Module]:
    """All layers, with the checkpoint's parameters. Raises CheckpointError, RecipeError."""
    if [saved.name for saved in manifest.layers] != [layer.name for layer in recipe.layers]:
        raise CheckpointError(
            f"checkpoint of step {manifest.step} in {url} has other layers than the recipe; use the one that wrote it"
        )
    modules = []
    for index, layer in enumerate(recipe.layers):
        module, state = build(layer), read_layer(url, manifest, index)
        targets = {PARAMETER + name: parameter.detach() for name, parameter in module.named_parameters()}
        targets |= {BUFFER + name: buffer for name, buffer in module.named_buffers()}
        for name, target in targets.items():
            saved = state.get(name)
            if not isinstance(saved, Tensor) or saved.shape != target.shape or saved.dtype != target.dtype:
                raise CheckpointError(f"layer {layer.name} of the checkpoint has no {name} as the recipe has it now")
            target.copy_(saved)
        modules.append(module.eval().to(device.torch_device))
    return modules


def _through(modules: list[nn.Module], value: Any) -> Any:
    for module in modules:
        value = module(*value) if isinstance(value, tuple) else module(value)
    return value


if __name__ == "__main__":
    sys.exit(main())
