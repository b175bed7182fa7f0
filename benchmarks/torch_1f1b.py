"""The peer: the same layers, cut and data under ``torch.distributed.pipelining``'s Schedule1F1B, one process a stage.

Started by pipeline_vs_torch.py as ``python -m benchmarks.torch_1f1b`` with a JSON description on stdin; rank 0 prints
the seconds of each step.
"""

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from bamboo_trainer.data import sample_ids
from bamboo_trainer.recipe import load_recipe
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main(job: dict[str, Any], rank: int) -> None:
    torch.set_num_threads(1)
    size, num_microbatches = len(job["cut"]), job["num_microbatches"]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['port']}", rank=rank, world_size=size)
    recipe = load_recipe(job["recipe"], job["recipe_options"])
    first, end = job["cut"][rank]
    module = torch.nn.Sequential(*[factory.build() for factory in recipe.layers[first:end]])
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=num_microbatches, loss_fn=recipe.loss)
    optimizer = recipe.optimizer(list(module.parameters()))
    seconds = []
    for step in range(job["num_steps"]):
        started = time.perf_counter()
        if rank in (0, size - 1):
            ids = [
                i
                for m in range(num_microbatches)
                for i in sample_ids(
                    seed=0,
                    step=step,
                    microbatch=m,
                    num_microbatches=num_microbatches,
                    microbatch_size=job["microbatch_size"],
                    num_samples=len(recipe.dataset),
                )
            ]
            inputs, targets = recipe.dataset.batch(ids)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=targets)
        else:
            schedule.step()
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        optimizer.step()
        if size > 1:
            # a step ends when every stage has ended it, as with a commit
            dist.barrier()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.load(sys.stdin), int(sys.argv[1]))
