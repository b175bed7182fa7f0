"""Recorded against computed again: where they differ, which steps are chosen, what proves a step without a row."""

import math
import re
from dataclasses import replace

import pytest
from bamboo_trainer.plan import PlanKind, StepSummary
from bamboo_trainer.replay_order import Segment

from bamboo_cli.coordinator.status import RunLedger, StepRow
from bamboo_cli.errors import UsageError
from bamboo_cli.verification.certificate import prove_unrecorded
from bamboo_cli.verification.comparison import NO_ROW, compare_step
from bamboo_cli.verification.findings import LayersVerdict, StepVerdict, Verdict
from bamboo_cli.verification.stretch import FEW_STEPS, Stretch, choose_stretch, segments_of
from tests.verification.recorded import ledger, plan, row

UNITS = ("input", "block.0 and output")


def summary_of(of: StepRow) -> StepSummary:
    assert of.losses is not None and of.square_norms is not None
    return StepSummary(step=of.step, losses=of.losses, square_norms=of.square_norms)


def compared(recorded: StepRow | None, computed: StepSummary) -> tuple[Verdict, str]:
    found = compare_step(recorded, computed, UNITS, 2)
    return found.verdict, found.detail


def test_equal_bits_are_equal() -> None:
    assert compared(row(3), summary_of(row(3))) == (Verdict.EQUAL, "")


def test_the_last_bit_of_one_loss_is_a_difference_and_is_named() -> None:
    losses = row(3).losses
    assert losses is not None
    other = math.nextafter(losses[2], 9.0)

    verdict, detail = compared(replace(row(3), losses=(*losses[:2], other, losses[3])), summary_of(row(3)))

    assert verdict is Verdict.DIFFERS
    assert detail == f"loss of microbatch 2: {other!r} in the ledger, {losses[2]!r} computed again"


def test_minus_zero_is_not_zero() -> None:
    recorded = replace(row(0), square_norms=(0.0, 1.0))

    verdict, detail = compared(recorded, replace(summary_of(row(0)), square_norms=(-0.0, 1.0)))

    assert verdict is Verdict.DIFFERS
    assert detail.startswith("gradient of input (its square norm): 0.0 in the ledger, -0.0 computed again")


def test_the_other_differences_are_counted() -> None:
    verdict, detail = compared(row(3), replace(summary_of(row(4)), step=3))

    assert verdict is Verdict.DIFFERS
    assert detail.endswith("; 4 of 5 other values differ")


def test_a_value_that_one_side_lacks_is_a_difference() -> None:
    verdict, detail = compared(replace(row(3), square_norms=(0.25,)), summary_of(row(3)))

    assert (verdict, detail) == (
        Verdict.DIFFERS,
        "gradient of block.0 and output (its square norm): nan in the ledger, 4.0 computed again",
    )


def test_a_row_of_an_older_bamboo_cannot_prove_bits_but_can_disprove_them() -> None:
    old = replace(row(3), losses=None, square_norms=None)

    assert compared(old, summary_of(row(3)))[0] is Verdict.UNCHECKED
    assert compared(replace(old, loss=9.0), summary_of(row(3)))[0] is Verdict.DIFFERS


def verdict(step: int, verdict: Verdict, detail: str = "") -> StepVerdict:
    return StepVerdict(step=step, num_pipelines=1, verdict=verdict, detail=detail)


def test_a_step_without_a_row_is_proved_by_an_equal_step_or_layers_after_it() -> None:
    bare = [verdict(0, Verdict.EQUAL), verdict(1, Verdict.UNCHECKED, NO_ROW)]
    layers = LayersVerdict(step=1, what="final weights", verdict=Verdict.EQUAL)

    def proved(steps: list[StepVerdict], layers: list[LayersVerdict]) -> Verdict:
        return prove_unrecorded(steps, layers)[1].verdict

    assert proved([*bare, verdict(2, Verdict.EQUAL)], []) is Verdict.EQUAL
    assert proved(bare, [layers]) is Verdict.EQUAL
    assert proved([*bare, verdict(2, Verdict.DIFFERS)], []) is Verdict.UNCHECKED
    assert proved(bare, []) is Verdict.UNCHECKED


# --- which steps ---


def long(step_s: float = 100.0, committed: int = 200) -> RunLedger:
    rows = tuple(replace(row(step), step_s=step_s) for step in range(committed))
    return ledger(steps=rows, committed_steps=committed)


