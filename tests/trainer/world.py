"""Workers without processes: executors over in-memory links, driven in a fixed order, losing whom the test says.

A frame is under way until its receiver is next visited. A lost worker's frames under way are delivered or lost as the
test decides, link by link: what a broken TCP connection does.
"""

import functools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import replace

from bamboo_trainer import control
from bamboo_trainer.arrangement import staff, uniform
from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.dryrun import Durations
from bamboo_trainer.executor import Executor
from bamboo_trainer.frames import Frame
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
from bamboo_trainer.schedule import Action

from tests.trainer.integer_compute import Disk, IntegerCompute


def worker_name(pipeline_index: int, stage_index: int) -> WorkerId:
    return WorkerId(f"w{pipeline_index}.{stage_index}")


@functools.cache
def grid_plan(
    num_pipelines: int,
    num_stages: int | tuple[int, ...],
    num_microbatches: int,
    layers_per_stage: int,
    mode: Mode | tuple[Mode, ...],
    level: int = 1,
) -> Plan:
    """Generation 1, from the seed: one worker a stage, each shadowing its successors. ``num_stages``: of each pipeline,
    if they are unequal; ``layers_per_stage`` is then that of the longest. ``mode``: of each stage, if they differ."""
    depths = (num_stages,) * num_pipelines if isinstance(num_stages, int) else num_stages
    rows = [[worker_name(d, s) for s in range(depth)] for d, depth in enumerate(depths)]
    cuts = [cut([1.0] * (max(depths) * layers_per_stage), depth) for depth in depths]
    arrangement = uniform(cuts, num_microbatches, Mode.OFF, level)
    modes = tuple((mode,) * depth if isinstance(mode, Mode) else mode[:depth] for depth in depths)
    arrangement = replace(arrangement, modes=modes)
    members = [Member(worker_id=name, node_id=NodeId(name), address="", port=0) for row in rows for name in row]
    plan = Plan(
        generation=1,
        kind=PlanKind.BOUNDARY,
        first_step=0,
        pipelines=staff(arrangement, rows),
        members=tuple(members),
    )
    fetches = tuple(
        Fetch(worker_id=member.worker_id, layer=layer, source=None)
        for member in members
        for layer in plan.layers_of(member.worker_id)
    )
    plan = with_slots(replace(plan, fetches=fetches), Durations.even(plan.num_layers))
    check_plan(plan)
    return plan


class World:
    """``before_action``: called with (worker, action) before each; return True to lose the worker there."""

    def __init__(
        self,
        num_layers: int,
        num_microbatches: int,
        num_steps: int,
        *,
        tied: bool,
        checkpoint_every: int = 2,
        bare: Collection[int] = (),
    ) -> None:
        self.spec = control.TrainingSpec(
            run_id="r1",
            recipe="integers",
            recipe_options={},
            num_steps=num_steps,
            num_microbatches=num_microbatches,
            microbatch_size=1,
            seed=0,
            checkpoint_url="",
            checkpoint_every=checkpoint_every,
            digest_every=2,
        )
        self.num_layers, self.tied, self.bare = num_layers, tied, bare
        self.disk = Disk()
        self.executors: dict[WorkerId, Executor] = {}
        self.computes: dict[WorkerId, IntegerCompute] = {}
        self.links: dict[tuple[WorkerId, WorkerId], deque[Frame]] = defaultdict(deque)
        self.cut: set[frozenset[WorkerId]] = set()
        self.reports: list[tuple[WorkerId, control.FromWorker]] = []
        self.on_report: Callable[[WorkerId, control.FromWorker], None] = lambda worker_id, message: None
        self.num_actions = 0
        self.slowness: random.Random | None = None
        """When set, links hold frames back for a while, each its own, as its numbers say; order is kept."""

    def add_worker(self, worker_id: WorkerId) -> Executor:
        compute = IntegerCompute(self.num_layers, self.spec.num_microbatches, self.disk, tied=self.tied, bare=self.bare)

        def send(peer: WorkerId, frame: Frame) -> None:
            if peer in self.executors and frozenset((worker_id, peer)) not in self.cut:
                self.links[worker_id, peer].append(frame)

        def report(message: control.FromWorker) -> None:
            self.reports.append((worker_id, message))
            self.on_report(worker_id, message)

        self.computes[worker_id] = compute
        self.executors[worker_id] = Executor(worker_id, self.spec, compute, send, report)
        return self.executors[worker_id]

    def adopt(self, plan: Plan, workers: Collection[WorkerId] | None = None) -> None:
        for worker_id in workers if workers is not None else list(self.executors):
            if worker_id in self.executors:
                self.executors[worker_id].adopt(plan)

    def lose(self, worker_id: WorkerId, delivered_to: Collection[WorkerId] = ()) -> None:
        """The worker vanishes; its frames under way reach only the peers in ``delivered_to``."""
        for (sender, receiver), frames in list(self.links.items()):
            if sender == worker_id and receiver in delivered_to:
                for frame in frames:
                    self.executors[receiver].receive(worker_id, frame)
        for sender, receiver in list(self.links):
            if worker_id in (sender, receiver):
                del self.links[sender, receiver]
        del self.executors[worker_id]

    def deliver(self, worker_id: WorkerId) -> bool:
        """Hands over what is under way to a worker. True: there was something."""
        any_frame = False
        for sender in list(self.executors):
            frames = self.links[sender, worker_id]
            while frames:
                any_frame = True
                if self.slowness is not None and self.slowness.random() < 0.8:
                    break
                self.executors[worker_id].receive(sender, frames.popleft())
        return any_frame

    def run(
        self,
        before_action: Callable[[WorkerId, Action], bool] = lambda worker_id, action: False,
        asleep: Collection[WorkerId] = (),
        max_rounds: int = 10_000,
    ) -> WorkerId | None:
        """Until nothing moves, or ``before_action`` says stop (then: the worker it said so of)."""
        for _ in range(max_rounds):
            moved = False
            for worker_id in list(self.executors):
                if worker_id in asleep:
                    continue
                moved |= self.deliver(worker_id)
                executor = self.executors[worker_id]
                action = executor.next()
                if action is not None:
                    self.num_actions += 1
                    if before_action(worker_id, action):
                        return worker_id
                    executor.perform(action)
                    moved = True
            if not moved:
                return None
        raise AssertionError("the world does not come to rest")

    def computes_alive(self) -> list[IntegerCompute]:
        return [self.computes[worker_id] for worker_id in self.executors]

    def finished(self) -> bool:
        return all(e.committed_step == self.spec.num_steps - 1 for e in self.executors.values())

    def weights(self) -> dict[int, object]:
        """Every layer's state; asserts that all holders agree."""
        states: dict[int, object] = {}
        for worker_id in self.executors:
            for layer in self.computes[worker_id].held_layers():
                state = self.computes[worker_id].export_layer(layer)
                assert states.setdefault(layer, state) == state, f"{worker_id} holds another layer {layer}"
        return states
