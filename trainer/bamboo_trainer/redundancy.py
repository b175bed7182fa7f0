"""Failover, decided purely: what the plan becomes when workers are lost in mid-step.

Survives any losses that leave each stage its host or its live shadow. A promoted shadow has no shadow of its own for
that stage, and a stage whose shadow died has none, until the next reconfiguration.
"""

from collections.abc import Collection
from dataclasses import replace

from bamboo_trainer.plan import Plan, PlanKind, StagePlan, WorkerId


def shadow_index(stage_index: int, num_stages: int) -> int | None:
    """The stage whose worker shadows ``stage_index``: its predecessor, the ends wrap; None when there is no other."""
    return None if num_stages < 2 else (stage_index - 1) % num_stages


def fail_over(plan: Plan, lost: Collection[WorkerId], generation: int) -> Plan | None:
    """The plan in which shadows host the stages of ``lost``; None when a stage has neither host nor live shadow."""
    pipelines = []
    for pipeline in plan.pipelines:
        stages = []
        for stage in pipeline.stages:
            promoted = _survive(stage, lost)
            if promoted is None:
                return None
            stages.append(promoted)
        pipelines.append(replace(pipeline, stages=tuple(stages)))
    moved = [s for s in plan.stages() if s.host in lost]
    reason = "; ".join(f"{s.shadow} hosts stage {s.stage_index} of pipeline {s.pipeline_index}" for s in moved)
    return replace(
        plan,
        generation=generation,
        kind=PlanKind.FAILOVER,
        pipelines=tuple(pipelines),
        members=tuple(m for m in plan.members if m.worker_id not in lost),
        fetches=(),
        roll_forward=None,
        reason=f"lost {', '.join(sorted(lost))}: {reason or 'no stage was hosted there'}",
    )


def _survive(stage: StagePlan, lost: Collection[WorkerId]) -> StagePlan | None:
    if stage.host in lost:
        if stage.shadow is None or stage.shadow in lost:
            return None
        return replace(stage, host=stage.shadow, shadow=None)
    if stage.shadow in lost:
        return replace(stage, shadow=None)
    return stage


def is_fully_shadowed(plan: Plan) -> bool:
    return all(stage.shadow is not None for stage in plan.stages())
