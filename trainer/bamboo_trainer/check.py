"""``python -m bamboo_trainer.check``: can this recipe be trained? Asked before anything is rented.

Reads a ``TrainingSpec`` as JSON from standard input and prints a ``Verdict`` as one line of JSON. Exit codes: 0 it can;
1 it cannot (standard error says why, in words for people); 3 the check itself broke. Layers are tried on the meta
device where they allow it, so that neither time nor memory of the real model is needed.
"""

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.recipe import Recipe, RecipeError, load_recipe

if TYPE_CHECKING:
    from torch import nn

    from bamboo_trainer.stage import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVerdict:
    name: str
    num_parameters: int
    parameter_bytes: int
    activation_bytes: int
    """Of its output for one microbatch."""
    kept_bytes: int
    """That its forward keeps for the backward of one microbatch."""
    optimizer_bytes: int | None
    """Of the optimizer's state; None: it cannot be told without the real parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    errors: tuple[str, ...] = ()
    layers: tuple[LayerVerdict, ...] = ()
    num_parameters: int = 0
    """Tied ones counted once."""
    num_samples: int = 0
    tokens_per_sample: int = 0


def main() -> int:
    try:
        spec = TypeAdapter(TrainingSpec).validate_json(sys.stdin.buffer.read())
        verdict = check_recipe(spec)
    except Exception:  # noqa: BLE001 - whatever it is, it is not the recipe's fault, and has to be told apart
        traceback.print_exc()
        return 3
    print(json.dumps(asdict(verdict)))
    if verdict.errors:
        print("\n".join(verdict.errors), file=sys.stderr)
    return 1 if verdict.errors else 0


def check_recipe(spec: TrainingSpec) -> Verdict:
    """Loads the recipe, lays its layers out and sends one microbatch through all of them and the loss."""
    try:
        return _describe(spec, load_recipe(spec.recipe, spec.recipe_options))
    except RecipeError as error:
        return Verdict(errors=(str(error),))


def _describe(spec: TrainingSpec, recipe: Recipe) -> Verdict:
    from bamboo_trainer.layout import lay_out  # not before the recipe is loaded, which says it when torch is missing

    _refuse_ready_made(recipe)
    layout = lay_out(recipe)
    layers = tuple(
        LayerVerdict(
            name=x.name,
            num_parameters=x.num_parameters,
            parameter_bytes=x.parameter_bytes,
            activation_bytes=activation_bytes,
            kept_bytes=kept_bytes,
            optimizer_bytes=_optimizer_bytes(recipe, index),
        )
        for index, (x, (activation_bytes, kept_bytes)) in enumerate(
            zip(layout.layers, _send_through(spec, recipe), strict=True)
        )
    )
    repeated = sum(
        parameter.num_elements
        for group in recipe.ties
        for layer, name in group[1:]
        for parameter in layout.layers[layer].parameters
        if parameter.name == name
    )
    return Verdict(
        layers=layers,
        num_parameters=sum(layer.num_parameters for layer in layers) - repeated,
        num_samples=len(recipe.dataset),
        tokens_per_sample=recipe.tokens_per_sample,
    )


def _refuse_ready_made(recipe: Recipe) -> None:
    """A module made outside its factory starts from other numbers on each node, so copies would differ.

    Raises RecipeError.
    """
    from bamboo_trainer.layout import build_on_meta

    for layer in recipe.layers:
        first, second = (tuple(build_on_meta(layer).parameters()) for _ in range(2))
        if any(one is other for one, other in zip(first, second, strict=False)):
            raise RecipeError(
                f"layer {layer.name} gives the same parameters each time it is built: make its module inside the "
                "function that is handed to LayerFactory, so that every node starts from the same numbers"
            )


def _send_through(spec: TrainingSpec, recipe: Recipe) -> list[tuple[int, int]]:
    """Of each layer, for one microbatch: bytes of the output, and bytes that are kept. Raises RecipeError."""
    from bamboo_trainer.batch import load_batch
    from bamboo_trainer.layout import build_on_meta
    from bamboo_trainer.profile import num_bytes

    value, targets = load_batch(spec, recipe, 0, 0)
    value, targets = _on_meta(value), _on_meta(targets)
    sizes = []
    for index, layer in enumerate(recipe.layers):
        value, kept_bytes = _output(recipe, index, build_on_meta(layer).train(), value, targets)
        sizes.append((num_bytes(value), kept_bytes))
    return sizes


def _output(
    recipe: Recipe, index: int, module: "nn.Module", value: "Activation", targets: Any
) -> tuple["Activation", int]:
    """Of the layer, on the meta device, and the bytes that it keeps; computed for real where it cannot do without."""
    from bamboo_trainer.layout import build
    from bamboo_trainer.profile import forward_layer, keep_track

    try:
        graph, kept_bytes = keep_track(partial(forward_layer, recipe, index, module, value, targets), module)
    except RecipeError:
        real = build(recipe.layers[index]).train()
        run = partial(forward_layer, recipe, index, real, _zeros(value), _zeros(targets))
        graph, kept_bytes = keep_track(run, real)
    return _on_meta(graph.output), kept_bytes


def _optimizer_bytes(recipe: Recipe, index: int) -> int | None:
    """Of one step on the meta device."""
    import torch

    from bamboo_trainer.layout import build_on_meta
    from bamboo_trainer.profile import measure_optimizer

    module = build_on_meta(recipe.layers[index])
    for parameter in module.parameters():
        parameter.grad = torch.empty_like(parameter)
    try:
        return measure_optimizer(recipe, module)[0]
    except Exception:  # noqa: BLE001 - an optimizer that needs real numbers; nothing but this estimate is lost
        return None


def _on_meta(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_on_meta(part) for part in value)
    return value.to("meta") if hasattr(value, "to") else value


def _zeros(value: Any) -> Any:
    import torch

    if isinstance(value, tuple):
        return tuple(_zeros(part) for part in value)
    return torch.zeros_like(value, device="cpu") if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    sys.exit(main())
