"""The peer of trace_replay.py: checkpoint and restart, on nodes that come and go as the same trace says.

    python -m benchmarks.restart_peer JOB.json

The stages of torch_1f1b.py under Schedule1F1B, one pipeline over all nodes. When a node is lost, all processes end and
as many as there are nodes start anew from the newest checkpoint, with the layers cut anew. Nodes that come are taken
in at the next checkpoint. In its favour: a loss is known at once, a new node needs no time to boot, nothing has to be
agreed on, and no step is lost to nodes that come. Processes are forked from this one, since two cores cannot load
torch in eight processes at once; instead each sleeps for the processor time that this one took to load it.
Rank 0 writes a line for each committed step.

With ``checkpoint_s`` a checkpoint is written beside training, of use so many seconds after its step, and the next one
begins then; with ``load_s`` reading one takes so long. Both are 0 otherwise, and a checkpoint is made every
``checkpoint_every`` steps.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bamboo_trainer.partition import cut

from bamboo_cli.providers.local_cloud.trace import Change, Replay
from benchmarks.torch_1f1b import PeerStage

LOAD_S = time.process_time()
"""Processor time from the start of this process until it has loaded torch and its pipelining."""
POLL_S = 0.005


class Fleet:
    """Processes of one pipeline."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._folder = Path(job["folder"])
        self.pids: list[int] = []
        self.checkpoint_at_start = -1
        self.num_starts = 0

    @property
    def checkpoint(self) -> int:
        """The step of the newest one; -1: there is none."""
        newest = self._folder / "newest"
        return int(newest.read_text()) if newest.exists() else -1

    def restart(self, num_nodes: int) -> None:
        self.end()
        self.checkpoint_at_start = self.checkpoint
        self.num_starts += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        layers = cut([1.0] * self._job["recipe_options"]["depth"], num_nodes) if num_nodes else []
        job = self._job | {"cut": [(r.start, r.stop) for r in layers], "port": port}
        self.pids = [_fork(job, rank) for rank in range(num_nodes)]

    def end(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.pids = []

    def check(self) -> None:
        """Raises RuntimeError when a process ended that nobody took."""
        if any(os.waitpid(pid, os.WNOHANG)[0] for pid in self.pids):
            raise RuntimeError("a process of the peer ended by itself")


def main(job: dict[str, Any]) -> None:
    changes = tuple(Change(**change) for change in job["changes"])
    started_at = time.time()
    (Path(job["folder"]) / "started").write_text(json.dumps({"at": started_at, "load_s": LOAD_S}))
    replay, fleet = Replay(changes=changes, seed=0, started_at=started_at), Fleet(job)
    while time.time() < started_at + job["until_s"]:
        is_hit = False
        while change := replay.next_due(time.time()):
            is_hit = is_hit or change.num_taken > 0 or change.capacity < len(fleet.pids)
            replay = replay.done()
        is_new_checkpoint = fleet.checkpoint > fleet.checkpoint_at_start
        if is_hit or not fleet.pids or (replay.capacity > len(fleet.pids) and is_new_checkpoint):
            fleet.restart(replay.capacity)
        fleet.check()
        time.sleep(POLL_S)
    fleet.end()
    print(json.dumps({"starts": fleet.num_starts}))


def _fork(job: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        time.sleep(LOAD_S)
        _train(job, rank)
    finally:
        os._exit(1)


def _train(job: dict[str, Any], rank: int) -> None:
    folder, size = Path(job["folder"]), len(job["cut"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['port']}", rank=rank, world_size=size)
    stage = PeerStage(job, rank)
    step = _load(stage, job["cut"][rank], folder)
    if step > 0:
        time.sleep(job["load_s"])
    slow = SlowCheckpoints(folder, job["checkpoint_s"], rank)
    with (folder / "commits").open("a", buffering=1) as commits:
        while True:
            stage.step(step)
            if rank == 0:
                commits.write(json.dumps({"step": step, "at": time.time()}) + "\n")
            if job["checkpoint_s"]:
                if slow.is_next_due():
                    _save(stage, job["cut"][rank], folder, step)
                    slow.begin(step)
            elif (step + 1) % job["checkpoint_every"] == 0:
                _save(stage, job["cut"][rank], folder, step)
                if rank == 0:
                    _publish(folder, step)
            step += 1


def _load(stage: PeerStage, layers: Sequence[int], folder: Path) -> int:
    """The step to go on with."""
    newest = folder / "newest"
    if not newest.exists():
        return 0
    step = int(newest.read_text())
    for index, module in zip(range(*layers), stage.module, strict=True):
        state = torch.load(folder / f"{step}-{index}.pt")
        module.load_state_dict(state["module"])
        stage.optimizer.state |= dict(zip(module.parameters(), state["optimizer"], strict=True))
    return step + 1


def _save(stage: PeerStage, layers: Sequence[int], folder: Path, step: int) -> None:
    for index, module in zip(range(*layers), stage.module, strict=True):
        optimizer = [stage.optimizer.state[parameter] for parameter in module.parameters()]
        torch.save({"module": module.state_dict(), "optimizer": optimizer}, folder / f"{step}-{index}.pt")
    dist.barrier()


def _publish(folder: Path, step: int) -> None:
    (folder / "newest.new").write_text(str(step))
    (folder / "newest.new").replace(folder / "newest")


class SlowCheckpoints:
    """One after the other, each of use ``seconds`` after its step; rank 0 has the clock."""

    def __init__(self, folder: Path, seconds: float, rank: int) -> None:
        self._folder, self._seconds, self._rank = folder, seconds, rank
        self._written: tuple[int, float] | None = None

    def is_next_due(self) -> bool:
        """Asked by all ranks after each step."""
        due = torch.ones(1)
        if self._rank == 0 and self._written is not None:
            step, at = self._written
            due[0] = time.time() >= at + self._seconds
            if due[0]:
                _publish(self._folder, step)
        dist.broadcast(due, 0)
        return bool(due[0])

    def begin(self, step: int) -> None:
        self._written = step, time.time()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