def test_a_small_run_is_computed_again_as_a_whole() -> None:
    chosen = choose_stretch(ledger(), (1, 3), None, whole=False)

    assert (chosen.first_step, chosen.end_step) == (0, 6)
    assert chosen.reason.startswith("all steps, from the seed: it takes about")


def test_of_a_long_run_a_few_steps_after_the_oldest_checkpoint_are() -> None:
    chosen = choose_stretch(long(), (149, 199), None, whole=False)

    assert (chosen.first_step, chosen.end_step) == (150, 150 + FEW_STEPS)
    assert "the 10 steps after the oldest checkpoint that is left" in chosen.reason


def test_a_checkpoint_or_an_end_that_is_near_is_reached_since_layers_are_compared_there() -> None:
    to_checkpoint = choose_stretch(long(), (129, 149, 199), None, whole=False)
    to_end = choose_stretch(long(), (179, 199), None, whole=False)

    assert (to_checkpoint.first_step, to_checkpoint.end_step) == (130, 150)
    assert (to_end.first_step, to_end.end_step) == (180, 200)


def test_without_a_checkpoint_before_the_end_the_first_steps_are() -> None:
    chosen = choose_stretch(long(), (199,), None, whole=False)

    assert (chosen.first_step, chosen.end_step) == (0, FEW_STEPS)
    assert choose_stretch(long(), (199,), None, whole=True).end_step == 200


def disturbed(*steps: int) -> RunLedger:
    """A long run with a loss in each of these steps."""
    undisturbed = long()
    generations = {step: number for number, step in enumerate(steps, start=2)}
    failovers = (replace(plan(g, 0), kind=PlanKind.FAILOVER) for g in generations.values())
    rows = tuple(replace(row, generation=generations.get(row.step, row.generation)) for row in undisturbed.steps)
    return replace(undisturbed, steps=rows, plans=(*undisturbed.plans, *failovers))


@pytest.mark.parametrize(
    ("losses", "intact", "steps", "told"),
    [
        ((153,), (129, 149, 179), (150, 155), "steps 150 to 154: in step 153 a stage was taken over; --all"),
        ((153, 183), (129, 149, 179), (180, 185), "not the takeover in step 153: --steps 153:154"),
        ((5,), (), (0, 7), "in step 5"),
        ((199,), (190,), (191, 200), "in step 199"),
        ((120,), (149, 199), (150, 160), "oldest checkpoint that is left.*; not the takeover in step 120"),
        ((150, 190), (149,), (150, 152), "in step 150.*; not the takeover in step 190"),
    ],
    ids=[
        "near a checkpoint",
        "the newest",
        "near the seed",
        "the last step",
        "out of reach",
        "the newest within reach",
    ],
)
def test_a_takeover_within_reach_is_computed_again(
    losses: tuple[int, ...], intact: tuple[int, ...], steps: tuple[int, int], told: str
) -> None:
    chosen = choose_stretch(disturbed(*losses), intact, None, whole=False)

    assert (chosen.first_step, chosen.end_step) == steps
    assert re.search(told, chosen.reason)


def test_steps_that_are_asked_for_begin_at_the_checkpoint_before_them() -> None:
    from_checkpoint = choose_stretch(ledger(), (1, 3), (3, 5), whole=False)
    from_seed = choose_stretch(ledger(), (), (3, 5), whole=False)

    assert (from_checkpoint.first_step, from_checkpoint.end_step) == (2, 5)
    assert (from_seed.first_step, from_seed.end_step) == (0, 5)


@pytest.mark.parametrize("asked", [(4, 7), (3, 3), (9, 10)])
def test_steps_that_are_not_committed_are_refused(asked: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="steps 0 to 5 are committed"):
        choose_stretch(ledger(), (), asked, whole=False)


def test_a_stretch_is_cut_where_the_number_of_pipelines_changes() -> None:
    rows = tuple(row(step, 1 if step < 4 else 2) for step in range(6))
    of = ledger(steps=rows, plans=(plan(1, 0), plan(2, 4, num_pipelines=1)))

    assert segments_of(of, Stretch(first_step=2, end_step=6, reason="")) == (
        Segment(first_step=2, end_step=4, microbatches=((0, 2), (2, 4))),
        Segment(first_step=4, end_step=6, microbatches=((0, 4),)),
    )
