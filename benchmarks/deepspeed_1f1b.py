"""A peer: the same layers, cut and data under DeepSpeed's PipelineModule, one process a stage.

Started as ``python -m benchmarks.deepspeed_1f1b``; speaks as torch_1f1b.py does.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from bamboo_trainer.data import sample_ids
from bamboo_trainer.recipe import Recipe, load_recipe
from deepspeed.pipe import PipelineModule

from benchmarks.torch_1f1b import answer


def microbatches(job: dict[str, Any], recipe: Recipe) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets, for ever."""
    step = 0
    while True:
        for microbatch in range(job["num_microbatches"]):
            ids = sample_ids(
                seed=0,
                step=step,
                microbatch=microbatch,
                num_microbatches=job["num_microbatches"],
                microbatch_size=job["microbatch_size"],
                num_samples=len(recipe.dataset),
            )
            yield recipe.dataset.batch(ids)
        step += 1


def main(job: dict[str, Any], rank: int) -> None:
    size = len(job["cut"])
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job["port"]),
    }
    torch.set_num_threads(1)
    # an extension for all-reduces inside one host, which wants a compiler and is of no use between stages
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    recipe = load_recipe(job["recipe"], job["recipe_options"])
    layers = [factory.build() for factory in recipe.layers]
    module = CutPipeline(job["cut"], layers=layers, num_stages=size, loss_fn=recipe.loss)
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=recipe.optimizer([p for p in module.parameters() if p.requires_grad]),
        config={
            "train_micro_batch_size_per_gpu": job["microbatch_size"],
            "gradient_accumulation_steps": job["num_microbatches"],
            "steps_per_print": 10**9,
        },
    )
    torch.set_num_threads(1)
    batches = microbatches(job, recipe)

    def step() -> float:
        started = time.perf_counter()
        engine.train_batch(batches)
        torch.distributed.barrier()
        return time.perf_counter() - started

    answer(rank, step)


class CutPipeline(PipelineModule):  # type: ignore[misc]
    """With our cut instead of one of its own methods."""

    def __init__(self, cut: list[tuple[int, int]], **settings: Any) -> None:
        self._cut = cut
        super().__init__(**settings)

    def _partition_layers(self, method: str = "uniform") -> None:
        parts = [first for first, _ in self._cut] + [self._cut[-1][1]]
        self.parts = parts
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=parts[stage], stop=parts[stage + 1])


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()), int(sys.argv[1]))
