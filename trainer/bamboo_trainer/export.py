"""``python -m bamboo_trainer.export``: a checkpoint as files for others, merged with one layer in memory at a time.

Reads an ``ExportOrder`` as JSON from standard input and prints ``Exported`` as one line of JSON. Exit codes as those of
``answering``.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bamboo_trainer import storage, tensor_file
from bamboo_trainer.answering import answer
from bamboo_trainer.checkpoint import read_layer
from bamboo_trainer.export_order import Exported, ExportOrder
from bamboo_trainer.held_layer import PARAMETER
from bamboo_trainer.layout import lay_out
from bamboo_trainer.manifest import CheckpointError, Manifest, read_manifest
from bamboo_trainer.model_file import write_model
from bamboo_trainer.recipe import Recipe, RecipeError, TransformersForm, load_recipe
from bamboo_trainer.wire import tensor_bytes

MODEL_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
ORIGIN_FILE = "bamboo.json"


def main() -> int:
    return answer(ExportOrder, export_as_asked)


def export_as_asked(order: ExportOrder) -> Exported:
    spec = order.spec
    return export(order, load_recipe(spec.recipe, spec.recipe_options, spec.recipe_source))


def export(order: ExportOrder, recipe: Recipe) -> Exported:
    """The weights come last: a folder with them has all. Raises CheckpointError, RecipeError, OSError."""
    spec = order.spec
    manifest = read_manifest(spec.checkpoint_url, order.step, spec.run_id)
    form = recipe.transformers
    files = dict(form.files) if form is not None else {}
    if form is not None:
        files[CONFIG_FILE] = _json(form.config)
    files[ORIGIN_FILE] = _json(
        {
            "run_id": manifest.run_id,
            "step": order.step,
            "recipe": spec.recipe,
            "recipe_options": spec.recipe_options,
            "weights_sha256": manifest.weights_sha256,
        }
    )
    for name, text in files.items():
        storage.write_durably(storage.join(order.target_url, name), [text.encode()])
    model_url = storage.join(order.target_url, MODEL_FILE)
    storage.remove_unfinished(model_url)
    if form is None:
        num_parameters, _ = write_model(spec.checkpoint_url, order.step, model_url, recipe)
    else:
        num_parameters = _write(spec.checkpoint_url, manifest, model_url, recipe, form)
    return Exported(
        files=(*sorted(files), MODEL_FILE),
        num_parameters=num_parameters,
        weights_sha256=manifest.weights_sha256,
        architecture="" if form is None else str(next(iter(form.config.get("architectures", [])), "")),
    )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _write(url: str, manifest: Manifest, model_url: str, recipe: Recipe, form: TransformersForm) -> int:
    """Returns the number of parameters."""
    names = [layer.name for layer in recipe.layers]
    if [saved.name for saved in manifest.layers] != names:
        raise CheckpointError(
            f"checkpoint of step {manifest.step} in {url} has other layers than the recipe; use the one that wrote it"
        )
    layouts = [{p.name: (p.dtype, p.shape) for p in layer.parameters} for layer in lay_out(recipe).layers]
    renamed = [
        _renamed(form, name, {n: torch.empty(s, dtype=d, device="meta") for n, (d, s) in parameters.items()})
        for name, parameters in zip(names, layouts, strict=True)
    ]
    shapes = {n: (t.dtype, tuple(t.shape)) for tensors in renamed for n, t in tensors.items()}
    if len(shapes) != sum(map(len, renamed)):
        raise RecipeError("transformers.rename() gives two layers a tensor of the same name")
    metadata = {"format": "pt", "run_id": manifest.run_id, "step": str(manifest.step)}

    def pieces() -> Iterator[bytes | memoryview]:
        yield tensor_file.header(shapes, metadata)
        for layer, name in enumerate(names):
            state = read_layer(url, manifest, layer)
            parameters = {n: _parameter(state.get(PARAMETER + n), n, s, name) for n, s in layouts[layer].items()}
            found = _renamed(form, name, parameters)
            for tensor_name in renamed[layer]:
                yield tensor_bytes(found[tensor_name])

    storage.write_durably(model_url, pieces())
    return sum(tensor.numel() for tensors in renamed for tensor in tensors.values())


def _parameter(tensor: Any, name: str, expected: tuple[torch.dtype, tuple[int, ...]], layer: str) -> Tensor:
    if not isinstance(tensor, Tensor) or (tensor.dtype, tuple(tensor.shape)) != (expected[0], tuple(expected[1])):
        raise CheckpointError(f"layer {layer} of the checkpoint has no {name} as the recipe has it now")
    return tensor


def _renamed(form: TransformersForm, layer: str, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    try:
        return form.rename(layer, parameters)
    except Exception as error:
        raise RecipeError(f"transformers.rename() of layer {layer}: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
