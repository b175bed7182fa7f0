"""The chance that a layer loses all its holders: against a simulation, and which zone alone could do it."""

import random

import pytest
from bamboo_trainer.plan import Mode, NodeId
from bamboo_trainer.survival import fatal_per_hour, zones_that_matter

from tests.trainer.world import grid_plan, worker_name


def test_without_copies_every_loss_is_fatal() -> None:
    assert fatal_per_hour(grid_plan(1, 4, 4, 1, Mode.OFF), hazard=0.5, window_s=30.0) == pytest.approx(4 * 0.5)


@pytest.mark.parametrize(("level", "hazard", "window_s"), [(1, 2.0, 60.0), (2, 1.5, 120.0)])
def test_the_rate_is_that_of_a_simulation(level: int, hazard: float, window_s: float) -> None:
    # given one group of holders, whose losses are made good a window after each
    num_holders, hours, fatal = level + 1, 40_000.0, 0
    rng = random.Random(7)
    now, down_until = 0.0, [0.0] * num_holders
    while now < hours:
        now += rng.expovariate(hazard * num_holders)
        down_until[rng.randrange(num_holders)] = now + window_s / 3600.0
        if all(until > now for until in down_until):
            fatal += 1
            down_until = [now] * num_holders
    # when told of a plan with just that group (two or three stages, all held by all)
    plan = grid_plan(1, num_holders, 4, 1, Mode.LAZY, level)

    assert fatal_per_hour(plan, hazard, window_s) == pytest.approx(fatal / hours, rel=0.25)


def test_another_level_and_another_pipeline_make_it_rarer() -> None:
    def rate(pipelines: int, level: int, mode: Mode = Mode.LAZY) -> float:
        return fatal_per_hour(grid_plan(pipelines, 4, 4, 1, mode, level), hazard=0.5, window_s=30.0)

    assert rate(1, 2) < rate(1, 1) / 50
    assert rate(2, 1) < rate(1, 1) / 50
    assert rate(2, 1, Mode.REROUTE) == pytest.approx(rate(1, 1))


def test_a_zone_with_all_copies_of_a_layer_is_named() -> None:
    plan = grid_plan(1, 3, 3, 1, Mode.LAZY)

    def zones(*names: str) -> dict[NodeId, str]:
        return {NodeId(worker_name(0, s)): name for s, name in enumerate(names)}

    assert zones_that_matter(plan, zones("a", "b", "c")) == ()
    assert zones_that_matter(plan, zones("a", "a", "b")) == ("a",)
    assert zones_that_matter(plan, zones("a", "a", "a")) == ("a",)
