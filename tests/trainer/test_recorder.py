"""The flight recorder: which steps are sent, what stands in a page, what it costs."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

from bamboo_trainer import control
from bamboo_trainer.control import Recorded, RecordedWhy
from bamboo_trainer.executor import Executor
from bamboo_trainer.frames import Datum, Frame, Held
from bamboo_trainer.plan import Fetch, Mode, Plan, PlanKind, WorkerId
from bamboo_trainer.recorder import EVERY, RecordingExecutor
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.schedule import Action, Kind, backward_key, forward_key

from tests.trainer.world import World, grid_plan, worker_name

NUM_STAGES = 3
NUM_MICROBATCHES = 4


class WatchedWorld(World):
    """Every executor is recorded; a tick of the clock is a microsecond."""

    def add_worker(self, worker_id: WorkerId) -> Executor:
        executor = super().add_worker(worker_id)
        ticks = itertools.count(1)

        def now() -> float:
            return next(ticks) * 1e-6

        def report(message: control.FromWorker) -> None:
            self.reports.append((worker_id, message))

        recorder = Watched(executor, worker_id, "r1", report, monotonic=now, epoch=now)
        self.executors[worker_id] = recorder  # type: ignore[assignment]
        return executor

    def pages(self, worker_id: WorkerId) -> list[Recorded]:
        return [m for w, m in self.reports if w == worker_id and isinstance(m, Recorded)]


class Watched(RecordingExecutor):
    """In these worlds a frame arrives when it is received."""

    def receive(self, sender: WorkerId, frame: Frame) -> None:
        self.arrived(sender, frame)
        super().receive(sender, frame)

    @property
    def plan(self) -> Plan | None:
        return self._inner.plan  # type: ignore[attr-defined, no-any-return]


def start(num_steps: int) -> WatchedWorld:
    plan = grid_plan(1, NUM_STAGES, NUM_MICROBATCHES, 2, Mode.BUBBLE)
    world = WatchedWorld(plan.num_layers, NUM_MICROBATCHES, num_steps, tied=False)
    for worker_id in plan.worker_ids():
        world.add_worker(worker_id)
    world.adopt(plan)
    return world


def lose(world: WatchedWorld, victim: WorkerId, at_step: int, action: str) -> None:
    """Up to the action, then the coordinator's answer and the rest of the run."""
    plan = world.executors[victim].plan

    def here(worker_id: WorkerId, next_one: Action) -> bool:
        return (worker_id, world.executors[victim].step, str(next_one)) == (victim, at_step, action)

    assert plan is not None and world.run(here) == victim
    world.lose(victim)
    after = fail_over(plan, {victim}, generation=2)
    assert after is not None
    world.adopt(after)
    world.run()


def names(page: Recorded) -> list[str]:
    return [slot.action for slot in page.slots]


def test_the_first_three_steps_of_a_plan_and_every_fiftieth_are_sent() -> None:
    world = start(num_steps=2 * EVERY + 5)

    world.run()

    for stage in range(NUM_STAGES):
        assert [(page.step, page.why) for page in world.pages(worker_name(0, stage))] == [
            (0, RecordedWhy.CHANGE),
            (1, RecordedWhy.FIRST),
            (2, RecordedWhy.FIRST),
            (EVERY, RecordedWhy.SAMPLE),
            (2 * EVERY, RecordedWhy.SAMPLE),
        ]


def test_a_page_has_every_action_in_order_and_none_overlaps_another() -> None:
    world = start(num_steps=3)

    world.run()

    page = world.pages(worker_name(0, 1))[1]
    each = range(NUM_MICROBATCHES)
    assert page.committed and page.generation == 1 and page.run_id == "r1"
    assert {f"1{kind}{m}" for kind in "FB" for m in each} | {"1C", "HELD", "COMMIT"} <= set(names(page))
    # it leaves FRC between two layers and comes back to it, which makes two slots
    assert {name for name in names(page) if "FRC" in name} == {f"2FRC{m}" for m in each}
    edges = [edge for slot in page.slots for edge in (slot.start_us, slot.end_us)]
    assert edges == sorted(edges) and edges[0] >= 0
    arrived = {(arrival.datum, arrival.sender) for arrival in page.arrivals}
    assert {(f"0F{m}", "w0.0") for m in each} | {(f"2B{m}", "w0.2") for m in each} <= arrived
    assert {("HELD", "w0.0"), ("HELD", "w0.2")} <= arrived


