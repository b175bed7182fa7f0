"""What a disturbed run tells about each of its losses, from its story, plans and steps. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bamboo_trainer.plan import Plan

from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.status import StepRow, StoryEvent
from bamboo_cli.drills.losses import How, Loss
from bamboo_cli.drills.promise import Rung
from bamboo_cli.drills.verdict import TOLERANCE_STEPS, Found, LossFacts

WARM_UP_STEPS = 2
"""The first ones may wait for layers, and fill caches."""
HALT = "everybody halts"

SIGNS: Mapping[str, Found] = {
    "lost touch with it": Found.BROKEN_LINK,
    "links to its peers have been down": Found.LINKS_DOWN,
    "was silent for": Found.LEASE,
    "its process ended": Found.EXITED,
    "did not stop within": Found.NO_ANSWER,
}
"""By the words of the story (``coordinator.losses``). A test holds them to the scenarios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run as the state file has it, each part oldest first."""

    story: Sequence[StoryEvent]
    plans: Sequence[Plan]
    steps: Sequence[StepRow]
    """A step that was run again is there once, as it was committed last."""


def usual_step_s(steps: Sequence[StepRow]) -> float:
    """Median, by the workers' clocks: the coordinator hears of short steps in bursts. Raises ValueError when there are
    too few."""
    if len(steps) <= WARM_UP_STEPS:
        raise ValueError(f"{len(steps)} steps are too few to tell what is usual")
    return median(row.step_s for row in steps[WARM_UP_STEPS:])


def facts_of_losses(
    losses: Sequence[Loss], struck_at: Sequence[float | None], record: Record, usual_s: float
) -> tuple[LossFacts, ...]:
    """Losses in the order of their steps. ``struck_at``: seconds since the epoch; None: nobody was struck.

    What happens from one strike to the next is put down to the first of them.
    """
    found, gone = [], set[str]()
    for index, (loss, at) in enumerate(zip(losses, struck_at, strict=True)):
        if at is None:
            found.append(LossFacts(loss=loss))
            continue
        until = min((later for later in struck_at[index + 1 :] if later is not None), default=float("inf"))
        window = [e for e in record.story if at <= e.at < until and e.node_id not in gone]
        facts = _facts(loss, at, window, record, usual_s)
        found.append(facts)
        if facts.node_id is not None and loss.how.takes_node:
            gone.add(facts.node_id)
    return tuple(found)


def _facts(loss: Loss, at: float, window: Sequence[StoryEvent], record: Record, usual_s: float) -> LossFacts:
    sign = next((event for event in window if _found(event) is not None), None)
    if sign is None:
        return LossFacts(loss=loss)
    after = [event for event in window if event.event_id >= sign.event_id]
    rung, decision = _recovery(loss, after, record.plans)
    restore = decision if rung is Rung.RESTORED else None
    pause_s = None if decision is None else _pause_s(decision, restore is not None, at, record.steps, usual_s)
    return LossFacts(
        loss=loss,
        node_id=sign.node_id,
        found=_found(sign),
        found_after_s=sign.at - at,
        why=sign.text,
        notice_s=sign.numbers.get("left_s"),
        rung=rung,
        pause_s=pause_s,
        pause_steps=None if pause_s is None else pause_s / usual_s,
        steps_rerun=sum(int(e.numbers.get("steps_rerun", 0)) for e in after if e.kind == StoryKind.RESTORE),
        restored_from=None if restore is None else int(restore.numbers["step"]) - 1,
        newest_checkpoint=_newest_checkpoint(record.story, sign.at),
    )


def _found(event: StoryEvent) -> Found | None:
    """None: it is no sign of a loss."""
    if event.kind == StoryKind.NOTICE:
        return Found.NOTICE
    if event.kind == StoryKind.PREEMPTION:
        return Found.CLOUD
    if event.kind == StoryKind.LOSS:
        return next((found for words, found in SIGNS.items() if words in event.text), Found.OTHER)
    return None


def _recovery(
    loss: Loss, after: Sequence[StoryEvent], plans: Sequence[Plan]
) -> tuple[Rung, StoryEvent] | tuple[None, None]:
    """The worst rung that was taken, and the event that tells of it."""
    by_kind = {kind: [e for e in after if e.kind == kind] for kind in StoryKind}
    halts = [e for e in by_kind[StoryKind.RUN] if e.text.startswith(HALT)]
    anew = by_kind[StoryKind.RECONFIGURATION]
    if restores := by_kind[StoryKind.RESTORE]:
        return Rung.RESTORED, restores[0]
    if halts and anew:
        return Rung.RUN_AGAIN, halts[0]
    if failovers := by_kind[StoryKind.FAILOVER]:
        return _successors(plans, int(failovers[0].numbers["generation"])), failovers[0]
    if anew:
        return (Rung.HANDED_OVER if loss.how is How.NOTICE else Rung.RUN_AGAIN), anew[0]
    return None, None


def _successors(plans: Sequence[Plan], generation: int) -> Rung:
    """Who took the stages over in this failover plan: their shadows, or workers of another pipeline."""
    before, plan = next((a, b) for a, b in pairwise(plans) if b.generation == generation)
    for stage in plan.stages():
        known = before.stage(*stage.place)
        if stage.host not in known.holders:
            return Rung.OTHER_PIPELINE
    return Rung.SHADOW


def _pause_s(
    decision: StoryEvent, restored: bool, struck_at: float, steps: Sequence[StepRow], usual_s: float
) -> float | None:
    """From the commit before the disturbance to the first that gets further than before it, less the usual steps
    between them (docs/benchmarks.md). None: no step was committed any more."""
    at = {row.step: row.committed_at for row in steps}
    if restored:
        first_step = int(decision.numbers["step"])
        before, disturbed = first_step - 1, first_step + int(decision.numbers["steps_rerun"])
    else:
        disturbed = next((row.step for row in steps if row.committed_at >= decision.at), -1)
        before = disturbed - 1
    if disturbed not in at:
        return None
    if before not in at:  # all is run again from the seed
        return max(0.0, at[disturbed] - struck_at - usual_s)
    return max(0.0, at[disturbed] - at[before] - (disturbed - before) * usual_s)


def _newest_checkpoint(story: Sequence[StoryEvent], at: float) -> int:
    """Of those complete by then; -1: none was."""
    complete = [
        int(e.numbers["step"])
        for e in story
        if e.kind == StoryKind.CHECKPOINT and e.at <= at and e.text.endswith("is complete")
    ]
    return max(complete, default=-1)


def loss_gap(undisturbed: Record, disturbed: Record) -> float | None:
    """None: every plan of both had as many pipelines. Else the largest difference of the training loss, relative where
    it is above 1, in the first steps with another number."""
    pipelines = {plan.num_pipelines for plan in (*undisturbed.plans, *disturbed.plans)}
    if len(pipelines) < 2:
        return None
    expected = undisturbed.plans[0].num_pipelines
    by_generation = {plan.generation: plan.num_pipelines for plan in (*undisturbed.plans, *disturbed.plans)}
    pairs = [
        (a, b)
        for a, b in zip(undisturbed.steps, disturbed.steps, strict=False)
        if by_generation[a.generation] != expected or by_generation[b.generation] != expected
    ]
    first = pairs[0][0].step if pairs else 0
    return max(
        (
            abs(a.loss - b.loss) / max(1.0, abs(a.loss))
            for a, b in zip(undisturbed.steps, disturbed.steps, strict=False)
            if first <= a.step < first + TOLERANCE_STEPS
        ),
        default=0.0,
    )


def num_bad_copies(story: Sequence[StoryEvent]) -> int:
    return sum(event.kind == StoryKind.DIGEST for event in story)
