"""The dry run draws what the executor runs: bubbles, memory, deadlocks and the grid."""

from itertools import chain, pairwise

import pytest
from bamboo_trainer import dryrun
from bamboo_trainer.arrangement import build_pipelines
from bamboo_trainer.dryrun import DeadlockError, Durations, dry_run
from bamboo_trainer.grid import grid
from bamboo_trainer.plan import Member, Mode, NodeId, Plan, PlanKind, WorkerId
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.routes import Routes
from bamboo_trainer.schedule import Action, Kind
from bamboo_trainer.step import StepState


def make_plan(*, stages: int, microbatches: int, pipelines: int = 1, mode: Mode = Mode.BUBBLE) -> Plan:
    workers = [[WorkerId(f"n{d * stages + s + 1}/1") for s in range(stages)] for d in range(pipelines)]
    cut = [range(s, s + 1) for s in range(stages)]
    return Plan(
        generation=1,
        kind=PlanKind.BOUNDARY,
        first_step=0,
        pipelines=build_pipelines(workers, [cut] * pipelines, microbatches, mode, 1),
        members=tuple(
            Member(worker_id=w, node_id=NodeId(w.split("/")[0]), address="127.0.0.1", port=1) for w in chain(*workers)
        ),
    )


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (4, 6), (4, 2), (8, 32)])
def test_even_stages_have_the_bubble_share_of_the_textbook(stages: int, microbatches: int) -> None:
    """PipeDream-Flush: (P − 1) / (M + P − 1) of the time, and at most P − s microbatches alive at stage s."""
    result = dry_run(make_plan(stages=stages, microbatches=microbatches, mode=Mode.OFF), Durations.even(stages))

    assert result.bubble_share == pytest.approx((stages - 1) / (microbatches + stages - 1))
    assert list(result.peak_activations.values()) == [min(stages - s, microbatches) for s in range(stages)]


def test_redundant_forwards_fill_bubbles_and_cost_no_time() -> None:
    plain = dry_run(make_plan(stages=4, microbatches=6, mode=Mode.OFF), Durations.even(4))
    bubble = dry_run(make_plan(stages=4, microbatches=6, mode=Mode.BUBBLE), Durations.even(4))
    eager = dry_run(make_plan(stages=4, microbatches=6, mode=Mode.EAGER), Durations.even(4))

    assert bubble.makespan == plain.makespan
    assert bubble.bubble_share == plain.bubble_share
    assert bubble.idle_share < plain.idle_share
    assert 0 < bubble.num_redundant < bubble.wanted_redundant == 24
    assert eager.num_redundant == 24


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("mode", [Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL])
def test_after_a_failover_one_worker_runs_two_stages_and_the_step_still_ends(victim: int, mode: Mode) -> None:
    plan = make_plan(stages=3, microbatches=4, pipelines=2, mode=mode)
    lost = plan.stage(1, victim).host
    promoted = fail_over(plan, {lost}, generation=2)
    assert promoted is not None

    result = dry_run(promoted, Durations.even(3))

    done = [slot.action for slot in result.slots if not slot.redundant]
    assert len(done) == len(set(done)) == 2 * 3 * 4  # forward and backward, stages, microbatches over both pipelines
    assert lost not in result.workers


@pytest.mark.parametrize("mode", [Mode.LAZY, Mode.BUBBLE, Mode.EAGER])
@pytest.mark.parametrize("loss", ["0F0", "1B2", "2B4", "1F6", "3B0", "3B7"])
def test_a_loss_in_mid_step_costs_what_the_shadow_computes_again(mode: Mode, loss: str) -> None:
    """All of the stage's backwards, once more, and one action at most that is in the way."""
    plan, durations = make_plan(stages=4, microbatches=8, mode=mode), Durations.even(4)
    stage = Action.parse(loss).stage_index

    plain, disturbed = dry_run(plan, durations), dry_run(plan, durations, Action.parse(loss))

    shadow = plan.stage(0, stage).shadows[0]
    redone = [s.action for s in disturbed.slots if s.worker_id == shadow and s.action.stage_index == stage]
    assert {a.microbatch for a in redone if a.kind is Kind.BACKWARD} == set(range(8))
    assert plain.makespan < disturbed.makespan <= plain.makespan + 8 * 3 + 3
    assert disturbed.makespan >= 8 * 3 + 8 * 2


def test_forwards_at_hand_make_a_takeover_shorter() -> None:
    loss = Action.parse("1B6")
    took = {
        mode: dry_run(make_plan(stages=4, microbatches=8, mode=mode), Durations.even(4), loss).makespan
        for mode in (Mode.LAZY, Mode.EAGER)
    }
    assert took[Mode.EAGER] < took[Mode.LAZY]


