"""What a run's story, plans and steps say about its losses."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bamboo_trainer.plan import Mode, NodeId, Plan, PlanKind, WorkerId
from bamboo_trainer.redundancy import fail_over

from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.status import StepRow, StoryEvent
from bamboo_cli.drills.facts import SIGNS, Record, facts_of_losses, loss_gap, usual_step_s
from bamboo_cli.drills.losses import How, Loss
from bamboo_cli.drills.promise import Rung
from bamboo_cli.drills.verdict import Found, LossFacts
from tests.trainer.world import grid_plan

SCENARIOS = Path(__file__).parent.parent / "scenarios"
LOST = re.compile(r"# loss: (.*)")
STEP_S = 1.0


def row(step: int, at: float, *, generation: int = 1, loss: float = 2.0) -> StepRow:
    return StepRow(
        run_id="r",
        step=step,
        generation=generation,
        loss=loss,
        gradient_norm=1.0,
        learning_rate=0.1,
        step_s=STEP_S,
        num_samples=8,
        num_tokens=0,
        committed_at=at,
    )


def rows(*times: float) -> list[StepRow]:
    return [row(step, at) for step, at in enumerate(times)]


def story(*lines: tuple[float, StoryKind, str, str | None, dict[str, Any]]) -> list[StoryEvent]:
    return [
        StoryEvent(
            event_id=index,
            at=at,
            kind=kind,
            node_id=NodeId(node) if node else None,
            run_id="r",
            step=None,
            text=text,
            numbers=numbers,
        )
        for index, (at, kind, text, node, numbers) in enumerate(lines)
    ]


def a(how: How) -> Loss:
    return Loss(how=how, step=3, pipeline_index=0, stage_index=1, action="1B0" if how.is_at_action else None)


def one(loss: Loss, at: float, record: Record) -> LossFacts:
    (found,) = facts_of_losses([loss], [at], record, STEP_S)
    return found


def lost(at: float, node: str = "n2") -> tuple[float, StoryKind, str, str, dict[str, Any]]:
    return at, StoryKind.LOSS, f"worker {node}/1 is lost: its agent and its peers lost touch with it", node, {}


def failed_over(at: float, generation: int) -> tuple[float, StoryKind, str, None, dict[str, Any]]:
    return at, StoryKind.FAILOVER, "lost w0.1/1", None, {"generation": generation}


@pytest.mark.parametrize(
    ("mode", "level", "pipelines", "rung"),
    [(Mode.BUBBLE, 1, 1, Rung.SHADOW), (Mode.REROUTE, 0, 2, Rung.OTHER_PIPELINE)],
)
def test_a_kill_in_mid_step(mode: Mode, level: int, pipelines: int, rung: Rung) -> None:
    """Given a step that takes 1.4 s instead of 1, then that is the pause, and who took over is told."""
    before = grid_plan(pipelines, 2, 4, 1, mode, level)
    after = _without(before, before.stage(0, 1).host)
    record = Record(
        story=story(lost(3.3), failed_over(3.3, 2)), plans=[before, after], steps=rows(0.0, 1.0, 2.0, 3.0, 4.4, 5.4)
    )

    found = one(a(How.KILL_IN_STEP), 3.25, record)

    assert (found.node_id, found.found, found.rung, found.steps_rerun) == ("n2", Found.BROKEN_LINK, rung, 0)
    assert found.pause_s == found.pause_steps == pytest.approx(0.4)
    assert found.found_after_s == pytest.approx(0.05)


def test_a_notice_that_is_handed_over() -> None:
    record = Record(
        story=story(
            (3.1, StoryKind.NOTICE, "n2 is noticed (terminate): 9 s left", "n2", {"left_s": 9.0}),
            (4.2, StoryKind.RECONFIGURATION, "plan 2 from step 4: n2 is leaving", None, {"step": 4, "generation": 2}),
        ),
        plans=[],
        steps=rows(0.0, 1.0, 2.0, 3.0, 4.0, 5.5),
    )

    found = one(a(How.NOTICE), 3.0, record)

    assert (found.found, found.notice_s, found.rung) == (Found.NOTICE, 9.0, Rung.HANDED_OVER)
    assert found.pause_s == pytest.approx(0.5)


def test_a_restore_counts_the_steps_run_again_into_the_pause() -> None:
    """Given steps 0 to 3 at 0 to 3 s, a loss at 3.5 s, and a restore to step 1: steps 2 and 3 are committed again at 6
    and 7 s, step 4 at 8 s. Undisturbed it would have been at 4 s."""
    record = Record(
        story=story(
            (1.2, StoryKind.CHECKPOINT, "the checkpoint of step 1 is complete", None, {"step": 1}),
            lost(3.6),
            (3.6, StoryKind.RUN, "everybody halts: lost n2/1 and a stage with them", None, {}),
            (4.0, StoryKind.RESTORE, "restored from the checkpoint of step 1", None, {"step": 2, "steps_rerun": 2}),
        ),
        plans=[],
        steps=rows(0.0, 1.0, 6.0, 7.0, 8.0),
    )

    found = one(a(How.KILL), 3.5, record)

    assert (found.rung, found.steps_rerun) == (Rung.RESTORED, 2)
    assert (found.restored_from, found.newest_checkpoint) == (1, 1)
    assert found.pause_s == pytest.approx(4.0)


def test_a_step_that_is_run_again_from_live_layers() -> None:
    record = Record(
        story=story(
            lost(3.5),
            (3.5, StoryKind.RUN, "everybody halts: lost n2/1 and a stage with them", None, {}),
            (3.7, StoryKind.RECONFIGURATION, "plan 3 from step 4", None, {"step": 4, "generation": 3}),
        ),
        plans=[],
        steps=rows(0.0, 1.0, 2.0, 3.0, 4.7),
    )

    found = one(a(How.KILL), 3.4, record)

    assert (found.rung, found.steps_rerun) == (Rung.RUN_AGAIN, 0)
    assert found.pause_s == pytest.approx(0.7)


def test_what_is_never_seen_or_never_struck_stays_empty() -> None:
    record = Record(story=story(), plans=[], steps=rows(0.0, 1.0))

    assert one(a(How.KILL), 0.5, record) == LossFacts(loss=a(How.KILL))
    assert facts_of_losses([a(How.KILL)], [None], record, STEP_S) == (LossFacts(loss=a(How.KILL)),)


def test_the_late_word_about_one_victim_is_not_taken_for_the_next_loss() -> None:
    """Given that the cloud's word about n2 comes after the next strike, then that loss is n3's."""
    plans = [before := grid_plan(1, 3, 4, 1, Mode.BUBBLE), after := _without(before, before.stage(0, 1).host)]
    record = Record(
        story=story(
            lost(1.1),
            failed_over(1.1, after.generation),
            (5.1, StoryKind.PREEMPTION, "n2 is gone: preempted", "n2", {}),
            lost(5.2, "n3"),
        ),
        plans=plans,
        steps=rows(0.0, 1.0, 2.0, 3.0),
    )

    first, second = facts_of_losses([a(How.KILL), a(How.FREEZE)], [1.0, 5.0], record, STEP_S)

    assert (first.node_id, first.found) == ("n2", Found.BROKEN_LINK)
    assert (second.node_id, second.found, second.rung) == ("n3", Found.BROKEN_LINK, None)


def test_every_loss_that_the_scenarios_tell_of_is_understood() -> None:
    texts = [text for file in SCENARIOS.glob("*.txt") for text in LOST.findall(file.read_text())]

    assert len(texts) >= 8
    assert not [text for text in texts if not any(words in text for words in SIGNS)]


def test_what_is_usual_leaves_the_first_steps_out() -> None:
    """Also where the coordinator heard of all of them at once."""
    steps = [replace(row(step, 9.0), step_s=step_s) for step, step_s in enumerate((7.0, 6.0, 0.5, 0.5, 3.0))]

    assert usual_step_s(steps) == 0.5
    with pytest.raises(ValueError, match="2 steps are too few"):
        usual_step_s(steps[:2])


def test_losses_are_compared_only_where_the_number_of_pipelines_changed() -> None:
    """Given one pipeline less from step 2 on, then what differs before it is not counted, and the rest relatively."""
    two = grid_plan(2, 1, 4, 2, Mode.REROUTE)
    one_left = replace(grid_plan(1, 1, 4, 2, Mode.OFF), generation=2)
    undisturbed = Record(story=[], plans=[two], steps=[row(step, step, loss=4.0) for step in range(4)])
    same = Record(story=[], plans=[two], steps=[row(step, step, loss=4.0) for step in range(4)])
    changed = Record(
        story=[],
        plans=[two, one_left],
        steps=[row(0, 0), row(1, 1), row(2, 2, generation=2, loss=4.04), row(3, 3, generation=2, loss=4.0)],
    )

    assert loss_gap(undisturbed, same) is None
    assert loss_gap(undisturbed, changed) == pytest.approx(0.01)


def _without(plan: Plan, worker_id: WorkerId) -> Plan:
    after = fail_over(plan, [worker_id], plan.generation + 1)
    assert after is not None and after.kind is PlanKind.FAILOVER
    return after
