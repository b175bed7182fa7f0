"""``Compute`` on integers, one number a tensor, with sums that notice any change of order, any repeat, any gap.

Arithmetic is modulo a prime. A "sum" folds ``acc * K + value``, so it is neither commutative nor associative: whoever
adds in another order than the protocol promises gets another number.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bamboo_trainer.compute import Unit
from bamboo_trainer.plan import StagePlan

PRIME = (1 << 61) - 1
K = 1_000_003


def fold(accumulated: int, value: int) -> int:
    return (accumulated * K + value + 1) % PRIME


def noise(*numbers: int) -> int:
    """Stands for dropout and data: a function of its place alone."""
    mixed = 7
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number * 1442695040888963407 + 11) % PRIME
    return mixed


@dataclass
class Layer:
    parameter: int
    momentum: int = 0
    num_updates: int = 0


@dataclass
class Disk:
    """Where checkpoints go, shared by all workers: (step, layer) -> state."""

    files: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    same_bits: bool = True
    """A file that is written again must be the same. Not so where a step may be run again with fewer pipelines."""

    def complete_steps(self, num_layers: int) -> list[int]:
        steps = {step for step, _ in self.files}
        return sorted(s for s in steps if all((s, layer) in self.files for layer in range(num_layers)))


class IntegerCompute:
    """Layer i maps x to ``p * x + noise``; the first and the last layer are tied when ``tied``.

    ``bare`` layers have no parameters to train (or, if tied, none but the tied one).
    """

    def __init__(
        self, num_layers: int, num_microbatches: int, disk: Disk, *, tied: bool, bare: Collection[int] = ()
    ) -> None:
        self.num_layers = num_layers
        self.num_microbatches = num_microbatches
        self.disk = disk
        self.layers: dict[int, Layer] = {}
        groups: list[tuple[int, ...]] = [(layer,) for layer in range(num_layers) if layer not in bare]
        if tied and num_layers > 1:
            groups.append((0, num_layers - 1))
        self.units = tuple(Unit(index=i, layers=layers) for i, layers in enumerate(groups))
        self.num_forwards = 0
        self.learned: dict[int, Layer] = {}
        self.num_held_learned = 0
        self.near: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        """Hosted layers, and those that FRC may read."""
        self.on_saved: Callable[[int, int], None] = lambda step, layer: None
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        self.step = step
        self.saved: dict[tuple[int, int, int], list[int]] = {}  # stage, microbatch -> inputs of its layers
        self.redundant: dict[tuple[int, int], dict[int, list[int]]] = {}
        self.losses: dict[int, int] = {}
        self.gradients: dict[tuple[int, int], int] = {}
        self.apart: dict[tuple[int, int, int], int] = {}

    def _layer_forward(self, layer: int, microbatch: int, x: int) -> int:
        return (self.layers[layer].parameter * x + noise(self.step, microbatch, layer)) % PRIME

    def forward(self, stage: StagePlan, microbatch: int, inputs: Any) -> Any:
        place = stage.place
        assert set(stage.layers) <= self.near[0], "computes with a layer that is aside"
        x = noise(self.step, microbatch) if stage.first_layer == 0 else inputs
        ready = self.redundant.get(place, {}).pop(microbatch, None)
        if ready is not None and len(ready) == len(stage.layers) + 1:
            values = ready
        else:
            values = [x]
            for layer in stage.layers:
                values.append(self._layer_forward(layer, microbatch, values[-1]))
                self.num_forwards += 1
        assert values[0] == x
        self.saved[(*place, microbatch)] = values
        if stage.end_layer == self.num_layers:
            self.losses[microbatch] = values[-1] % 1_000_000
            return None
        return values[-1]

    def loss(self, microbatch: int) -> float:
        return float(self.losses[microbatch])

    def backward(self, stage: StagePlan, microbatch: int, gradient: Any, *, apart: bool = False) -> Any:
        place = stage.place
        values = self.saved.pop((*place, microbatch))
        g = noise(3, microbatch) if gradient is None else gradient
        assert (gradient is None) == (stage.end_layer == self.num_layers)
        assert set(stage.layers) <= self.near[0], "computes with a layer that is aside"
        for layer, x in reversed(list(zip(stage.layers, values[:-1], strict=True))):
            key = (stage.pipeline_index, layer)
            if apart:
                self.apart[(*key, microbatch)] = g * x
            else:
                self.gradients[key] = fold(self.gradients.get(key, 0), g * x)
            g = g * self.layers[layer].parameter % PRIME
        return None if stage.first_layer == 0 else g

    def redundant_forward(self, stage: StagePlan, microbatch: int, inputs: Any) -> bool:
        place = stage.place
        x = noise(self.step, microbatch) if stage.first_layer == 0 else inputs
        assert set(stage.layers) <= self.near[0] | self.near[1], "reads a layer that is aside"
        values = self.redundant.setdefault(place, {}).setdefault(microbatch, [x])
        layer = stage.first_layer + len(values) - 1
        values.append(self._layer_forward(layer, microbatch, values[-1]))
        return len(values) == len(stage.layers) + 1

    def redundant_output(self, stage: StagePlan, microbatch: int) -> Any:
        return self.redundant[stage.place][microbatch][-1]

    def redundant_forwards_done(self, stage: StagePlan) -> int:
        done = self.redundant.get(stage.place, {})
        return sum(len(values) == len(stage.layers) + 1 for values in done.values())

    def partial_sum(self, layer: int, pipeline_index: int, microbatches: range, before: Any) -> Any:
        if before is None:
            return self.gradients[pipeline_index, layer]
        for microbatch in microbatches:
            before = fold(before, self.apart[pipeline_index, layer, microbatch])
        return before

    def contribution(
        self, unit: Unit, layer: int, pipeline_index: int, chunk: int, num_chunks: int, whole: Any = None
    ) -> Any:
        gradient = self.gradients[pipeline_index, layer] if whole is None else whole
        return noise(gradient, unit.index, chunk, num_chunks)

    def add(self, values: Sequence[Any]) -> Any:
        total = 0
        for value in values:
            total = fold(total, value)
        return total

    def square_norm(self, unit: Unit, chunks: Sequence[Any]) -> float:
        return float(sum(chunks) % 1_000_000)

    def apply(self, step: int, reduced: Mapping[int, Sequence[Any]], square_norms: Sequence[float]) -> None:
        scale = int(sum(square_norms)) + step
        for index, layer in self.layers.items():
            self._update(index, layer, step, scale, reduced)

    def _update(self, index: int, layer: Layer, step: int, scale: int, reduced: Mapping[int, Sequence[Any]]) -> None:
        for unit in self.units:
            if index in unit.layers:
                # a tied unit moves each of its layers alike
                change = fold(scale, sum(chunk * (i + 1) for i, chunk in enumerate(reduced[unit.index])))
                layer.momentum = fold(layer.momentum, change)
        layer.parameter = fold(layer.parameter, layer.momentum)
        layer.num_updates += 1
        assert layer.num_updates == step + 1, "an update was repeated or skipped"

    def learn(self, layer: int, state: Any) -> int:
        self.learned[layer] = Layer(*state)
        return 24

    def follow(
        self, layer: int, step: int, reduced: Mapping[int, Sequence[Any]], square_norms: Sequence[float]
    ) -> None:
        self._update(layer, self.learned[layer], step, int(sum(square_norms)) + step, reduced)

    def hold_learned(self, layer: int) -> None:
        self.layers[layer] = self.learned.pop(layer)
        self.num_held_learned += 1

    def forget_learned(self, layer: int) -> None:
        del self.learned[layer]

    def held_layers(self) -> tuple[int, ...]:
        return tuple(sorted(self.layers))

    def initialise(self, layer: int) -> None:
        self.layers[layer] = Layer(noise(99, layer))

    def restore(self, layer: int, checkpoint_step: int) -> None:
        self.layers[layer] = Layer(*self.disk.files[checkpoint_step, layer])

    def export_layer(self, layer: int) -> Any:
        state = self.layers[layer]
        return (state.parameter, state.momentum, state.num_updates)

    def import_layer(self, layer: int, state: Any) -> None:
        self.layers[layer] = Layer(*state)

    def drop_layer(self, layer: int) -> None:
        del self.layers[layer]

    def keep_near(self, hosted: Collection[int], read: Collection[int]) -> None:
        self.near = frozenset(hosted), frozenset(read)

    def digest(self, layer: int) -> str:
        return str(self.export_layer(layer))

    def save(self, step: int, layers: Sequence[int]) -> None:
        for layer in layers:
            state = self.export_layer(layer)
            known = self.disk.files.get((step, layer), state)
            assert known == state or not self.disk.same_bits, "a checkpoint was written twice, unequal"
            self.disk.files[step, layer] = state
            self.on_saved(step, layer)
