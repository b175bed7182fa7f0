"""A run on record, as an undisturbed coordinator would have left it, to be tampered with."""

import math
from dataclasses import replace
from typing import Any

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.plan import Mode, Plan

from bamboo_cli.coordinator.status import RunLedger, StepRow, StoryEvent
from tests.cli import status_example
from tests.trainer.world import grid_plan

SPEC = TrainingSpec(
    run_id="demo-1",
    recipe="mlp",
    recipe_options={},
    num_steps=6,
    num_microbatches=4,
    microbatch_size=2,
    seed=0,
    checkpoint_url="memory://nowhere",
    checkpoint_every=2,
)
SAMPLES = 8


def row(step: int, generation: int = 1) -> StepRow:
    losses = tuple(1.0 / (step + 1) + m for m in range(4))
    norms = (0.25, 1.0 + step)
    return StepRow(
        run_id="demo-1",
        step=step,
        generation=generation,
        loss=sum(losses) / 4,
        gradient_norm=math.sqrt(sum(norms)),
        learning_rate=1e-3,
        step_s=0.1,
        num_samples=SAMPLES,
        num_tokens=0,
        committed_at=float(step),
        first_sample=step * SAMPLES,
        losses=losses,
        square_norms=norms,
    )


def plan(generation: int, first_step: int, num_pipelines: int = 2) -> Plan:
    return replace(grid_plan(num_pipelines, 2, 4, 1, Mode.BUBBLE), generation=generation, first_step=first_step)


def restore(generation: int, first_step: int, steps_rerun: int) -> StoryEvent:
    event = status_example.event("restored", step=first_step)
    return replace(event, kind="restore", numbers={"generation": generation, "steps_rerun": steps_rerun})


def ledger(**changes: Any) -> RunLedger:
    """Six steps under one plan. ``changes``: ``steps``, ``plans``, ``story`` (the restores), or facts of the run."""
    steps = changes.pop("steps", tuple(row(step) for step in range(6)))
    plans = changes.pop("plans", (plan(1, 0),))
    story = changes.pop("story", ())
    facts: dict[str, Any] = {
        "run_id": "demo-1",
        "state": "done",
        "committed_steps": 6,
        "num_samples": 6 * SAMPLES,
        "ended_at": status_example.NOW,
    }
    run = replace(status_example.run(), **(facts | changes))
    return RunLedger(run=run, training=SPEC, steps=steps, plans=plans, restores=story)


def restored(**changes: Any) -> RunLedger:
    """Steps 0 to 3 were run under plan 1; then back to step 2 under plan 2, which ran 2 to 5."""
    facts: dict[str, Any] = {
        "steps": tuple(row(step, 1 if step < 2 else 2) for step in range(6)),
        "plans": (plan(1, 0), plan(2, 2)),
        "story": (restore(2, 2, 2),),
        "restores": 1,
        "steps_rerun": 2,
    }
    return ledger(**(facts | changes))
