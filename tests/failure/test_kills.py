"""Machines that vanish without a word, at every kind of instant of a step: no step is run twice, the weights are the
same. Several losses to a run; standbys are at hand, so that each loss meets a whole plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.cluster import WITHOUT_REPLACEMENT, Bamboo

RUNS = {
    "before the sums": {
        "warm-up": ("0F1", "1F1", "2F0"),
        "steady state": ("0B0", "1B1", "2B1"),
        "cool-down": ("0B3", "1B3", "2B3"),
    },
    "around the sums": {
        "gradient reduce": ("REDUCE",) * 3,
        "commit": ("COMMIT",) * 3,
        "optimizer step": ("OPTIMIZER",) * 3,
    },
    "in the checkpoint": {"checkpoint write": ("CHECKPOINT",) * 3},
}
"""Where the first, the middle and the last stage are struck."""
LONG = {"steps": 40}
STEPS = range(3, 40, 4)
"""A loss every four steps. Checkpoints are written after steps 3, 7, 11, …"""


@pytest.mark.parametrize("instants", RUNS.values(), ids=RUNS)
def test_each_stage_is_killed_and_no_step_is_run_twice(
    instants: Mapping[str, Sequence[str]], bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    places = [(stage, action) for actions in instants.values() for stage, action in enumerate(actions)]
    kills = [
        {"step": step, "stage": stage, "action": action} for step, (stage, action) in zip(STEPS, places, strict=False)
    ]

    summary = bamboo.run(drill=kills, nodes=3 + len(kills), local=WITHOUT_REPLACEMENT, **LONG)

    assert_nothing_was_lost(bamboo, summary, num_losses=len(kills))
    assert summary["weights_sha256"] == undisturbed(**LONG)


def test_two_pipelines_lose_a_node_of_each_stage(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    shape = {"pipelines": 2, "stages": 2}
    kills = [
        {"step": 3, "pipeline": 0, "stage": 0, "action": "0F1"},
        {"step": 9, "pipeline": 1, "stage": 1, "action": "REDUCE"},
        {"step": 15, "pipeline": 1, "stage": 0, "action": "OPTIMIZER"},
    ]

    summary = bamboo.run(drill=kills, nodes=7, local=WITHOUT_REPLACEMENT, **shape)

    assert_nothing_was_lost(bamboo, summary, num_losses=3)
    assert summary["weights_sha256"] == undisturbed(**shape)


def test_the_other_pipeline_helps_and_its_helper_is_lost_as_well(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    shape = {"pipelines": 2, "stages": 2, "microbatch_size": 2}
    kills = [
        {"step": 3, "pipeline": 0, "stage": 1, "action": "1B2"},
        {"step": 9, "pipeline": 0, "stage": 1, "action": "1B1"},
        {"step": 9, "pipeline": 0, "stage": 1, "action": "1B3"},
        {"step": 15, "pipeline": 1, "stage": 0, "action": "0F6"},
    ]

    summary = bamboo.run(drill=kills, nodes=8, local=WITHOUT_REPLACEMENT, **shape)

    assert_nothing_was_lost(bamboo, summary, num_losses=4)
    assert summary["weights_sha256"] == undisturbed(**shape)
    told = [event.text for event in bamboo.events() if " of its 4 microbatches" in event.text]
    assert len(told) >= 3, bamboo.story()
    assert all("hosts stage" in text and " does 2 of" in text for text in told)


def test_gpt2_loses_the_node_with_the_tied_embedding(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    model = {
        "recipe": "gpt2",
        "recipe_options": {"size": "tiny", "context": 32},
        "steps": 8,
        "stages": 2,
        "checkpoint": {"every": 3},
    }

    summary = bamboo.run(drill=[{"step": 3, "stage": 0, "action": "0B1"}], **model)

    assert_nothing_was_lost(bamboo, summary, num_losses=1)
    assert summary["weights_sha256"] == undisturbed(**model)


def assert_nothing_was_lost(bamboo: Bamboo, summary: dict[str, Any], *, num_losses: int) -> None:
    counts = {key: summary[key] for key in ("failovers", "preemptions", "restores", "steps_rerun")}
    expected = {"failovers": num_losses, "preemptions": num_losses, "restores": 0, "steps_rerun": 0}
    assert counts == expected, bamboo.story()
