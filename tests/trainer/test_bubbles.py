"""Redundant forwards at computed slots: they delay nobody, and nearly all that can fit does."""

import pytest
from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.dryrun import Durations, dry_run
from bamboo_trainer.plan import Mode, Plan
from bamboo_trainer.redundancy import fail_over

from tests.trainer.world import grid_plan

LAYERS = 4
"""A stage."""


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 8), (3, 4), (4, 4), (4, 8), (4, 16), (8, 8)])
def test_what_is_placed_delays_nobody(stages: int, microbatches: int, level: int) -> None:
    durations = Durations.even(stages * LAYERS)
    bare = dry_run(grid_plan(1, stages, microbatches, LAYERS, Mode.OFF), durations)
    result = dry_run(grid_plan(1, stages, microbatches, LAYERS, Mode.BUBBLE, level), durations)

    assert result.makespan == bare.makespan
    normal = [(slot.worker_id, slot.start, slot.action) for slot in result.slots if not slot.redundant]
    assert sorted(map(str, normal)) == sorted(str((slot.worker_id, slot.start, slot.action)) for slot in bare.slots)


@pytest.mark.parametrize(("microbatches", "fits"), [(4, 1.0), (8, 0.906), (16, 0.469)])
def test_most_of_what_can_fit_is_placed(microbatches: int, fits: float) -> None:
    """At P = 4 and b = 2 f a worker's bubbles are 9 f and its FRC is M f; some bubbles come before there is any."""
    durations = Durations.even(4 * LAYERS)
    plan = grid_plan(1, 4, microbatches, LAYERS, Mode.BUBBLE)

    assert placed(with_slots(plan, durations, margin=0.0)) == pytest.approx(fits, abs=1e-3)
    assert placed(plan) >= 0.85 * fits


def placed(plan: Plan) -> float:
    """Share of the layers of all FRC."""
    result = dry_run(plan, Durations.even(plan.num_layers))
    return sum(slot.redundant for slot in result.slots) / (result.wanted_redundant * LAYERS)


def test_uneven_layers_are_placed_by_their_own_times() -> None:
    # given a third stage that takes three times as long as the others
    slow = [1.0] * 2 * LAYERS + [3.0] * LAYERS + [1.0] * LAYERS
    durations = Durations(forward=slow, backward=[2 * x for x in slow])
    off, bubble = (grid_plan(1, 4, 8, LAYERS, mode) for mode in (Mode.OFF, Mode.BUBBLE))

    result = dry_run(with_slots(bubble, durations), durations)

    assert result.makespan == dry_run(off, durations).makespan
    # slots of other layer times than those that are run do delay
    assert dry_run(with_slots(bubble, Durations.even(4 * LAYERS)), durations).makespan >= result.makespan


def test_after_a_failover_any_wait_is_filled() -> None:
    plan = grid_plan(1, 4, 8, LAYERS, Mode.BUBBLE)

    after = fail_over(plan, {plan.stage(0, 2).host}, 2)

    assert after is not None
    assert any(stage.slots for stage in plan.stages())
    assert not any(stage.slots for stage in after.stages())
