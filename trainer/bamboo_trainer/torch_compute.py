"""``Compute`` with torch. Every value is a function of (parameters, step, microbatch, layer) alone, bit for bit.

What makes it so: one thread count for all; a random seed per (step, microbatch, layer); one autograd graph per layer;
gradients added in microbatch order; sums over pipelines and layers in the order that the protocol asks for; the
for-loop's bits in the optimizer (``foreach``, never ``fused``).
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bamboo_trainer.batch import load_batch
from bamboo_trainer.checkpoint import CheckpointWriter, Snapshot, digest_tensors, read_layer
from bamboo_trainer.compute import Unit
from bamboo_trainer.control import CheckpointFailed, LayerSaved, TrainingSpec
from bamboo_trainer.device import CPU, NOT_OF_THE_RECIPE, Device
from bamboo_trainer.held_layer import HeldLayer, LayerState
from bamboo_trainer.host_memory import HostMemory
from bamboo_trainer.layout import build, lay_out
from bamboo_trainer.manifest import CheckpointError, Manifest, read_manifest
from bamboo_trainer.norms import clip_scale, square_norm
from bamboo_trainer.plan import RedundancyMemory, StagePlan
from bamboo_trainer.randomness import seed_of
from bamboo_trainer.recipe import Recipe, RecipeError
from bamboo_trainer.stage import Activation, StageGraph


def warm_up() -> None:
    """The first optimizer of a process makes torch import its compiler (0.8 s of CPU time on a laptop): better while
    the worker gets ready than while a plan waits for its layers.
    """
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])


class TorchCompute:
    """See ``bamboo_trainer.compute.Compute``. Used by one thread; ``report`` is called by the checkpoint writer's.

    A value that it returned in step t stays as it is until ``begin_step`` of step t + 2 (flat gradients take turns
    between two buffers); all else that it returns is never changed.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        recipe: Recipe,
        report: Callable[[LayerSaved | CheckpointFailed], None],
        host: HostMemory | None = None,
        device: Device = CPU,
    ) -> None:
        """``host``: of the device, unless given. Raises RecipeError when the layers do not build or the ties do not
        fit."""
        torch.set_num_threads(spec.num_threads)
        self._device = device
        host = host or device.host_memory()
        self._host = host if spec.redundancy_memory is RedundancyMemory.HOST and host.copies else None
        layout = lay_out(recipe)
        self.num_layers = len(recipe.layers)
        self.units = layout.units
        self._layouts = layout.layers
        self._spec = spec
        self._recipe = recipe
        self._writer = CheckpointWriter(spec, report)
        self._manifests: dict[int, Manifest] = {}
        self._layers: dict[int, HeldLayer] = {}
        self._epoch = 0
        """Counts ``begin_step``: a step that is run again is another epoch."""
        self._learned: dict[int, HeldLayer] = {}
        self.begin_step(0)

    # --- within a step ---

    def begin_step(self, step: int) -> None:
        self._device.wait_for_copies()  # of gradients whose memory is used again
        self._step = step
        self._epoch += 1
        self._graphs: dict[tuple[int, int, int], StageGraph] = {}
        """By pipeline, stage and microbatch: forward is begun, backward not yet done. FNC and FRC alike."""
        self._losses: dict[int, Tensor] = {}
        self._batches: dict[int, tuple[Activation, Any]] = {}

    def forward(self, stage: StagePlan, microbatch: int, inputs: Activation | None) -> Activation | None:
        graph = self._graph(stage, microbatch, inputs)
        graph.fetch_output()
        while graph.num_layers_done < len(stage.layers):
            self._advance(graph, stage, microbatch)
        self._device.synchronize()
        return None if stage.end_layer == self.num_layers else graph.output

    def loss(self, microbatch: int) -> float:
        return float(self._losses[microbatch])

    def backward(
        self, stage: StagePlan, microbatch: int, gradient: Activation | None, *, apart: bool = False
    ) -> Activation | None:
        graph = self._graphs.pop((*stage.place, microbatch))
        if stage.end_layer == self.num_layers:
            gradient = torch.full_like(graph.output, 1.0 / self._spec.num_microbatches)
        for layer in reversed(stage.layers):
            self._layers[layer].collect(stage.pipeline_index, self._epoch, microbatch if apart else None)
            try:
                gradient = graph.backward(gradient)
            except NOT_OF_THE_RECIPE:
                raise
            except Exception as error:
                raise RecipeError(self._told(layer, microbatch, "backward", error)) from error
        self._device.synchronize()
        return None if stage.first_layer == 0 else gradient

    def redundant_forward(self, stage: StagePlan, microbatch: int, inputs: Activation | None) -> bool:
        graph = self._graph(stage, microbatch, inputs)
        self._advance(graph, stage, microbatch, self._host)
        complete = graph.num_layers_done == len(stage.layers)
        if complete and self._host is not None:
            graph.set_output_aside(self._host)
        self._device.synchronize()
        return complete

    def redundant_output(self, stage: StagePlan, microbatch: int) -> Activation:
        graph = self._graphs[(*stage.place, microbatch)]
        graph.fetch_output()
        return graph.output

    def redundant_forwards_done(self, stage: StagePlan) -> int:
        return sum(key[:2] == stage.place and g.num_layers_done == len(stage.layers) for key, g in self._graphs.items())

    def _graph(self, stage: StagePlan, microbatch: int, inputs: Activation | None) -> StageGraph:
        key = (*stage.place, microbatch)
        if key not in self._graphs:
            self._graphs[key] = StageGraph(self._batch(microbatch)[0] if stage.first_layer == 0 else inputs)
        return self._graphs[key]

    def _advance(self, graph: StageGraph, stage: StagePlan, microbatch: int, host: HostMemory | None = None) -> None:
        """``host``: where what is kept for the backward goes; None: it stays."""
        layer = stage.first_layer + graph.num_layers_done
        module = self._layers[layer].module
        is_last = layer == self.num_layers - 1
        targets = self._batch(microbatch)[1] if is_last else None
        run = (lambda *x: self._recipe.loss(module(*x), targets)) if is_last else module
        self._seed("dropout", microbatch, layer)
        try:
            if host is None:
                graph.advance(run, needs_input_gradient=layer > 0)
            else:
                own = (*module.parameters(), *module.buffers())
                graph.advance_aside(run, needs_input_gradient=layer > 0, host=host, own=own)
        except NOT_OF_THE_RECIPE:
            raise
        except (Exception, SystemExit) as error:
            raise RecipeError(self._told(layer, microbatch, "forward", error)) from error
        if is_last:
            self._losses[microbatch] = graph.output

    def _told(self, layer: int, microbatch: int, direction: str, error: BaseException) -> str:
        what = f"layer {self._layouts[layer].name}{' or the loss' if layer == self.num_layers - 1 else ''}"
        return f"{what}, step {self._step}, microbatch {microbatch}: {direction} raised {type(error).__name__}: {error}"

    def _batch(self, microbatch: int) -> tuple[Activation, Any]:
        if microbatch not in self._batches:
            self._seed("batch", microbatch)
            batch = load_batch(self._spec, self._recipe, self._step, microbatch)
            self._batches[microbatch] = self._device.to_device(batch)
        return self._batches[microbatch]

    def _seed(self, purpose: str, *numbers: int) -> None:
        self._device.seed(seed_of(purpose, self._spec.seed, self._step, *numbers))

    # --- reduction and commit ---

    def partial_sum(self, layer: int, pipeline_index: int, microbatches: range, before: Tensor | None) -> Tensor:
        return self._layers[layer].partial_sum(pipeline_index, self._epoch, microbatches, before)

    def contribution(
        self,
        unit: Unit,
        layer: int,
        pipeline_index: int,
        chunk: int,
        num_chunks: int,
        whole: Tensor | None = None,
    ) -> Tensor:
        held = self._layers[layer]
        piece = next(piece for piece in held.layout.pieces if piece.unit_index == unit.index)
        length = piece.end - piece.first
        start, end = (piece.first + length * i // num_chunks for i in (chunk, chunk + 1))
        flat = held.gradient(pipeline_index, self._epoch) if whole is None else whole
        return flat[start:end]

    def add(self, values: Sequence[Tensor]) -> Tensor:
        """A lone value is returned as it is: nobody changes values in place."""
        if len(values) == 1:
            return values[0]
        total = values[0] + values[1]
        for value in values[2:]:
            total += value
        self._device.synchronize()
        return total

    def square_norm(self, unit: Unit, chunks: Sequence[Tensor]) -> float:
        return square_norm(chunks)

    def apply(self, step: int, reduced: Mapping[int, Sequence[Tensor]], square_norms: Sequence[float]) -> None:
        scale = clip_scale(square_norms, self._recipe.clip_norm)
        learning_rate = self._recipe.learning_rate(step)
        for layer in self._layers.values():
            layer.update(reduced, scale, learning_rate)
        self._device.synchronize()

    # --- holding layers ---

    def held_layers(self) -> tuple[int, ...]:
        return tuple(sorted(self._layers))

    def initialise(self, layer: int) -> None:
        held = self._new_layer(layer)
        for group in self._recipe.ties:
            first = group[0]
            for tied in group[1:]:
                if tied.layer == layer:
                    source = self._new_layer(first.layer).module.get_parameter(first.parameter)
                    with torch.no_grad():
                        held.module.get_parameter(tied.parameter).copy_(source)
        self._layers[layer] = held

    def _new_layer(self, layer: int) -> HeldLayer:
        torch.default_generator.manual_seed(seed_of("layer", self._spec.seed, layer))
        module = build(self._recipe.layers[layer])  # on the CPU: a run starts from the same weights on any device
        return HeldLayer(module, self._layouts[layer], self._recipe.optimizer, self._device.torch_device)

    def restore(self, layer: int, checkpoint_step: int) -> None:
        url = self._spec.checkpoint_url
        if checkpoint_step not in self._manifests:
            self._manifests[checkpoint_step] = read_manifest(url, checkpoint_step)
        state = read_layer(url, self._manifests[checkpoint_step], layer)
        try:
            self.import_layer(layer, state)
        except ValueError as error:
            raise CheckpointError(
                f"checkpoint of step {checkpoint_step} in {url} is of another model: {error}; "
                "use the recipe and the options that wrote it"
            ) from error

    def export_layer(self, layer: int) -> LayerState:
        return self._layers[layer].snapshot()

    def import_layer(self, layer: int, state: LayerState) -> None:
        held = self._new_layer(layer)
        held.load(state)
        self._layers[layer] = held

    def drop_layer(self, layer: int) -> None:
        del self._layers[layer]

    def keep_near(self, hosted: Collection[int], read: Collection[int]) -> None:
        if self._host is not None:
            for layer, held in self._layers.items():
                held.keep_aside(
                    self._host,
                    parameters=layer not in hosted and layer not in read,
                    optimizer=layer not in hosted,
                )

    # --- learning layers ---

    def learn(self, layer: int, state: LayerState) -> int:
        held = self._new_layer(layer)
        held.load(state)
        self._learned[layer] = held
        return sum(value.nbytes for value in state.values() if isinstance(value, Tensor))

    def follow(
        self, layer: int, step: int, reduced: Mapping[int, Sequence[Tensor]], square_norms: Sequence[float]
    ) -> None:
        scale = clip_scale(square_norms, self._recipe.clip_norm)
        self._learned[layer].update(reduced, scale, self._recipe.learning_rate(step))

    def hold_learned(self, layer: int) -> None:
        self._layers[layer] = self._learned.pop(layer)

    def forget_learned(self, layer: int) -> None:
        del self._learned[layer]

    def digest(self, layer: int) -> str:
        state = self._layers[layer].state()
        tensors = (value.cpu() for _, value in sorted(state.items()) if isinstance(value, Tensor))
        digest = hashlib.sha256(digest_tensors(tensors).encode())
        digest.update(repr(sorted((k, v) for k, v in state.items() if not isinstance(v, Tensor))).encode())
        return digest.hexdigest()

    def save(self, step: int, layers: Sequence[int]) -> None:
        """Blocks only while two earlier checkpoints are still being written."""
        self._writer.save(
            step, [Snapshot(layer=i, name=self._layouts[i].name, state=self._layers[i].snapshot()) for i in layers]
        )

    def close(self) -> None:
        """Waits until every checkpoint handed over is written or has failed."""
        self._writer.close()
