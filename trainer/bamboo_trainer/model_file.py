"""The trained model as one safetensors file, merged from a checkpoint with one layer in memory at a time."""

from collections.abc import Iterator

from torch import Tensor

from bamboo_trainer import storage, tensor_file
from bamboo_trainer.checkpoint import read_layer
from bamboo_trainer.held_layer import PARAMETER
from bamboo_trainer.layout import ModelLayout, ParameterShape, lay_out
from bamboo_trainer.manifest import CheckpointError, Manifest, read_manifest
from bamboo_trainer.recipe import Recipe
from bamboo_trainer.wire import tensor_bytes


def write_model(checkpoint_url: str, step: int, target_url: str, recipe: Recipe) -> tuple[int, str]:
    """Parameters are named ``<layer name>.<parameter name>``; a tied one is there once, under its first name.

    Returns the number of parameters and ``weights_sha256``. Raises CheckpointError, or OSError when the target cannot
    be written; then the file does not appear.
    """
    manifest = read_manifest(checkpoint_url, step)
    layout = lay_out(recipe)
    written = [list(_parameters_once(recipe, layout, layer)) for layer in range(len(recipe.layers))]
    if [saved.name for saved in manifest.layers] != [layer.name for layer in recipe.layers]:
        raise CheckpointError(
            f"checkpoint of step {step} in {checkpoint_url} has other layers than the recipe; use the one that wrote it"
        )
    shapes = {
        f"{layer.name}.{parameter.name}": (parameter.dtype, parameter.shape)
        for layer, parameters in zip(recipe.layers, written, strict=True)
        for parameter in parameters
    }
    metadata = {"format": "pt", "run_id": manifest.run_id, "step": str(step), "weights_sha256": manifest.weights_sha256}

    def pieces() -> Iterator[bytes | memoryview]:
        yield tensor_file.header(shapes, metadata)
        for layer, parameters in enumerate(written):
            yield from _layer_bytes(checkpoint_url, manifest, layer, parameters)

    storage.write_durably(target_url, pieces())
    return sum(parameter.num_elements for parameters in written for parameter in parameters), manifest.weights_sha256


def _parameters_once(recipe: Recipe, layout: ModelLayout, layer: int) -> Iterator[ParameterShape]:
    """Those of the layer that no earlier layer has as well."""
    repeated = {tied for group in recipe.ties for tied in group[1:]}
    for parameter in layout.layers[layer].parameters:
        if (layer, parameter.name) not in repeated:
            yield parameter


def _layer_bytes(url: str, manifest: Manifest, layer: int, parameters: list[ParameterShape]) -> Iterator[memoryview]:
    state = read_layer(url, manifest, layer)
    for parameter in parameters:
        tensor = state.get(PARAMETER + parameter.name)
        if (
            not isinstance(tensor, Tensor)
            or tensor.dtype != parameter.dtype
            or tuple(tensor.shape) != tuple(parameter.shape)
        ):
            raise CheckpointError(
                f"checkpoint of step {manifest.step} in {url}: layer {manifest.layers[layer].name} has no "
                f"{parameter.name} of shape {parameter.shape}; use the recipe that wrote it"
            )
        yield tensor_bytes(tensor)
