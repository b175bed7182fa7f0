"""The ledger of a run, tampered with in every way that matters."""

from dataclasses import replace
from typing import Any

import pytest
from bamboo_trainer.plan import PlanKind

from bamboo_cli.coordinator.status import RunLedger
from bamboo_cli.verification.ledger import check_ledger
from tests.verification.recorded import SAMPLES, ledger, plan, restore, restored, row


def texts(of: RunLedger) -> list[str]:
    return [f"{problem.step}: {problem.text}" for problem in check_ledger(of).problems]


def with_row(step: int, **changes: Any) -> RunLedger:
    return ledger(steps=tuple(replace(r, **changes) if r.step == step else r for r in ledger().steps))


@pytest.mark.parametrize("of", [ledger(), restored()], ids=["undisturbed", "restored"])
def test_a_ledger_as_the_coordinator_left_it_is_right(of: RunLedger) -> None:
    check = check_ledger(of)

    assert (check.problems, check.unrecorded) == ((), ())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"loss": 1.5}, "its loss 1.5 is not the mean of its microbatches' losses"),
        ({"gradient_norm": 2.0}, "its gradient norm 2.0 is not the root of its square norms' sum"),
        ({"square_norms": (0.25, 8.0)}, "is not the root of its square norms' sum"),
        ({"losses": (1.0, 2.0)}, "its row has the losses of 2 microbatches; a step has 4"),
        ({"square_norms": (4.25,)}, "its row has 1 square norms, the others have 2"),
        ({"num_samples": SAMPLES - 2}, "its row says 6 samples; a step has 8"),
        ({"first_sample": 16}, "its row begins at sample 16; the step's first is 24"),
        ({"loss": float("nan")}, "loss nan, gradient norm 2.0615528128088303: no such step is ever committed"),
        ({"generation": 9}, "it is recorded under plan 9, which this run never had"),
    ],
)
def test_a_tampered_row_is_named_with_what_is_wrong(changes: dict[str, Any], text: str) -> None:
    found = texts(with_row(3, **changes))

    assert any(line.startswith("3: ") and text in line for line in found), found
    assert all(line.startswith("3: ") for line in found)


def test_a_missing_row_is_an_unrecorded_step() -> None:
    check = check_ledger(ledger(steps=tuple(r for r in ledger().steps if r.step not in (2, 5))))

    assert (check.problems, check.unrecorded) == ((), (2, 5))


def test_a_row_from_before_a_restore_does_not_count_as_the_steps_second_time() -> None:
    rows = (row(0), row(1), row(2), row(3, 2), row(4, 2), row(5, 2))

    check = check_ledger(restored(steps=rows))

    assert (check.problems, check.unrecorded) == ((), (2,))


def test_generations_that_go_back_without_a_recorded_restore_are_a_problem() -> None:
    rows = (row(0), row(1), row(2), row(3, 2), row(4, 2), row(5, 2))

    (text,) = texts(restored(steps=rows, story=(), restores=0, steps_rerun=0))

    assert text == (
        "2: it is recorded under plan 1, but plan 2 began at step 2, and no restore is recorded that went back there"
    )


def test_a_row_under_a_plan_that_began_later_is_a_problem() -> None:
    (text,) = texts(restored(steps=(row(0), row(1, 2), *restored().steps[2:])))

    assert text == "1: it is recorded under plan 2, which had nothing to do with it"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"steps_rerun": 3}, "1 restores and 3 steps run again are counted, but the story tells of 1 and 2"),
        ({"restores": 2}, "2 restores and 2 steps run again are counted, but the story tells of 1 and 2"),
        ({"story": (restore(2, 3, 2),)}, "the story tells of a restore to step 3, but no plan began there"),
        ({"num_samples": 40}, "40 samples are counted; 6 steps have 48"),
        ({"committed_steps": 5, "num_samples": 40}, "the run is done with 5 of 6 steps"),
    ],
)
def test_counts_that_do_not_fit_the_story_are_a_problem(changes: dict[str, Any], text: str) -> None:
    assert any(text in line for line in texts(restored(**changes)))


def test_rows_beyond_the_committed_steps_need_a_restore_that_undid_them() -> None:
    stopped = {"state": "stopped", "committed_steps": 2, "num_samples": 2 * SAMPLES}

    undone = check_ledger(restored(**stopped, steps=tuple(row(step) for step in range(4))))
    made_up = texts(ledger(**stopped, steps=tuple(row(step) for step in range(4))))

    assert (undone.problems, undone.unrecorded) == ((), ())
    assert made_up == ["2: only 2 steps are committed, but there are rows of steps 2, 3"]


def test_rows_of_an_older_bamboo_are_checked_as_far_as_they_go() -> None:
    bare = {"losses": None, "square_norms": None, "first_sample": None}
    old = tuple(replace(r, **bare) for r in ledger().steps)

    assert texts(ledger(steps=old)) == []
    assert len(texts(ledger(steps=(replace(old[0], num_samples=1), *old[1:])))) == 1


def test_a_failover_plan_counts_as_the_boundary_plan_that_it_descends_from() -> None:
    plans = (plan(1, 0), replace(plan(2, 0), kind=PlanKind.FAILOVER), plan(3, 4))
    generations = (1, 1, 2, 2, 3, 3)

    assert texts(ledger(plans=plans, steps=tuple(row(s, g) for s, g in enumerate(generations)))) == []


def test_a_run_that_goes_on_from_a_checkpoint_has_its_own_steps_only() -> None:
    """Given one that began at step 2, then the two steps before it are neither counted nor missed."""
    resumed = {"begins_at_step": 2, "plans": (plan(1, 2),), "steps": tuple(row(step) for step in range(2, 6))}

    assert check_ledger(ledger(**resumed, num_samples=32)).unrecorded == ()
    assert texts(ledger(**resumed, num_samples=32)) == []
    assert texts(ledger(**resumed, num_samples=48)) == ["None: 48 samples are counted; 4 steps have 32"]
