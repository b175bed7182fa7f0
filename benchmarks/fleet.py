"""Real worker processes on loopback, without agents and coordinator: what the benchmarks measure the trainer with."""

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bamboo_trainer import control
from bamboo_trainer.arrangement import build_pipelines
from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.dryrun import Durations
from bamboo_trainer.partition import cut
from bamboo_trainer.plan import (
    Fetch,
    Member,
    Mode,
    NodeId,
    Plan,
    PlanKind,
    WorkerId,
)
from bamboo_trainer.plan_rules import check_plan


@dataclass(slots=True)
class Process:
    worker_id: WorkerId
    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    buffer: bytes = b""
    member: Member | None = None


class Fleet:
    """``tell`` and ``hear``: the agent's side of every worker's control socket."""

    def __init__(self, num_workers: int, environment: dict[str, str] | None = None) -> None:
        self.processes: dict[WorkerId, Process] = {}
        for index in range(num_workers):
            self._start(WorkerId(f"n{index}/1"), environment or {})

    def _start(self, worker_id: WorkerId, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", "bamboo_trainer"],
            pass_fds=[theirs.fileno()],
            env=os.environ
            | {
                "BAMBOO_CONTROL_FD": str(theirs.fileno()),
                "BAMBOO_WORKER_ID": worker_id,
                "BAMBOO_NODE_ID": worker_id.split("/")[0],
                "OMP_NUM_THREADS": "1",
            }
            | environment,
            stderr=subprocess.DEVNULL if not os.environ.get("BAMBOO_BENCH_LOG") else None,
            start_new_session=True,
        )
        theirs.close()
        self.processes[worker_id] = Process(worker_id, process, ours)

    def tell(self, worker_id: WorkerId, message: control.ToWorker) -> None:
        self.processes[worker_id].channel.sendall(control.encode(message) + b"\n")

    def hear(self, timeout_s: float = 60.0) -> Iterator[tuple[float, WorkerId, control.FromWorker]]:
        """Messages as they come (time of arrival, from whom), beats left out.

        Raises TimeoutError when none comes for ``timeout_s``.
        """
        end = time.monotonic() + timeout_s
        while True:
            alive = {p.channel.fileno(): p for p in self.processes.values() if p.channel.fileno() >= 0}
            ready, _, _ = select.select(list(alive), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no word from the workers for {timeout_s} s")
            now = time.monotonic()
            for fileno in ready:
                process = alive[fileno]
                chunk = process.channel.recv(1 << 16)
                if not chunk:
                    process.channel.close()
                    continue
                *lines, process.buffer = (process.buffer + chunk).split(b"\n")
                for line in lines:
                    message = control.decode_from_worker(line)
                    if isinstance(message, control.WorkerFailed):
                        raise RuntimeError(f"{process.worker_id}: {message.detail}")
                    if not isinstance(message, control.WorkerBeat):
                        end = now + timeout_s
                        yield now, process.worker_id, message

    def wait_all(self, kind: type, timeout_s: float = 60.0) -> dict[WorkerId, Any]:
        """The first message of a kind from every worker."""
        got: dict[WorkerId, Any] = {}
        for _, worker_id, message in self.hear(timeout_s):
            if isinstance(message, kind):
                got[worker_id] = message
            if len(got) == len(self.processes):
                return got
        raise AssertionError("unreachable")

    def prepare(self, spec: control.TrainingSpec) -> Sequence[control.LayerCost]:
        """Waits until all are warm and know the run. Returns measured layer costs."""
        for worker_id, ready in self.wait_all(control.WorkerReady).items():
            self.processes[worker_id].member = Member(
                worker_id=worker_id, node_id=NodeId(worker_id), address=ready.address, port=ready.port
            )
        return self.prepare_again(spec)

    def prepare_again(self, spec: control.TrainingSpec) -> Sequence[control.LayerCost]:
        """Warm workers, for another run."""
        costs: Sequence[control.LayerCost] = ()
        for index, worker_id in enumerate(self.processes):
            self.tell(worker_id, control.Prepare(spec=spec, profile=index == 0))
            for _, who, message in self.hear():
                if who == worker_id and isinstance(message, control.Prepared):
                    costs = message.costs or costs
                    break
        return costs

    def plan(
        self,
        spec: control.TrainingSpec,
        costs: Sequence[control.LayerCost],
        num_pipelines: int,
        num_stages: int,
        mode: Mode,
        level: int = 1,
        generation: int = 1,
    ) -> Plan:
        """From the seed. A later generation takes the workers from whatever they do."""
        members = [p.member for p in self.processes.values() if p.member is not None]
        ranges = cut([c.forward_s + c.backward_s for c in costs], num_stages)
        names = [member.worker_id for member in members]
        rows = [names[d * num_stages : (d + 1) * num_stages] for d in range(num_pipelines)]
        pipelines = build_pipelines(rows, [ranges] * num_pipelines, spec.num_microbatches, mode, level)
        plan = Plan(
            generation=generation,
            kind=PlanKind.BOUNDARY,
            first_step=0,
            pipelines=pipelines,
            members=tuple(members),
        )
        fetches = tuple(
            Fetch(worker_id=m.worker_id, layer=x, source=None) for m in members for x in plan.layers_of(m.worker_id)
        )
        durations = Durations(forward=[c.forward_s for c in costs], backward=[c.backward_s for c in costs])
        plan = with_slots(replace(plan, fetches=fetches), durations)
        check_plan(plan)
        return plan

    def adopt(self, plan: Plan) -> None:
        for worker_id in plan.worker_ids():
            self.tell(worker_id, control.Adopt(plan=plan))

    def close(self) -> None:
        for process in self.processes.values():
            if process.process.poll() is None:
                process.process.kill()
            process.process.wait()
            if process.channel.fileno() >= 0:
                process.channel.close()


@contextmanager
def fleet(num_workers: int, environment: dict[str, str] | None = None) -> Iterator[Fleet]:
    workers = Fleet(num_workers, environment)
    try:
        yield workers
    finally:
        workers.close()


def turns(
    case: dict[str, Any], num_microbatches: int, modes: Sequence[Mode], *, rounds: int, num_steps: int, warm_up: int
) -> tuple[dict[Mode, list[float]], dict[Mode, Plan]]:
    """Median seconds of a step of one pipeline in each round, nobody lost; the same processes take the modes in turn.

    ``case``: recipe, recipe_options, stages, microbatch_size.
    """
    seconds: dict[Mode, list[float]] = {mode: [] for mode in modes}
    plans: dict[Mode, Plan] = {}
    with tempfile.TemporaryDirectory() as folder, fleet(case["stages"]) as workers:
        spec = spec_of(case, num_microbatches, 10**6, folder)
        costs = workers.prepare(spec)
        messages = workers.hear()
        # in rotating order: none always follows the same one
        order = [modes[(turn + index) % len(modes)] for turn in range(rounds) for index in range(len(modes))]
        for generation, mode in enumerate(order, start=1):
            plans[mode] = workers.plan(spec, costs, 1, case["stages"], mode, generation=generation)
            workers.adopt(plans[mode])
            taken: list[float] = []
            while len(taken) < warm_up + num_steps:
                _, _, message = next(messages)
                if isinstance(message, control.StepCommitted) and message.generation == generation:
                    taken.append(message.step_s)
            seconds[mode].append(median(taken[warm_up:]))
    return seconds, plans


def spec_of(case: dict[str, Any], num_microbatches: int, num_steps: int, folder: str) -> control.TrainingSpec:
    return control.TrainingSpec(
        run_id="benchmark",
        recipe=case["recipe"],
        recipe_options=case["recipe_options"],
        num_steps=num_steps,
        num_microbatches=num_microbatches,
        microbatch_size=case["microbatch_size"],
        seed=0,
        checkpoint_url=folder,
        checkpoint_every=10**9,
        digest_every=0,
    )


Stepper = Callable[[int], list[float]]


@contextmanager
def stepper(case: dict[str, Any], num_microbatches: int, mode: Mode) -> Iterator[tuple[Stepper, Plan]]:
    """One pipeline whose workers stay, and rest between calls. A call trains anew from the seed and gives the seconds
    of each step."""
    with tempfile.TemporaryDirectory() as folder, fleet(case["stages"]) as workers:
        spec = spec_of(case, num_microbatches, 10**6, folder)
        costs = workers.prepare(spec)
        messages = workers.hear()
        generations = itertools.count(1)

        def steps(count: int) -> list[float]:
            generation = next(generations)
            workers.adopt(workers.plan(spec, costs, 1, case["stages"], mode, generation=generation))
            seconds: list[float] = []
            stopped: set[WorkerId] = set()
            for _, who, message in messages:
                if isinstance(message, control.StepCommitted) and message.generation == generation:
                    seconds.append(message.step_s)
                    if len(seconds) == count:
                        for worker_id in workers.processes:
                            workers.tell(worker_id, control.Quiesce(generation=generation))
                elif isinstance(message, control.Stopped) and message.generation == generation:
                    stopped.add(who)
                    if len(stopped) == len(workers.processes):
                        break
            return seconds[:count]

        yield steps, workers.plan(spec, costs, 1, case["stages"], mode)


def claim(name: str, value: float, limit: float, *, at_most: bool = True) -> dict[str, Any]:
    holds = value <= limit if at_most else value >= limit
    return {"name": name, "value": float(f"{value:.4g}"), "limit": limit, "holds": holds}


def finish(benchmark: str, claims: list[dict[str, Any]], **figures: Any) -> int:
    """Prints the last line; the exit code says whether all claims hold."""
    print(json.dumps({"benchmark": benchmark, "claims": claims, **figures}))
    return 0 if all(c["holds"] for c in claims) else 1
