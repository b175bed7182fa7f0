"""Which steps are computed again, and from where. Pure; the choice comes with its reason."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bamboo_trainer.plan import PlanKind
from bamboo_trainer.replay_order import Segment

from bamboo_cli.coordinator.status import RunLedger
from bamboo_cli.errors import UsageError
from bamboo_cli.output import seconds
from bamboo_cli.verification.ledger import base_plan, is_stale

FEW_STEPS = 10
NEAR_STEPS = 30
"""A checkpoint, or the end of the run, that is no further away is reached: layers are compared there, bit for bit."""
SMALL_S = 60.0
"""A run whose steps can all be computed again in so many seconds is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps ``[first_step, end_step)``; the layers come from the checkpoint of the step before, or from the seed."""

    first_step: int
    end_step: int
    reason: str


def choose_stretch(
    ledger: RunLedger, intact: Collection[int], asked: tuple[int, int] | None, *, whole: bool
) -> Stretch:
    """``asked``: from the first to before the second. ``intact``: checkpoints that one can begin from.

    Raises UsageError for steps that are not committed.
    """
    committed = ledger.run.committed_steps
    usable = sorted(step for step in intact if step < committed - 1)
    if whole:
        return Stretch(first_step=0, end_step=committed, reason="all steps, from the seed, as asked")
    if asked is not None:
        return _as_asked(asked, committed, usable)
    took_s = whole_s(ledger)
    if took_s <= SMALL_S:
        reason = f"all steps, from the seed: it takes about {seconds(took_s)}"
        return Stretch(first_step=0, end_step=committed, reason=reason)
    chosen = _with_a_takeover(ledger, usable, took_s / committed) or _some(committed, usable)
    left_out = [step for step in takeovers(ledger) if not chosen.first_step <= step < chosen.end_step]
    others = f"; not the takeover in step {left_out[-1]}: --steps {left_out[-1]}:{left_out[-1] + 1}" if left_out else ""
    return replace(chosen, reason=f"{chosen.reason}{others}; --all would take about {seconds(took_s)}")


def takeovers(ledger: RunLedger) -> list[int]:
    """Steps in which a stage was taken over, as far as they are on record: the first under each failover plan."""
    failovers = {plan.generation for plan in ledger.plans if plan.kind is PlanKind.FAILOVER}
    first: dict[int, int] = {}
    for row in ledger.steps:
        if row.generation in failovers:
            first.setdefault(row.generation, row.step)
    return sorted(first.values())


def _with_a_takeover(ledger: RunLedger, usable: Sequence[int], step_s: float) -> Stretch | None:
    """The newest that is not too far from where one can begin. ``step_s``: of computing one again."""
    most = max(FEW_STEPS, int(SMALL_S / step_s))
    for step in reversed(takeovers(ledger)):
        begin = max((checkpoint + 1 for checkpoint in usable if checkpoint < step), default=0)
        if step - begin < most:
            end = min(step + 2, ledger.run.committed_steps)
            reason = f"steps {begin} to {end - 1}: in step {step} a stage was taken over"
            return Stretch(first_step=begin, end_step=end, reason=reason)
    return None


def _some(committed: int, usable: Sequence[int]) -> Stretch:
    if not usable:
        reason = "the first steps, from the seed, since no step follows a checkpoint"
        return Stretch(first_step=0, end_step=min(committed, FEW_STEPS), reason=reason)
    first, goal = usable[0] + 1, usable[1] + 1 if len(usable) > 1 else committed
    end = goal if goal - first <= NEAR_STEPS else first + FEW_STEPS
    reason = f"the {end - first} steps after the oldest checkpoint that is left and has steps after it"
    return Stretch(first_step=first, end_step=end, reason=reason)


def _as_asked(asked: tuple[int, int], committed: int, usable: list[int]) -> Stretch:
    first, end = asked
    if not 0 <= first < end <= committed:
        raise UsageError(
            f"steps {first}:{end} cannot be computed again: steps 0 to {committed - 1} are committed",
            next_step="Write FIRST:END, the END itself not included.",
        )
    before = [step for step in usable if step < first]
    if not before:
        return Stretch(first_step=0, end_step=end, reason=f"steps {first} to {end - 1} as asked, from the seed")
    reason = f"steps {first} to {end - 1} as asked, from the checkpoint of step {before[-1]}"
    return Stretch(first_step=before[-1] + 1, end_step=end, reason=reason)


def whole_s(ledger: RunLedger) -> float:
    """What computing all steps again may take at most: one process does the work of all workers, one after another."""
    took = [row.step_s for row in ledger.steps if row.step_s > 0]
    num_hosts = max((len({stage.host for stage in plan.stages()}) for plan in ledger.plans), default=1)
    return ledger.run.committed_steps * num_hosts * median(took) if took else 0.0


def segments_of(ledger: RunLedger, stretch: Stretch) -> tuple[Segment, ...]:
    """The stretch, cut where the split of the microbatches over pipelines changes."""
    plans = {plan.generation: plan for plan in ledger.plans}
    rows = {row.step: row for row in ledger.steps}
    found: list[Segment] = []
    for step in range(stretch.first_step, stretch.end_step):
        row = rows.get(step)
        own = plans.get(row.generation) if row is not None and not is_stale(ledger, row) else None
        plan = own or base_plan(ledger.plans, max(step, ledger.run.begins_at_step))  # earlier ones: as this run began
        if plan is None:
            raise UsageError(f"step {step} cannot be computed again: the state file has no plan for it")
        split = tuple((pipeline.first_microbatch, pipeline.end_microbatch) for pipeline in plan.pipelines)
        if found and found[-1].microbatches == split:
            found[-1] = Segment(first_step=found[-1].first_step, end_step=step + 1, microbatches=split)
        else:
            found.append(Segment(first_step=step, end_step=step + 1, microbatches=split))
    return tuple(found)
