"""Limits of money and time: told of at four fifths, and at the end the run is saved and stops."""

from dataclasses import replace

import pytest
from bamboo_trainer.plan import Mode

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.settings import Budget
from bamboo_cli.coordinator.states import RunReason, RunState
from tests.coordinator.small_world import World
from tests.coordinator.test_planning import train_on
from tests.coordinator.test_storms import NUM_STEPS, new_world, run_spec

START = 1000.0
"""The small world's."""


def begun(budget: Budget, num_nodes: int = 2) -> World:
    world = new_world(num_nodes)
    world.handle(ev.Started())
    spec = replace(run_spec(1, 2, Mode.BUBBLE), budget=budget)
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
    world.pump(training=False)
    return world


def spend(world: World, microusd: int) -> None:
    world.handle(ev.SpentSoFar(run_id="r1", microusd=microusd))
    world.pump(training=False)


def run(world: World) -> Run:
    found = world.machine.board.run
    assert found is not None
    return found


def warnings(world: World) -> list[str]:
    return [line.text for line in world.told if line.kind is ev.StoryKind.BUDGET]


def test_money_is_told_of_once_at_four_fifths_and_stops_the_run_with_a_checkpoint_at_all_of_it() -> None:
    world = begun(Budget(max_microusd=1_000_000))
    train_on(world, 2)
    spend(world, 799_999)
    assert warnings(world) == []
    spend(world, 810_000)
    spend(world, 950_000)
    assert warnings(world) == ["81% of `max_cost_usd` 1 is spent: run r1 will be stopped at all of it"]
    assert run(world).state is RunState.RUNNING

    spend(world, 1_000_001)
    train_on(world, 3)

    assert (run(world).state, run(world).reason) == (RunState.STOPPED, RunReason.BUDGET)
    assert run(world).detail == "100% of `max_cost_usd` 1 is spent"
    progress, saved = world.machine.board.progress, world.machine.board.checkpoints
    assert progress is not None and saved is not None
    assert saved.complete[-1] == progress.committed_step >= 2, "nothing is lost"


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(max_s=10.0), "of `max_hours` 0.00277778 is over"),
        (Budget(deadline=START + 10.0), "of the time to the `deadline` is over"),
        (Budget(max_microusd=10**9, max_s=10.0, deadline=START + 1e6), "of `max_hours` 0.00277778 is over"),
    ],
)
def test_time_is_a_limit_too_and_the_nearest_one_counts(budget: Budget, says: str) -> None:
    world = begun(budget)
    train_on(world, 7)
    assert warnings(world) == [] and run(world).state is RunState.RUNNING
    train_on(world, 2)
    assert len(warnings(world)) == 1 and says in warnings(world)[0]
    train_on(world, 4)
    assert (run(world).state, run(world).reason) == (RunState.STOPPED, RunReason.BUDGET)
    assert says in run(world).detail


def test_a_run_that_waits_for_nodes_is_stopped_as_well() -> None:
    world = new_world(2)
    world.short_zones.update(world.config.zones)
    world.handle(ev.Started())
    spec = replace(run_spec(1, 2, Mode.BUBBLE), budget=Budget(max_s=5.0))
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
    train_on(world, 6)

    assert (run(world).state, run(world).reason) == (RunState.STOPPED, RunReason.BUDGET)
    assert run(world).detail.endswith(", before it began")


def test_a_run_that_has_done_all_its_steps_is_not_stopped_while_it_writes_them_down() -> None:
    world = begun(Budget(max_microusd=1_000_000))
    world.full_disk = True
    train_on(world, NUM_STEPS)
    assert run(world).state is RunState.FINISHING
    spend(world, 2_000_000)
    assert warnings(world) == []
    world.full_disk = False
    train_on(world, 20)
    assert run(world).state is RunState.DONE


def test_without_limits_nothing_is_said_and_a_wish_to_stop_stays_one() -> None:
    world = begun(Budget())
    spend(world, 10**12)
    train_on(world, 2)
    world.handle(ev.RequestMade(request_id=2, request=ev.StopRun(run_id="r1")))
    train_on(world, 3)

    assert warnings(world) == []
    assert (run(world).state, run(world).reason) == (RunState.STOPPED, RunReason.REQUESTED)


def test_a_coordinator_that_was_killed_knows_what_was_told_and_spent() -> None:
    world = begun(Budget(max_microusd=1_000_000))
    spend(world, 900_000)
    world.restart()
    world.handle(ev.Started())
    train_on(world, 2)
    assert len(warnings(world)) == 1
    spend(world, 1_000_000)
    world.restart()
    world.handle(ev.Started())
    train_on(world, 4)
    assert run(world).reason is RunReason.BUDGET


def test_what_another_run_has_spent_is_not_counted() -> None:
    world = begun(Budget(max_microusd=100))
    world.handle(ev.SpentSoFar(run_id="r0", microusd=1000))
    train_on(world, 1)
    assert run(world).state is RunState.RUNNING
