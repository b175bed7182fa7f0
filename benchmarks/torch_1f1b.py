"""The peer: the same layers, cut and data under ``torch.distributed.pipelining``'s Schedule1F1B, one process a stage.

Started by pipeline_vs_torch.py as ``python -m benchmarks.torch_1f1b``. First line of stdin: a JSON description; each
further line: how many steps to run, whose seconds rank 0 prints.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from bamboo_trainer.data import sample_ids
from bamboo_trainer.recipe import load_recipe
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class PeerStage:
    """One stage. The process group must be there; ``job`` has recipe, recipe_options, cut and batch sizes."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        torch.set_num_threads(1)
        self.rank, self.size = rank, len(job["cut"])
        self._num_microbatches, self._microbatch_size = job["num_microbatches"], job["microbatch_size"]
        self._recipe = load_recipe(job["recipe"], job["recipe_options"])
        first, end = job["cut"][rank]
        self.module = torch.nn.Sequential(*[factory.build() for factory in self._recipe.layers[first:end]])
        self.optimizer = self._recipe.optimizer(list(self.module.parameters()))
        stage = PipelineStage(self.module, rank, self.size, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, n_microbatches=self._num_microbatches, loss_fn=self._recipe.loss)

    def step(self, step: int) -> None:
        """Returns when every stage has applied its optimizer, as with a commit."""
        ends = self.rank in (0, self.size - 1)
        inputs, targets = self._batch(step) if ends else (None, None)
        self.optimizer.zero_grad()
        if self.rank == 0:
            self._schedule.step(inputs)
        elif self.rank == self.size - 1:
            self._schedule.step(target=targets)
        else:
            self._schedule.step()
        for group in self.optimizer.param_groups:
            group["lr"] = self._recipe.learning_rate(step)
        self.optimizer.step()
        if self.size > 1:
            dist.barrier()

    def _batch(self, step: int) -> tuple[Any, Any]:
        ids = [
            i
            for m in range(self._num_microbatches)
            for i in sample_ids(
                seed=0,
                step=step,
                microbatch=m,
                num_microbatches=self._num_microbatches,
                microbatch_size=self._microbatch_size,
                num_samples=len(self._recipe.dataset),
            )
        ]
        return self._recipe.dataset.batch(ids)


def main(job: dict[str, Any], rank: int) -> None:
    size = len(job["cut"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['port']}", rank=rank, world_size=size)
    stage = PeerStage(job, rank)
    steps = itertools.count()

    def step() -> float:
        started = time.perf_counter()
        stage.step(next(steps))
        return time.perf_counter() - started

    answer(rank, step)
    dist.destroy_process_group()


def answer(rank: int, step: Callable[[], float]) -> None:
    """Runs as many steps as each line of stdin says; rank 0 prints their seconds."""
    for line in sys.stdin:
        seconds = [step() for _ in range(int(line))]
        if rank == 0:
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()), int(sys.argv[1]))
