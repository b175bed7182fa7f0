"""The torchft peer of pause_vs_peers.py: one of two replica groups, data parallel, in an environment of its own.

    python benchmarks/torchft_peer.py JOB.json GROUP

Of Bamboo it imports the layer that sleeps, and nothing else: torchft and its torch are installed apart. Each group runs
the whole model, whose layers sleep as those of the recipe ``mlp`` do. A group writes a line for each step: when it was,
and whether it was committed.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from bamboo_trainer.models.emulated_device import EmulatedDeviceTime
from torch import Tensor, nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        times = {"forward_s": job["forward_s"], "backward_s": job["backward_s"]}
        self.layers = nn.ModuleList(EmulatedDeviceTime(Residual(job["width"]), **times) for _ in range(job["depth"]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def main(job: dict[str, Any], group: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(job)
    inner = torch.optim.AdamW(model.parameters())

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"group{group}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=job["lighthouse"],
        timeout=timedelta(seconds=10),
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    lines = (Path(job["folder"]) / f"group{group}").open("a", buffering=1)
    x = torch.randn(job["batch"], job["width"])
    while True:
        optimizer.zero_grad()
        loss = functional.mse_loss(ddp(x), x)
        loss.backward()
        before = manager.current_step()
        optimizer.step()
        line = {"at": time.time(), "step": before, "committed": manager.current_step() > before}
        lines.write(json.dumps(line | {"groups": manager.num_participants()}) + "\n")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]))
