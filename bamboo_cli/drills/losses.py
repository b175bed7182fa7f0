"""Which losses a drill meets, where and when. Pure, and a function of the seed."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bamboo_trainer.plan import split_microbatches

from bamboo_cli.config import DrillConfig
from bamboo_cli.errors import UsageError

GAP_STEPS = 6
"""Between two losses at least, unless ``--steps`` says otherwise: so many the plan may take until it is whole again."""
GAP_S = 4.0
"""And so long: a notice is seen within a second, and nodes change places in less than one where nothing else runs."""
MIN_GAP_STEPS = 4


class How(StrEnum):
    NOTICE = "notice"
    """The cloud says that it will take the node, then does."""
    KILL = "kill"
    """The whole node is gone without a word, somewhere in a step."""
    KILL_IN_STEP = "kill-in-step"
    """The same at exactly one action of a step."""
    FREEZE = "freeze"
    """The worker hangs at an action; its connections stay up."""
    FREEZE_NODE = "freeze-node"
    """All of the node's processes hang."""
    CUT = "cut"
    """The worker's links to its peers break and stay down."""

    @property
    def is_at_action(self) -> bool:
        return self not in (How.NOTICE, How.KILL)

    @property
    def takes_node(self) -> bool:
        return self not in (How.FREEZE, How.CUT)


_STRIKES: dict[How, Literal["kill", "freeze", "freeze_node", "cut"]] = {
    How.KILL_IN_STEP: "kill",
    How.FREEZE: "freeze",
    How.FREEZE_NODE: "freeze_node",
    How.CUT: "cut",
}
DEFAULT = (How.NOTICE, How.KILL, How.KILL_IN_STEP, How.FREEZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is done, to the host of a stage."""

    how: How
    step: int
    """At an action: within this step. Otherwise once it is committed."""
    pipeline_index: int
    stage_index: int
    action: str | None

    @property
    def entry(self) -> DrillConfig:
        """The same as the job file's ``drill`` spells it."""
        if self.action is None:
            return DrillConfig(
                step=self.step, pipeline=self.pipeline_index, stage=self.stage_index, notice=self.how is How.NOTICE
            )
        return DrillConfig(
            step=self.step,
            pipeline=self.pipeline_index,
            stage=self.stage_index,
            action=self.action,
            how=_STRIKES[self.how],
        )


def parse_hows(text: str) -> tuple[How, ...]:
    """``notice,kill`` as it stands on the command line, in that order. Raises UsageError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(How)]
    if unknown or not names:
        raise UsageError(
            f"--losses: there is no {unknown[0]}" if unknown else "--losses names none",
            next_step=f"Name some of {', '.join(How)}, with commas between them.",
        )
    return tuple(How(name) for name in names)


def steps_for(num_losses: int, usual_step_s: float | None = None) -> int:
    """Enough for the plan to be whole again between the losses. ``usual_step_s``: of the job, once it is known."""
    gap = GAP_STEPS if not usual_step_s else max(GAP_STEPS, math.ceil(GAP_S / usual_step_s))
    return gap * (num_losses + 1)


def gap_of(num_steps: int, num_losses: int) -> int:
    """Steps from one loss to the next, and after the last. Raises UsageError when they are too few."""
    gap = num_steps // (num_losses + 1)
    if gap < MIN_GAP_STEPS:
        raise UsageError(
            f"--steps: {num_steps} steps are too few for {num_losses} losses",
            next_step=f"Take {MIN_GAP_STEPS * (num_losses + 1)} or more, or fewer --losses.",
        )
    return gap


def choose_losses(
    hows: Sequence[How], *, num_steps: int, num_pipelines: int, num_stages: int, num_microbatches: int, seed: int
) -> tuple[Loss, ...]:
    """One of each, in order and evenly spread, on one stage after another; the seed shuffles the stages and places each
    loss in its step.

    Raises UsageError when the steps are too few.
    """
    gap = gap_of(num_steps, len(hows))
    microbatches = split_microbatches(num_microbatches, num_pipelines)
    chance = random.Random(seed)
    places = [(pipeline, stage) for pipeline in range(num_pipelines) for stage in range(num_stages)]
    chance.shuffle(places)
    found = []
    for index, how in enumerate(hows):
        pipeline_index, stage_index = places[index % len(places)]
        action = f"{stage_index}{chance.choice('FB')}{chance.choice(microbatches[pipeline_index])}"
        found.append(
            Loss(
                how=how,
                step=gap * (index + 1) - chance.randrange(gap // MIN_GAP_STEPS),
                pipeline_index=pipeline_index,
                stage_index=stage_index,
                action=action if how.is_at_action else None,
            )
        )
    return tuple(found)
