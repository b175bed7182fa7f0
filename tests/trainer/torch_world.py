"""Steps run by hand: ``TorchCompute`` objects in one process, their values handed over without a network."""

from collections.abc import Sequence

import torch
from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.plan import Mode, StagePlan, WorkerId, split_microbatches
from bamboo_trainer.torch_compute import TorchCompute
from bamboo_trainer.wire import pack, unpack


def make_spec(**changes) -> TrainingSpec:
    settings = {
        "run_id": "run-1",
        "recipe": "mlp",
        "recipe_options": {},
        "num_steps": 10,
        "num_microbatches": 4,
        "microbatch_size": 4,
        "seed": 7,
        "checkpoint_url": "memory://nowhere",
        "checkpoint_every": 10,
    }
    return TrainingSpec(**(settings | changes))


def make_stage(stage_index: int, first_layer: int, end_layer: int, pipeline_index: int = 0) -> StagePlan:
    return StagePlan(
        pipeline_index=pipeline_index,
        stage_index=stage_index,
        first_layer=first_layer,
        end_layer=end_layer,
        host=WorkerId(f"w{pipeline_index}.{stage_index}"),
        mode=Mode.OFF,
    )


def over_the_wire(value):
    header, pieces = pack(value)
    return unpack(header, bytearray(b"".join(pieces)))


class HandRunWorld:
    """``cut``: first layers of the stages. Every stage of every pipeline has a ``TorchCompute`` of its own."""

    def __init__(self, spec: TrainingSpec, recipe, cut: Sequence[int], num_pipelines: int = 1, report=lambda m: None):
        self.spec = spec
        self.num_pipelines = num_pipelines
        ends = [*cut[1:], len(recipe.layers)]
        self.stages = [
            [make_stage(s, first, end, d) for s, (first, end) in enumerate(zip(cut, ends, strict=True))]
            for d in range(num_pipelines)
        ]
        self.computes = [[TorchCompute(spec, recipe, report) for _ in cut] for _ in range(num_pipelines)]
        for pipeline, computes in zip(self.stages, self.computes, strict=True):
            for stage, compute in zip(pipeline, computes, strict=True):
                for layer in stage.layers:
                    compute.initialise(layer)
        self.units = self.computes[0][0].units

    def all_computes(self) -> list[TorchCompute]:
        return list(dict.fromkeys(compute for computes in self.computes for compute in computes))

    def run(self, first_step: int, end_step: int) -> list[float]:
        """Losses by step."""
        return [self.run_step(step) for step in range(first_step, end_step)]

    def run_step(self, step: int) -> float:
        for compute in self.all_computes():
            compute.begin_step(step)
        losses: list[float] = []
        for d, microbatches in enumerate(split_microbatches(self.spec.num_microbatches, self.num_pipelines)):
            for microbatch in microbatches:
                losses.append(self.forward_and_backward(d, microbatch))
        self.commit(step)
        return sum(losses) / len(losses)

    def forward_and_backward(self, d: int, microbatch: int) -> float:
        value = None
        for stage, compute in zip(self.stages[d], self.computes[d], strict=True):
            value = over_the_wire(compute.forward(stage, microbatch, value))
        loss = self.computes[d][-1].loss(microbatch)
        for stage, compute in reversed(list(zip(self.stages[d], self.computes[d], strict=True))):
            value = over_the_wire(compute.backward(stage, microbatch, value))
        return loss

    def reduce(self) -> tuple[dict[int, list[torch.Tensor]], list[float]]:
        any_compute = self.computes[0][0]
        reduced = {}
        for unit in self.units:
            reduced[unit.index] = [
                any_compute.add(
                    [
                        self.compute_of(d, layer).contribution(unit, layer, d, chunk, self.num_pipelines)
                        for d in range(self.num_pipelines)
                        for layer in unit.layers
                    ]
                )
                for chunk in range(self.num_pipelines)
            ]
        return reduced, [any_compute.square_norm(unit, reduced[unit.index]) for unit in self.units]

    def commit(self, step: int) -> None:
        reduced, norms = self.reduce()
        for compute in self.all_computes():
            compute.apply(step, reduced, norms)

    def compute_of(self, d: int, layer: int) -> TorchCompute:
        return next(c for s, c in zip(self.stages[d], self.computes[d], strict=True) if layer in s.layers)

    def digests(self, d: int = 0) -> list[str]:
        return [self.compute_of(d, stage_layer).digest(stage_layer) for s in self.stages[d] for stage_layer in s.layers]