@pytest.mark.parametrize("mode", [Mode.LAZY, Mode.BUBBLE])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_help_of_the_other_pipeline_saves_a_quarter_of_what_a_loss_costs(mode: Mode, stage: int) -> None:
    """On average over losses before each of the victim's actions; docs/step.md has the figures."""
    plan, durations = make_plan(stages=4, microbatches=16, pipelines=2, mode=mode), Durations.even(4)
    plain = dry_run(plan, durations)
    victim = plan.stage(0, stage).host
    losses = [s.action for s in plain.slots if s.worker_id == victim and not s.redundant]

    alone, helped = (
        sum(dry_run(plan, durations, loss, helped=helped).makespan - plain.makespan for loss in losses)
        for helped in (False, True)
    )

    assert helped < 0.75 * alone


@pytest.mark.parametrize(("stages", "microbatches", "share"), [(4, 8, 0.57), (4, 16, 0.75)])
def test_a_loss_costs_a_good_half_of_a_step_on_average(stages: int, microbatches: int, share: float) -> None:
    """Though nearly all backwards of the victim are made up by one worker: the later stages do not wait for it."""
    plan = make_plan(stages=stages, microbatches=microbatches, mode=Mode.BUBBLE)
    plain = dry_run(plan, Durations.even(stages))
    losses = [s.action for s in plain.slots if not s.redundant]

    took = [dry_run(plan, Durations.even(stages), loss).makespan - plain.makespan for loss in losses]

    assert sum(took) / len(took) <= share * plain.makespan


def test_what_later_stages_wait_for_is_done_before_what_has_to_be_made_up() -> None:
    """Given the loss of stage 1 when stage 0 has sent all it may, then its host's forwards are not behind backwards."""
    plan = make_plan(stages=4, microbatches=8, mode=Mode.BUBBLE)

    run = dry_run(plan, Durations.even(4), Action.parse("1F6"))

    own = [s for s in run.slots if s.worker_id == plan.stage(0, 0).host and not s.redundant]
    made_up = own[[s.action for s in own].index(Action.parse("1B0")) :]
    assert all(a.end == b.start for a, b in pairwise(made_up)), "it never waits"


def test_a_stage_is_taken_over_in_the_step_of_the_loss_alone() -> None:
    """Given a failover plan that stays in force, then nothing has to be made up in the steps that begin under it."""
    plan = make_plan(stages=3, microbatches=4)
    lost, host = plan.stage(0, 1).host, plan.stage(0, 0).host
    promoted = fail_over(plan, {lost}, 2)
    assert promoted is not None
    during, after = StepState(0), StepState(1)

    during.place(plan, Routes(plan, ()), host)
    during.place(promoted, Routes(promoted, ()), host)
    after.place(promoted, Routes(promoted, ()), host)

    assert [hosted.taken_over for hosted in during.hosted] == [False, True]
    assert [hosted.taken_over for hosted in after.hosted] == [False, False]


def test_a_loss_that_cannot_be_survived_or_never_comes_is_told() -> None:
    with pytest.raises(ValueError, match="lost with n2/1"):
        dry_run(make_plan(stages=2, microbatches=2, mode=Mode.OFF), Durations.even(2), Action.parse("1F1"))
    with pytest.raises(ValueError, match="no worker begins 1F9"):
        dry_run(make_plan(stages=2, microbatches=2), Durations.even(2), Action.parse("1F9"))


def test_a_schedule_that_cannot_end_is_told_with_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a schedule that never runs the last stage, when dry-run, then the waiting stage is named."""
    honest = dryrun.next_action

    def never_stage_1(hosted, shadowed, has):  # type: ignore[no-untyped-def]
        return honest([h for h in hosted if h.stage.stage_index != 1], shadowed, has)

    monkeypatch.setattr(dryrun, "next_action", never_stage_1)

    with pytest.raises(DeadlockError, match=r"n2/1 at stage 1 of pipeline 0: next forward 0"):
        dry_run(make_plan(stages=2, microbatches=2), Durations.even(2))


def test_the_grid_shows_one_column_per_unit_of_time() -> None:
    plan = make_plan(stages=2, microbatches=2)

    drawn = grid(dry_run(plan, Durations.even(2)))

    assert drawn == {
        WorkerId("n1/1"): "F0 F1 f0 f1 B0─── ·  B1───",
        WorkerId("n2/1"): "f0 F0 B0─── F1 B1─── ·  ·",
    }


def test_uneven_stages_are_drawn_to_scale() -> None:
    result = dry_run(
        make_plan(stages=2, microbatches=1, mode=Mode.OFF), Durations(forward=[2.0, 4.0], backward=[4.0, 8.0])
    )

    assert result.makespan == 18.0
    assert grid(result, unit=2.0) == {
        WorkerId("n1/1"): "F0 ·  ·  ·  ·  ·  ·  B0───",
        WorkerId("n2/1"): "·  F0─── B0───────── ·  ·",
    }