def test_a_loss_brings_up_the_step_before_it_the_step_itself_and_those_after() -> None:
    world = start(num_steps=20)

    lose(world, worker_name(0, 1), at_step=7, action="1B1")

    shadow = world.pages(worker_name(0, 0))
    whys = {page.step: page.why for page in shadow}
    assert {whys[step] for step in (5, 6, 7)} == {RecordedWhy.CHANGE}
    assert {whys[step] for step in (8, 9)} == {RecordedWhy.FIRST}
    assert set(whys) == {0, 1, 2, 5, 6, 7, 8, 9}
    (page,) = [page for page in shadow if page.step == 7]
    at = names(page).index("FAILOVER2")
    assert page.generation == 2 and page.committed
    assert "0F1" in names(page)[:at]
    assert {"1F0", "1B3", "1C"} <= set(names(page)[at:])
    assert len({(page.step, page.began_at) for page in shadow}) == len(shadow)


def test_a_step_that_is_given_up_is_told_as_such_with_the_fetches_of_the_plan_after_it() -> None:
    world = start(num_steps=6)
    plan = world.executors[worker_name(0, 1)].plan
    assert plan is not None

    def in_step_four(worker_id: WorkerId, action: Action) -> bool:
        return str(action) == "1B2" and world.executors[worker_id].step == 4

    stopped = world.run(in_step_four)
    assert stopped == worker_name(0, 1)
    fetches = (Fetch(worker_id=worker_name(0, 1), layer=0, source=worker_name(0, 0)),)
    again = replace(plan, generation=2, kind=PlanKind.BOUNDARY, first_step=4, fetches=fetches)
    world.adopt(again)
    world.run()

    tries = [page for page in world.pages(worker_name(0, 1)) if page.step == 4]
    assert [(page.committed, page.generation) for page in tries] == [(False, 1), (True, 2)]
    assert names(tries[1])[0] == "PLAN2"
    assert "LOAD0" in names(tries[1])
    assert ("LAYER0", "w0.0") in {(arrival.datum, arrival.sender) for arrival in tries[1].arrivals}
    (giver,) = [page for page in world.pages(worker_name(0, 0)) if (page.step, page.generation) == (4, 2)]
    assert "GIVE0" in names(giver)


# --- what it costs ----------------------------------------------------------------------------------------------


class Trivial:
    """Steps of ``NUM_MICROBATCHES`` forwards and backwards, with what comes from two peers, in no time at all."""

    generation = 1
    step = 0

    def __init__(self, num_steps: int) -> None:
        self._actions = self._all(num_steps)

    def _all(self, num_steps: int) -> Iterator[Action]:
        for _ in range(num_steps):
            for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.REDUNDANT_FORWARD):
                for microbatch in range(NUM_MICROBATCHES):
                    yield Action(kind, 0, 1, microbatch)
            for kind in (Kind.CONTRIBUTE, Kind.HOLD, Kind.COMMIT):
                yield Action(kind, 0, 1)

    def next(self) -> Action | None:
        return next(self._actions, None)

    def perform(self, action: Action) -> None:
        self.step += action.kind is Kind.COMMIT

    def receive(self, sender: WorkerId, frame: Frame) -> None: ...

    def frames(self) -> list[Frame]:
        keys = [key(0, 1, m) for m in range(NUM_MICROBATCHES) for key in (forward_key, backward_key)]
        held = Held(generation=1, step=self.step, losses={}, square_norms={}, stop=False)
        return [*(Datum(generation=1, step=self.step, key=key, value=None) for key in keys), held, held]

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} is not called here")


def test_recording_and_sending_cost_less_than_half_a_percent_of_a_short_step() -> None:
    """A step of 65 ms, as in the tests of the whole product; long ones are cheaper in proportion. Sending is paid by
    the same thread, and counted: encoding is what there is to it."""
    step_s, num_steps = 0.065, 10 * EVERY
    peer = WorkerId("n2/1")

    def seconds_a_step(recorded: bool) -> float:
        sent: list[bytes] = []
        trivial = Trivial(num_steps)
        recorder = RecordingExecutor(
            trivial,  # type: ignore[arg-type]
            WorkerId("n1/1"),
            "r1",
            lambda message: sent.append(control.encode(message)),
        )
        executor = recorder if recorded else trivial
        began = time.process_time()
        while (action := executor.next()) is not None:
            if action.kind is Kind.CONTRIBUTE:
                for frame in trivial.frames():
                    if recorded:
                        recorder.arrived(peer, frame)
                    executor.receive(peer, frame)
            executor.perform(action)
        took = time.process_time() - began
        assert len(sent) == (num_steps // EVERY + 2 if recorded else 0)
        return took / num_steps

    rounds = [(seconds_a_step(True), seconds_a_step(False)) for _ in range(5)]

    cost_s = min(with_it for with_it, _ in rounds) - min(without for _, without in rounds)
    assert 0 < cost_s < 0.005 * step_s
