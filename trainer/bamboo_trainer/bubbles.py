"""Where redundant forwards fit for nothing: slots in the bubbles of a plan, computed from measured layer times. Pure.

A worker that began FRC whenever it waits would be in the middle of a layer when the message comes that others wait for
it to act upon. So the gaps of the dry run are filled ahead, layer by layer, with what is sure to end in time.
"""

from collections.abc import Callable
from dataclasses import replace

from bamboo_trainer.dryrun import DryRun, Durations, dry_run
from bamboo_trainer.plan import Mode, Plan, StagePlan, WorkerId
from bamboo_trainer.schedule import Kind

MARGIN = 0.05
"""Share of a gap that is left free: waking up, messages, layers that take longer than they were measured."""
MAX_ACTIONS = 20_000
"""Beyond so many forwards and backwards a step, the dry run takes seconds: FRC then fills any wait."""
SLOTTED = (Mode.BUBBLE, Mode.EAGER)
"""``eager`` does what does not fit once the worker's own work is done, so it leaves no margin."""

Place = tuple[int, int]


def with_slots(plan: Plan, durations: Durations, margin: float = MARGIN, result: DryRun | None = None) -> Plan:
    """The plan whose ``bubble`` and ``eager`` stages say which FRC fits where (``StagePlan.slots``).

    ``result``: of ``dry_run`` of the plan without its shadows, where that is known.
    """
    num_actions = 2 * sum(len(p.microbatches) * len(p.stages) for p in plan.pipelines)
    if num_actions > MAX_ACTIONS or not any(s.mode in SLOTTED and s.shadows for s in plan.stages()):
        return plan
    if result is None:
        result = dry_run(without_shadows(plan), durations)
    filled = {w: _fill(plan, w, result, durations, margin) for w in plan.worker_ids()}

    def slotted(stage: StagePlan) -> StagePlan:
        if stage.mode not in SLOTTED:
            return stage
        return replace(stage, slots=tuple(filled[shadow][stage.place] for shadow in stage.shadows))

    return _map_stages(plan, slotted)


def without_shadows(plan: Plan) -> Plan:
    return _map_stages(plan, lambda stage: replace(stage, shadows=(), slots=()))


def _fill(
    plan: Plan, worker_id: WorkerId, result: DryRun, durations: Durations, margin: float
) -> dict[Place, tuple[int, ...]]:
    """For each stage that the worker shadows: how many layers of it may have been run through after the worker's n-th
    forward or backward, n = 0, 1, …"""
    own = sorted((slot for slot in result.slots if slot.worker_id == worker_id), key=lambda slot: slot.start)
    made = {
        (slot.action.pipeline_index, slot.action.stage_index + 1, slot.action.microbatch): slot.end
        for slot in own
        if slot.action.kind is Kind.FORWARD
    }
    """When the input of a stage and microbatch is there: a shadow makes it itself, as a host or by FRC."""
    edges = [0.0, *(edge for slot in own for edge in (slot.start, slot.end)), result.makespan]
    shadowed = [stage for stage in plan.shadowed_by(worker_id) if stage.mode in SLOTTED]
    stages = sorted(shadowed, key=lambda stage: stage.shadows.index(worker_id))
    pending = {
        stage.place: [(m, x) for m in plan.pipelines[stage.pipeline_index].microbatches for x in stage.layers]
        for stage in stages
    }
    done = dict.fromkeys(pending, 0)
    slots: dict[Place, list[int]] = {place: [] for place in pending}
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        now = start
        for stage in stages:
            until = end if stage.mode is Mode.EAGER else end - (end - start) * margin
            d, s = stage.place
            for m, layer in pending[stage.place][done[stage.place] :]:
                there_at = 0.0 if s == 0 else made.get((d, s, m), result.makespan)
                if there_at > now or now + durations.forward[layer] > until:
                    break
                now += durations.forward[layer]
                done[stage.place] += 1
                if layer == stage.end_layer - 1:
                    made.setdefault((d, s + 1, m), now)
            slots[stage.place].append(done[stage.place])
    return {place: tuple(numbers) for place, numbers in slots.items()}


def _map_stages(plan: Plan, change: Callable[[StagePlan], StagePlan]) -> Plan:
    pipelines = (replace(p, stages=tuple(map(change, p.stages))) for p in plan.pipelines)
    return replace(plan, pipelines=tuple(pipelines))
