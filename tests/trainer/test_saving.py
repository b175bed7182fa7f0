"""Checkpoints that are asked for out of turn."""

from collections.abc import Iterator

import pytest
from bamboo_trainer.plan import Mode, WorkerId
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.schedule import Action, Kind

from tests.trainer.world import World, grid_plan

NUM_STEPS = 6


@pytest.fixture
def world() -> Iterator[tuple[World, dict[int, set[int]]]]:
    """Two pipelines of two stages; and what is saved: layers by step."""
    plan = grid_plan(2, 2, 4, 2, Mode.BUBBLE)
    world = World(plan.num_layers, 4, NUM_STEPS, tied=False, checkpoint_every=100)
    saved: dict[int, set[int]] = {}
    for worker_id in plan.worker_ids():
        world.add_worker(worker_id)
        world.computes[worker_id].on_saved = lambda step, layer: saved.setdefault(step, set()).add(layer)
    world.adopt(plan)
    yield world, saved


def run_until(world: World, step: int, kind: Kind) -> None:
    def reached(worker_id: WorkerId, action: Action) -> bool:
        return world.executors[worker_id].step == step and action.kind is kind

    assert world.run(reached) is not None


def test_a_step_to_come_is_saved_by_all_and_once(world: tuple[World, dict[int, set[int]]]) -> None:
    here, saved = world
    run_until(here, 1, Kind.BACKWARD)
    for executor in here.executors.values():
        executor.save(generation=1, step=3)
    here.run()
    assert here.finished()
    assert saved == {3: {0, 1, 2, 3}, NUM_STEPS - 1: {0, 1, 2, 3}}


def test_the_last_step_is_saved_at_once_also_when_everybody_has_stopped(
    world: tuple[World, dict[int, set[int]]],
) -> None:
    here, saved = world
    run_until(here, 2, Kind.FORWARD)
    for executor in here.executors.values():
        executor.quiesce(1)
    here.run()
    stopped_at = {executor.committed_step for executor in here.executors.values()}
    assert len(stopped_at) == 1
    for executor in here.executors.values():
        executor.save(generation=1, step=max(stopped_at))
    here.run()
    assert saved == {max(stopped_at): {0, 1, 2, 3}}


def test_a_shadow_that_took_over_saves_what_its_victim_was_asked_for(
    world: tuple[World, dict[int, set[int]]],
) -> None:
    here, saved = world
    plan = grid_plan(2, 2, 4, 2, Mode.BUBBLE)
    run_until(here, 1, Kind.BACKWARD)
    for executor in here.executors.values():
        executor.save(generation=1, step=3)
    run_until(here, 2, Kind.BACKWARD)
    victim = plan.stage(0, 1).host
    here.lose(victim)
    after = fail_over(plan, [victim], 2)
    assert after is not None
    here.adopt(after)
    here.run()
    assert here.finished() and saved[3] == {0, 1, 2, 3}


def test_another_generation_and_a_past_step_are_not_saved(world: tuple[World, dict[int, set[int]]]) -> None:
    here, saved = world
    run_until(here, 3, Kind.BACKWARD)
    for executor in here.executors.values():
        executor.save(generation=7, step=4)
        executor.save(generation=1, step=1)
    here.run()
    assert set(saved) == {NUM_STEPS - 1}
