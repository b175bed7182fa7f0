"""What of a lost stage, or part, need not be run again within the step, and when it must be after all. docs/step.md.

Its gradients may have reached the sums before its host was lost. Then it is *spared*: it counts as finished. But what
it sent to its neighbours may be lost with them, and then it is run for that alone. Pure.
"""

from collections.abc import Collection, Iterable

from bamboo_trainer.compute import Unit
from bamboo_trainer.plan import Plan, WorkerId
from bamboo_trainer.schedule import HostedStage, Key, Share, backward_key, forward_key
from bamboo_trainer.step import StepState


def is_spared(now: StepState, hosted: HostedStage, plan: Plan, units: Iterable[Unit]) -> bool:
    """The lost host of a stage, or of a part, had already brought all its gradients to where they are summed: the
    sums are here. A stage without parameters has none to tell by, and is run again.
    """
    touched = [unit for unit in units if any(layer in hosted.stage.layers for layer in unit.layers)]
    return bool(touched) and now.has_sums(touched, plan.num_pipelines)


def lacks_losses(now: StepState, hosted: HostedStage) -> bool:
    """Of a last stage or part; they come with its run, with the gradients that it sends, and when peers sync."""
    return hosted.is_last and any(m not in now.losses for m in hosted.microbatches)


def run_what_is_needed(
    now: StepState, plan: Plan, me: WorkerId, peer: WorkerId, has: Collection[Key], spared: Collection[Share]
) -> bool:
    """Begins spared stages and parts here of which ``peer``, who ``has`` these keys and does not run ``spared``, needs
    something. Whether there were some: what they need in turn may be spared as well, here or elsewhere."""
    all_heard = all(other in now.peer_has for other in plan.worker_ids() if other != me)
    needed = [
        hosted
        for hosted in now.hosted
        if hosted.spared and (_is_needed(plan, hosted, peer, has, spared) or (all_heard and lacks_losses(now, hosted)))
    ]
    for hosted in needed:
        hosted.spared = False  # its contribution is in the sums, and stays so
        hosted.next_forward = hosted.next_backward = hosted.microbatches.start
    if needed:
        run_what_is_needed(now, plan, me, me, now.store, now.spared)
    return bool(needed)


def _is_needed(
    plan: Plan, hosted: HostedStage, peer: WorkerId, has: Collection[Key], spared: Collection[Share]
) -> bool:
    """The peer, who ``has`` these, lacks what only a spared stage or part makes: gradients that its lost host had
    not sent upstream, or the inputs of the next stage, which was lost as well."""
    d, s = hosted.stage.place
    neighbours = [(s - 1, backward_key)] if s > 0 else []
    neighbours += [(s + 1, forward_key)] if not hosted.is_last else []
    for other, key_of in neighbours:
        for part in plan.parts_of(plan.stage(d, other)):
            runs = part.host == peer and Share(d, other, part.first_microbatch) not in spared
            common = (m for m in part.microbatches if m in hosted.microbatches)
            if runs and any(key_of(d, other, m) not in has for m in common):
                return True
    return False
