"""Losses that leave a layer without a holder: back to the checkpoint, and on to the same weights."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import WITHOUT_REPLACEMENT, Bamboo

STEP = 10
CHECKPOINTS = (3, 7)
"""Those of the job that may be whole by then."""
FATAL: dict[str, list[dict[str, Any]]] = {
    "two neighbours at once": [
        {"step": STEP, "stage": 1, "action": "1B0"},
        {"step": STEP, "stage": 2, "action": "2B1"},
    ],
    "the shadow while it takes over": [
        {"step": STEP, "stage": 2, "action": "2B0"},
        {"step": STEP, "stage": 2, "action": "TAKEOVER"},
    ],
}


@pytest.mark.parametrize("drill", FATAL.values(), ids=FATAL)
def test_a_stage_without_a_holder_is_restored_from_the_checkpoint(
    drill: list[dict[str, Any]], bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    summary = bamboo.run(drill=drill, nodes=5, local=WITHOUT_REPLACEMENT)

    assert (summary["restores"], summary["preemptions"]) == (1, 2), bamboo.story()
    assert summary["steps_rerun"] in {STEP - 1 - step for step in CHECKPOINTS}
    (restored,) = bamboo.events("restore")
    assert restored.numbers["steps_rerun"] == summary["steps_rerun"]
    assert summary["weights_sha256"] == undisturbed()


def test_at_level_2_two_neighbours_lost_at_once_cost_no_step(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    summary = bamboo.run(drill=FATAL["two neighbours at once"], nodes=5, local=WITHOUT_REPLACEMENT, redundancy_level=2)

    assert (summary["restores"], summary["preemptions"], summary["steps_rerun"]) == (0, 2, 0), bamboo.story()
    assert summary["weights_sha256"] == undisturbed()


def test_a_whole_pipeline_lost_is_taken_over_by_the_other_within_the_step(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    # given no standbys, with which it would be cheaper to run the step again
    shape = {"pipelines": 2, "stages": 2, "redundancy": "reroute"}
    drill = [{"step": STEP, "pipeline": 0, "stage": s, "action": f"{s}B1"} for s in (0, 1)]

    summary = bamboo.run(drill=drill, local=WITHOUT_REPLACEMENT, **shape)

    assert (summary["restores"], summary["preemptions"], summary["steps_rerun"]) == (0, 2, 0), bamboo.story()
    assert summary["failovers"] in (1, 2)
    assert summary["weights_sha256"] == undisturbed(**shape)


@pytest.mark.soak
def test_with_a_mirror_the_step_is_run_again_and_none_is_lost(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    drill = [{"step": STEP, "stage": 1, "action": "1B0"}]

    summary = bamboo.run(drill=drill, nodes=4, local=WITHOUT_REPLACEMENT, redundancy="mirror")

    counts = {key: summary[key] for key in ("failovers", "preemptions", "restores", "steps_rerun")}
    assert counts == {"failovers": 0, "preemptions": 1, "restores": 0, "steps_rerun": 0}, bamboo.story()
    assert summary["weights_sha256"] == undisturbed()


def test_without_a_replacement_the_layers_are_cut_anew_over_those_left(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    summary = bamboo.run(drill=[{"step": 5, "stage": 1, "action": "1B1"}], local=WITHOUT_REPLACEMENT)

    assert (summary["failovers"], summary["restores"], summary["steps_rerun"]) == (1, 0, 0)
    plans = bamboo.plans()
    assert [len(plans[index].pipelines[0].stages) for index in (0, -1)] == [3, 2]
    assert summary["weights_sha256"] == undisturbed()
