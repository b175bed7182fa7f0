"""Whether a drill went as the job's protection promises. Facts in, verdict out."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from bamboo_cli.drills.losses import How, Loss
from bamboo_cli.drills.promise import Promise, Rung

TOLERANCE = 1e-4
"""docs/step.md: with another number of pipelines. Here of the losses, relative where they are above 1."""
TOLERANCE_STEPS = 8
"""So many steps it is documented for."""
NOTICE_STEPS = 3
"""A notice of fewer usual steps may be over before the boundary that the node was to leave at."""


class Found(StrEnum):
    """The sign on which the coordinator decided."""

    NOTICE = "notice"
    BROKEN_LINK = "link broken"
    CLOUD = "the cloud said so"
    EXITED = "process ended"
    LEASE = "lease ran out"
    LINKS_DOWN = "links down for a lease"
    NO_ANSWER = "no answer"
    OTHER = "otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """One loss, as it went. None: it did not come to that."""

    loss: Loss
    node_id: str | None = None
    """Of the first that was lost after the strike."""
    found: Found | None = None
    found_after_s: float | None = None
    """From the strike (without an action: from asking the cloud) to the coordinator's decision."""
    why: str = ""
    """The coordinator's words."""
    notice_s: float | None = None
    """Left when the notice was seen."""
    rung: Rung | None = None
    pause_s: float | None = None
    """What passed between the commits around it, beyond usual steps; steps that were run again included."""
    pause_steps: float | None = None
    """The same in usual steps."""
    steps_rerun: int = 0
    """Committed steps that were run again."""
    restored_from: int | None = None
    """The step of the checkpoint; -1: the seed."""
    newest_checkpoint: int = -1
    """The newest that was complete by then; -1: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one of the two runs ended."""

    run_id: str
    state: str
    reason: str
    steps: int
    samples: int
    final_loss: float | None
    weights_sha256: str | None
    steps_rerun: int
    pause_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    promise: Promise
    usual_step_s: float
    """Median of the undisturbed run."""
    undisturbed: Outcome
    disturbed: Outcome
    losses: tuple[LossFacts, ...]
    loss_gap: float | None
    """None: the number of pipelines never changed, so the bits must be the same. Else the largest relative difference
    of the training loss in the first ``TOLERANCE_STEPS`` steps since."""
    num_bad_copies: int
    """Shadows' copies that differed from their owners'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    as_promised: bool
    sentence: str
    broken: tuple[str, ...]
    """Every promise that was, in a sentence each."""


def judge(facts: Facts) -> Verdict:
    broken = (*_ended_badly(facts), *_about_losses(facts), *_about_numbers(facts))
    if not broken:
        return Verdict(as_promised=True, sentence=_praise(facts), broken=())
    others = f" (and {len(broken) - 1} more, see above)" if len(broken) > 1 else ""
    return Verdict(as_promised=False, sentence=f"Not as promised: {broken[0]}{others}.", broken=broken)


def loss_words(loss: Loss) -> str:
    """``the kill after step 12``, ``the kill-in-step at 1B2 of step 18``."""
    return f"the {loss.how} " + (f"at {loss.action} of step {loss.step}" if loss.action else f"after step {loss.step}")


def _ended_badly(facts: Facts) -> Iterator[str]:
    run = facts.disturbed
    if run.state != "done":
        yield f"the disturbed run {run.state} after {run.steps} steps ({run.reason or 'no reason is known'})"


def _about_losses(facts: Facts) -> Iterator[str]:
    for found in facts.losses:
        what = loss_words(found.loss)
        if found.found is None:
            yield f"{what} was not shown: nothing was lost before the next one or the end; more --steps may help"
        elif found.rung is None:
            yield f"{what} was found ({found.found}), but no recovery from it was seen"
        elif found.rung.is_worse_than(allowed := _worst(found, facts)):
            yield f"{what} took a {found.rung}, where no worse than {_no_worse(allowed)} is promised"
        elif found.restored_from is not None and found.restored_from < found.newest_checkpoint:
            yield (
                f"{what} went back to {_checkpoint(found.restored_from)}, "
                f"though {_checkpoint(found.newest_checkpoint)} was complete"
            )
        elif found.steps_rerun and found.rung is not Rung.RESTORED:
            yield f"{what} had {_steps(found.steps_rerun)} run again, though there was no restore"
    counted = sum(found.steps_rerun for found in facts.losses)
    if facts.disturbed.steps_rerun != counted:
        yield f"{_steps(facts.disturbed.steps_rerun)} were run again, of which the losses explain {counted}"


def _worst(found: LossFacts, facts: Facts) -> Rung:
    if found.loss.how is not How.NOTICE:
        return facts.promise.worst
    in_time = (found.notice_s or 0.0) >= NOTICE_STEPS * facts.usual_step_s
    return Rung.HANDED_OVER if in_time else facts.promise.worst


def _about_numbers(facts: Facts) -> Iterator[str]:
    if facts.num_bad_copies:
        yield f"{facts.num_bad_copies} copies of layers differed from their owners'"
    before, after = facts.undisturbed, facts.disturbed
    if after.state != "done":
        return
    if (before.steps, before.samples) != (after.steps, after.samples):
        yield (
            f"{after.steps} steps and {after.samples} samples were counted, "
            f"{before.steps} and {before.samples} in the undisturbed run"
        )
    if facts.loss_gap is None:
        if before.weights_sha256 is None or before.weights_sha256 != after.weights_sha256:
            yield "the weights are not those of the undisturbed run, though the number of pipelines never changed"
    elif not facts.loss_gap <= TOLERANCE:  # NaN is not within it either
        yield f"the losses differ by {facts.loss_gap:.1e}, more than the documented {TOLERANCE:.0e}"


def _praise(facts: Facts) -> str:
    rerun = facts.disturbed.steps_rerun
    if rerun:
        cost = f"{_steps(rerun)} run again since the newest checkpoint, as this protection has it"
    elif facts.promise.worst is Rung.RESTORED and any(f.loss.how is not How.NOTICE for f in facts.losses):
        cost = "no committed step run again this time, though this protection lets a loss cost all since a checkpoint"
    else:
        cost = "no committed step run again"
    return f"All as promised: {_plural(len(facts.losses), 'loss', 'losses')}, {cost}, {weights_words(facts)}."


def weights_words(facts: Facts) -> str:
    """Whether the two runs came to the same."""
    same = facts.undisturbed.weights_sha256 == facts.disturbed.weights_sha256
    if same and facts.disturbed.weights_sha256 is not None:
        return "the same weights, bit for bit"
    if facts.loss_gap is None:
        return "other weights"
    return (
        f"other bits, since the number of pipelines changed on the way; "
        f"the losses agree to {facts.loss_gap:.1e} over the {TOLERANCE_STEPS} steps after it"
    )


def _no_worse(rung: Rung) -> str:
    return "a failover within the step" if rung is Rung.OTHER_PIPELINE else f"'{rung}'"


def _checkpoint(step: int) -> str:
    return "the seed" if step < 0 else f"the checkpoint of step {step}"


def _steps(count: int) -> str:
    return _plural(count, "step", "steps")


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
