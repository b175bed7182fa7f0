"""Help after a failover: workers of other pipelines do some of a lost stage's microbatches. Pure; docs/step.md.

Whoever takes a stage over has it beside its own, and everybody waits for it. With two pipelines, others hold the same
layers and have only their own stage to run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from bamboo_trainer.plan import Mode, Part, Plan, StagePlan, WorkerId

MAX_APART = 8
"""Microbatches that one helper does: it keeps the stage's gradient once for each of them."""

Room = Callable[[WorkerId, StagePlan], int]
"""For how many microbatches' gradients of a stage the worker has memory."""


def with_help(plan: Plan, before: Plan, room: Room = lambda worker_id, stage: MAX_APART) -> Plan:
    """The failover plan in which others share the stages that changed hands since ``before``. Says so in its reason."""
    load = plan.load()
    pipelines, told = [], []
    for old, new in zip(before.pipelines, plan.pipelines, strict=True):
        stages = []
        for was, stage in zip(old.stages, new.stages, strict=True):
            if stage.host != was.host and not was.parts:
                parts = _shared(plan, stage, load, room)
                told += [
                    f"{part.host} does {len(part.microbatches)} of its {len(new.microbatches)} microbatches"
                    for part in parts[1:]
                ]
                stage = replace(stage, parts=parts)
            stages.append(stage)
        pipelines.append(replace(new, stages=tuple(stages)))
    if not told:
        return plan
    return replace(plan, pipelines=tuple(pipelines), reason="; ".join((plan.reason, *told)))


def part_size(num_microbatches: int, num_helpers: int) -> int:
    """Microbatches that each helper does, memory aside."""
    return min(num_microbatches // (1 + num_helpers), MAX_APART)


def _shared(plan: Plan, stage: StagePlan, load: Counter[WorkerId], room: Room) -> tuple[Part, ...]:
    """Even parts, the first one for the host, whose forwards may be at hand. Empty: nobody is less busy than it is, or
    there is not a microbatch for each. In ``full`` mode a shadow has done what there is to do."""
    pipeline = plan.pipelines[stage.pipeline_index]
    helpers = [] if stage.mode is Mode.FULL else _helpers(plan, stage, load)
    num = len(pipeline.microbatches)
    sizes = [min(part_size(num, len(helpers)), room(helper, stage)) for helper in helpers]
    parts: list[Part] = []
    end = pipeline.end_microbatch
    for helper, size in reversed(list(zip(helpers, sizes, strict=True))):
        if size > 0:
            parts.insert(0, Part(first_microbatch=end - size, end_microbatch=end, host=helper))
            load[helper] += size
            load[stage.host] -= size
            end -= size
    if not parts:
        return ()
    return Part(first_microbatch=pipeline.first_microbatch, end_microbatch=end, host=stage.host), *parts


def _helpers(plan: Plan, stage: StagePlan, load: Counter[WorkerId]) -> list[WorkerId]:
    """One of each other pipeline: of those that hold the layers, and are less busy than the host, the one whose own
    stage is done first."""
    found = []
    for pipeline in plan.pipelines:
        if pipeline.stages[0].pipeline_index == stage.pipeline_index:
            continue
        able = [
            own
            for own in pipeline.stages
            if load[own.host] < load[stage.host] and set(stage.layers) <= set(plan.layers_of(own.host))
        ]
        if able:
            found.append(max(able, key=lambda own: own.stage_index).host)
    return found
