"""Losses at random instants, on demand (``make soak``): no hang, no committed step lost, one digest."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import JOB, Bamboo

NUM_STAGES = 3
NUM_MICROBATCHES = 4
FIRST_STEP = 1
GAP = range(1, 6)
"""Steps between two losses: with the smallest, the second may meet a plan that is still short of a shadow."""
PLACES = ("REDUCE", "COMMIT", "OPTIMIZER", "CHECKPOINT")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
def test_losses_at_random_instants_end_with_the_same_weights(
    seed: int, bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    kills = _kills(random.Random(seed))

    summary = bamboo.run(drill=kills)

    told = f"{kills}\n{bamboo.story()}"
    assert summary["weights_sha256"] == undisturbed(), told
    assert summary["steps"] == JOB["steps"]
    # the newest checkpoint may be that of the last committed step: then a restore runs none again
    assert summary["restores"] > 0 or summary["steps_rerun"] == 0, told


def _kills(chosen: random.Random) -> list[dict[str, Any]]:
    """Up to five, each of a stage (while there is one of that number) at any of its actions."""
    step, kills = FIRST_STEP, []
    for _ in range(chosen.randrange(1, 6)):
        stage = chosen.randrange(NUM_STAGES)
        compute = f"{stage}{chosen.choice('FB')}{chosen.randrange(NUM_MICROBATCHES)}"
        is_saved = (step + 1) % JOB["checkpoint"]["every"] == 0
        places = [place for place in PLACES if place != "CHECKPOINT" or is_saved]
        kills.append({"step": step, "stage": stage, "action": chosen.choice((compute, compute, *places))})
        step += chosen.choice(GAP)
    return kills
