"""Who helps whom after a failover, with how much."""

from dataclasses import replace

import pytest
from bamboo_trainer.arrangement import arrangement_of
from bamboo_trainer.helping import MAX_APART, with_help
from bamboo_trainer.memory import help_that_fits, memory_of
from bamboo_trainer.plan import Mode, Part, Plan, RedundancyMemory, WorkerId
from bamboo_trainer.plan_rules import check_plan
from bamboo_trainer.redundancy import fail_over

from tests.trainer.test_planner import layer
from tests.trainer.world import grid_plan, worker_name


def after_loss(plan: Plan, *lost: WorkerId) -> Plan:
    after = fail_over(plan, lost, plan.generation + 1)
    assert after is not None
    helped = with_help(after, plan)
    check_plan(helped)
    return helped


def parts(plan: Plan, d: int, s: int) -> list[tuple[str, range]]:
    return [(part.host, part.microbatches) for part in plan.parts_of(plan.stage(d, s))]


def test_the_shadow_does_the_first_half_and_a_worker_of_the_other_pipeline_the_rest() -> None:
    plan = grid_plan(2, 4, 16, 1, Mode.BUBBLE)
    after = after_loss(plan, worker_name(0, 2))
    # of those that hold the layer there, the one whose own stage is done first
    assert parts(after, 0, 2) == [("w0.1", range(4)), ("w1.2", range(4, 8))]
    assert after.stage(0, 2).host == "w0.1"
    assert after.reason == "lost w0.2: w0.1 hosts stage 2 of pipeline 0; w1.2 does 4 of its 8 microbatches"
    assert all(not stage.parts for stage in after.stages() if stage.place != (0, 2))


def test_of_a_first_stage_its_shadow_elsewhere_helps_since_it_is_done_before_the_host_is() -> None:
    after = after_loss(grid_plan(2, 4, 16, 1, Mode.BUBBLE), worker_name(1, 0))
    assert parts(after, 1, 0) == [("w1.3", range(8, 12)), ("w0.3", range(12, 16))]


@pytest.mark.parametrize("mode", [Mode.BUBBLE, Mode.REROUTE])
def test_with_three_pipelines_each_other_one_helps(mode: Mode) -> None:
    after = after_loss(grid_plan(3, 2, 18, 1, mode), worker_name(0, 1))
    found = parts(after, 0, 1)
    assert [microbatches for _, microbatches in found] == (
        [range(2), range(2, 4), range(4, 6)] if mode is Mode.BUBBLE else [range(3), range(3, 6)]
    )
    assert len({host for host, _ in found}) == len(found)


@pytest.mark.parametrize(
    ("plan", "lost"),
    [
        (grid_plan(1, 3, 8, 1, Mode.BUBBLE), "w0.1"),
        (grid_plan(2, 3, 2, 1, Mode.BUBBLE), "w0.1"),
        (grid_plan(2, 3, 8, 1, Mode.REROUTE), "w0.1"),
        (grid_plan(2, 3, 8, 1, Mode.FULL), "w0.1"),
    ],
    ids=["a lone pipeline", "a single microbatch", "the other pipeline has it already", "full"],
)
def test_where_help_gains_nothing_the_plan_is_as_without(plan: Plan, lost: str) -> None:
    after = fail_over(plan, [WorkerId(lost)], 2)
    assert after is not None and with_help(after, plan) == after


def test_nobody_helps_who_is_as_busy_as_the_shadow() -> None:
    plan = grid_plan(2, 3, 12, 1, Mode.BUBBLE)
    # w1.1 is lost: w1.0 runs two stages, and w0.1 helps it
    first = after_loss(plan, worker_name(1, 1))
    assert parts(first, 1, 1) == [("w1.0", range(6, 9)), ("w0.1", range(9, 12))]
    assert first.load() == {"w0.0": 6, "w0.1": 9, "w0.2": 6, "w1.0": 9, "w1.2": 6}
    # then w0.2, whose shadow is w0.1: there is one who holds its layer and has less to do
    second = after_loss(first, worker_name(0, 2))
    assert parts(second, 0, 2) == [("w0.1", range(3)), ("w1.2", range(3, 6))]
    # and w1.2, whose shadow was w1.1: all who hold its layer have as much to do as who takes it over
    third = after_loss(second, worker_name(1, 2))
    assert {place: parts(third, *place) for place in ((0, 2), (1, 2))} == {
        (0, 2): [("w0.1", range(6))],
        (1, 2): [("w0.1", range(6, 12))],
    }


def test_a_helper_does_no_more_than_it_has_memory_for() -> None:
    plan = grid_plan(2, 2, 80, 1, Mode.LAZY)
    after = fail_over(plan, [worker_name(0, 1)], 2)
    assert after is not None
    assert len(with_help(after, plan).stage(0, 1).parts[1].microbatches) == MAX_APART
    assert len(with_help(after, plan, lambda w, s: 3).stage(0, 1).parts[1].microbatches) == 3
    assert with_help(after, plan, lambda w, s: 0) == after


def test_memory_for_help_is_counted_in_gradients_kept_apart() -> None:
    layers = tuple(layer(i, parameter_bytes=1000, kept_bytes=7) for i in range(2))
    arrangement = arrangement_of(grid_plan(2, 2, 8, 1, Mode.LAZY))
    usual = memory_of(arrangement, layers, 1, 1).usual
    in_flight, whole, each = 7, 1000, 1000 + 2 * 10

    def fits(limit: int) -> int:
        return help_that_fits(arrangement, layers, (1, 1), (0, 1), RedundancyMemory.DEVICE, limit)

    assert fits(usual + in_flight + whole + 3 * each) == 3
    assert fits(usual + in_flight + whole + 3 * each - 1) == 2
    assert fits(usual) == 0


def test_the_part_of_a_lost_helper_goes_to_whom_it_would_be_added_to() -> None:
    first = after_loss(grid_plan(3, 2, 27, 1, Mode.BUBBLE), worker_name(0, 1))
    (shadow, _), (second, _), (third, _) = parts(first, 0, 1)
    assert parts(after_loss(first, WorkerId(third)), 0, 1) == [(shadow, range(3)), (second, range(3, 9))]
    assert parts(after_loss(first, WorkerId(second)), 0, 1) == [(shadow, range(6)), (third, range(6, 9))]
    assert parts(after_loss(first, WorkerId(second), WorkerId(third)), 0, 1) == [(shadow, range(9))]
    # the first part goes to a successor, which may have another one beside it
    taken = parts(after_loss(first, WorkerId(shadow)), 0, 1)
    assert [microbatches for _, microbatches in taken] == [range(3), range(3, 6), range(6, 9)]
    assert taken[1:] == [(second, range(3, 6)), (third, range(6, 9))]


@pytest.mark.parametrize(
    "wrong",
    [((0, 2, "w0.0"), (3, 4, "w1.0")), ((0, 4, "w1.0"),), ((0, 2, "w0.0"), (2, 4, "w9.9"))],
    ids=["a gap", "another host", "a stranger"],
)
def test_a_plan_with_wrong_parts_is_refused(wrong: tuple[tuple[int, int, str], ...]) -> None:
    plan = grid_plan(2, 1, 8, 1, Mode.REROUTE)

    made = tuple(Part(first_microbatch=a, end_microbatch=b, host=WorkerId(w)) for a, b, w in wrong)
    first = replace(plan.pipelines[0], stages=(replace(plan.stage(0, 0), parts=made),))
    with pytest.raises(ValueError, match=r"plan 1: "):
        check_plan(replace(plan, pipelines=(first, *plan.pipelines[1:])))
