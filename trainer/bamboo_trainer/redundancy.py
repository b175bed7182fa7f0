"""Failover, decided purely: what the plan becomes when workers are lost in mid-step.

Survives any losses that leave each stage a live worker with all of its layers: its nearest live shadow, else a worker
of another pipeline. A promoted worker no longer shadows the stage, and a stage whose shadow died has one less, until
the next reconfiguration.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from bamboo_trainer.plan import Part, Plan, PlanKind, StagePlan, WorkerId


def shadow_indices(stage_index: int, num_stages: int, level: int) -> tuple[int, ...]:
    """The stages whose workers shadow ``stage_index``: its ``level`` nearest predecessors, the ends wrap; fewer where
    there are fewer others."""
    return tuple((stage_index - distance) % num_stages for distance in range(1, min(level, num_stages - 1) + 1))


def fail_over(plan: Plan, lost: Collection[WorkerId], generation: int) -> Plan | None:
    """The plan in which others host the stages of ``lost``; None when a stage cannot be taken over within the step."""
    load = plan.load()
    pipelines, moved = [], []
    for pipeline in plan.pipelines:
        stages = []
        for stage in pipeline.stages:
            parts = _take_over_parts(plan, stage, lost, load)
            if parts is None:
                return None
            host = parts[0].host
            if host != stage.host:
                moved.append(f"{host} hosts stage {stage.stage_index} of pipeline {stage.pipeline_index}")
            shadows = tuple(w for w in stage.shadows if w not in lost and w != host)
            kept = parts if len(parts) > 1 else ()
            stages.append(replace(stage, host=host, shadows=shadows, slots=(), parts=kept))
        pipelines.append(replace(pipeline, stages=tuple(stages)))
    return replace(
        plan,
        generation=generation,
        kind=PlanKind.FAILOVER,
        pipelines=tuple(pipelines),
        members=tuple(m for m in plan.members if m.worker_id not in lost),
        fetches=(),
        roll_forward=None,
        reason=f"lost {', '.join(sorted(lost))}: {'; '.join(moved) or 'no stage was hosted there'}",
    )


def _take_over_parts(
    plan: Plan, stage: StagePlan, lost: Collection[WorkerId], load: Counter[WorkerId]
) -> tuple[Part, ...] | None:
    """A lost part goes to the host of the part before it, which adds in order and just goes on; the first one to a
    successor, beside another part that it may have. None: there is none, or a helper lacks the layers."""
    found: list[Part] = []
    for part in plan.parts_of(stage):
        if part.host not in lost:
            if not set(stage.layers) <= set(plan.layers_of(part.host)):
                return None  # a helper whose copy is not trusted any more: the step is run again
            found.append(part)
        elif found:
            load[found[-1].host] += len(part.microbatches)
            found[-1] = replace(found[-1], end_microbatch=part.end_microbatch)
        else:
            successor = _successor(plan, stage, lost, load)
            if successor is None:
                return None
            load[successor] += len(part.microbatches)
            found.append(replace(part, host=successor))
    return tuple(found)


def _successor(plan: Plan, stage: StagePlan, lost: Collection[WorkerId], load: Counter[WorkerId]) -> WorkerId | None:
    """The nearest live shadow, which may have computed already; else the least busy that holds the layers."""
    if not stage.mode.survives_within_step:
        return None
    live_shadows = [w for w in stage.shadows if w not in lost]
    if live_shadows:
        return live_shadows[0]
    holders = [w for w in plan.worker_ids() if w not in lost and set(stage.layers) <= set(plan.layers_of(w))]
    return min(holders, key=lambda w: (load[w], w), default=None)


def missing_shadows(plan: Plan, level: int) -> int:
    """How many shadows stages lack that they should have."""
    return sum(
        max(0, len(shadow_indices(stage.stage_index, len(pipeline.stages), level)) - len(stage.shadows))
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        if stage.mode.has_shadows
    )
