"""The peer of failover_pause.py: the stages of torch_1f1b.py under ``torchrun --max-restarts``, with checkpoints.

    torchrun … -m benchmarks.torchrun_1f1b JOB.json

When a process dies, torchrun starts all of them anew, and they go on from the newest checkpoint. Rank 0 writes a line
for each committed step; a victim leaves a claim file, so that it strikes once.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.torch_1f1b import PeerStage


def main(job: dict[str, Any]) -> None:
    folder, rank = Path(job["folder"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    stage = PeerStage(job, rank)
    first_step = load(stage, folder)
    commits = (folder / "commits").open("a", buffering=1)
    for step in range(first_step, job["num_steps"]):
        kills = [k for k in job["kills"] if k["step"] == step and k["stage"] == rank]
        hooks = [strike_in_mid_step(stage.module, folder / f"kill-{step}", k["microbatch"]) for k in kills]
        stage.step(step)
        for hook in hooks:
            hook.remove()
        if rank == 0:
            commits.write(json.dumps({"step": step, "at": time.time()}) + "\n")
        if (step + 1) % job["checkpoint_every"] == 0:
            save(stage, folder, step)
    dist.destroy_process_group()


def strike_in_mid_step(module: nn.Module, claim: Path, microbatch: int) -> torch.utils.hooks.RemovableHandle:
    """The process kills itself when its stage begins the forward of the microbatch."""
    begun = 0

    def strike(*_: Any) -> None:
        nonlocal begun
        begun += 1
        if begun == microbatch + 1 and not claim.exists():
            claim.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return module.register_forward_pre_hook(strike)


def load(stage: PeerStage, folder: Path) -> int:
    """The step to go on with."""
    newest = folder / "newest"
    if not newest.exists():
        return 0
    step = int(newest.read_text())
    state = torch.load(folder / f"{step}-{stage.rank}.pt")
    stage.module.load_state_dict(state["module"])
    stage.optimizer.load_state_dict(state["optimizer"])
    return step + 1


def save(stage: PeerStage, folder: Path, step: int) -> None:
    state = {"module": stage.module.state_dict(), "optimizer": stage.optimizer.state_dict()}
    torch.save(state, folder / f"{step}-{stage.rank}.pt")
    dist.barrier()
    if stage.rank == 0:
        unfinished = folder / "newest.new"
        unfinished.write_text(str(step))
        unfinished.replace(folder / "newest")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
