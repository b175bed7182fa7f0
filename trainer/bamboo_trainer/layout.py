"""How gradients are laid out: what is summed at once (units), and where it lies in a layer's flat gradient.

Built on the meta device, so that no worker ever needs the memory of the whole model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from bamboo_trainer.compute import Unit
from bamboo_trainer.recipe import LayerFactory, Recipe, RecipeError, TiedParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShape:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of a unit that is in one layer: elements ``[first, end)`` of the layer's flat gradient."""

    unit_index: int
    parameters: tuple[ParameterShape, ...]
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    name: str
    parameters: tuple[ParameterShape, ...]
    """All of them, trained or not."""
    dtype: torch.dtype
    """Of the trained ones."""
    pieces: tuple[Piece, ...]

    @property
    def num_elements(self) -> int:
        """Of the flat gradient."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def num_parameters(self) -> int:
        return sum(parameter.num_elements for parameter in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        return sum(parameter.num_elements * parameter.dtype.itemsize for parameter in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    units: tuple[Unit, ...]
    """The untied parameters of each layer, in layer order; then the ties, in the recipe's order."""
    layers: tuple[LayerLayout, ...]


def lay_out(recipe: Recipe) -> ModelLayout:
    """Raises RecipeError when a layer does not build, or ties do not fit."""
    shapes = [parameter_shapes(build_on_meta(layer)) for layer in recipe.layers]
    _check_ties(recipe, shapes)
    tied = {parameter for group in recipe.ties for parameter in group}
    units: list[Unit] = []
    contents: list[list[tuple[int, tuple[ParameterShape, ...]]]] = [[] for _ in shapes]
    for layer, parameters in enumerate(shapes):
        own = tuple(p for p in parameters if p.trained and TiedParameter(layer, p.name) not in tied)
        if own:
            contents[layer].append((len(units), own))
            units.append(Unit(index=len(units), layers=(layer,)))
    for group in recipe.ties:
        for layer, name in group:
            contents[layer].append((len(units), tuple(p for p in shapes[layer] if p.name == name)))
        units.append(Unit(index=len(units), layers=tuple(layer for layer, _ in group)))
    layers = [
        _layer_layout(factory.name, parameters, content)
        for factory, parameters, content in zip(recipe.layers, shapes, contents, strict=True)
    ]
    return ModelLayout(units=tuple(units), layers=tuple(layers))


def build_on_meta(layer: LayerFactory) -> nn.Module:
    """The layer without memory; a real one where it cannot be built so. Raises RecipeError when neither works."""
    try:
        with torch.device("meta"):
            return layer.build()
    except Exception:  # noqa: BLE001 - the real build raises it again, in better words
        return build(layer)


def build(layer: LayerFactory) -> nn.Module:
    """Raises RecipeError."""
    try:
        return layer.build()
    except Exception as error:
        raise RecipeError(f"layer {layer.name} does not build: {type(error).__name__}: {error}") from error


def parameter_shapes(module: nn.Module) -> tuple[ParameterShape, ...]:
    return tuple(
        ParameterShape(name=name, shape=tuple(p.shape), dtype=p.dtype, trained=p.requires_grad)
        for name, p in module.named_parameters()
    )


def _layer_layout(
    name: str, parameters: tuple[ParameterShape, ...], content: list[tuple[int, tuple[ParameterShape, ...]]]
) -> LayerLayout:
    dtypes = {p.dtype for p in parameters if p.trained}
    if len(dtypes) > 1:
        raise RecipeError(f"layer {name} trains parameters of {' and '.join(sorted(map(str, dtypes)))}; use one dtype")
    pieces, first = [], 0
    for unit_index, part in content:
        end = first + sum(p.num_elements for p in part)
        pieces.append(Piece(unit_index=unit_index, parameters=part, first=first, end=end))
        first = end
    return LayerLayout(
        name=name, parameters=parameters, dtype=dtypes.pop() if dtypes else torch.float32, pieces=tuple(pieces)
    )


def _check_ties(recipe: Recipe, shapes: Sequence[tuple[ParameterShape, ...]]) -> None:
    seen: set[TiedParameter] = set()
    for group in recipe.ties:
        found = []
        for tied in group:
            place = f"{tied.parameter} of layer {recipe.layers[tied.layer].name}"
            match = [p for p in shapes[tied.layer] if p.name == tied.parameter and p.trained]
            if not match:
                known = ", ".join(p.name for p in shapes[tied.layer] if p.trained)
                raise RecipeError(f"ties: there is no trained parameter {place}; it has: {known or 'none'}")
            if tied in seen:
                raise RecipeError(f"ties: {place} is tied twice; make one group of it")
            seen.add(tied)
            found.append((place, match[0]))
        if len({(p.shape, p.dtype) for _, p in found}) > 1:
            described = ", ".join(f"{place} {p.shape} {p.dtype}" for place, p in found)
            raise RecipeError(f"ties: parameters of different shape or dtype cannot be one: {described}")
