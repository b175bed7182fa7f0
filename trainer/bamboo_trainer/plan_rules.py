"""The rules of a plan that every executor relies on. Whoever makes plans keeps them; tests see to that."""

from bamboo_trainer.plan import Plan, StagePlan


def check_plan(plan: Plan) -> None:
    """Raises ValueError when the plan breaks a rule that every executor relies on."""
    ids = plan.worker_ids()
    if len(set(ids)) != len(ids):
        raise ValueError(f"plan {plan.generation} lists a worker twice")
    next_microbatch = 0
    for d, pipeline in enumerate(plan.pipelines):
        if pipeline.first_microbatch != next_microbatch or not pipeline.microbatches:
            raise ValueError(f"plan {plan.generation}: microbatches of pipeline {d} leave a gap or are empty")
        next_microbatch = pipeline.end_microbatch
        next_layer = 0
        for s, stage in enumerate(pipeline.stages):
            if (
                (stage.pipeline_index, stage.stage_index) != (d, s)
                or stage.first_layer != next_layer
                or not stage.layers
            ):
                raise ValueError(f"plan {plan.generation}: stage {s} of pipeline {d} is out of place")
            next_layer = stage.end_layer
            if not set(stage.holders) <= set(ids):
                raise ValueError(f"plan {plan.generation}: stage {s} of pipeline {d} is given to a stranger")
            if len(set(stage.holders)) != len(stage.holders):
                raise ValueError(f"plan {plan.generation}: stage {s} of pipeline {d} has a holder twice")
            _check_parts(plan, stage)
        if next_layer != plan.num_layers:
            raise ValueError(f"plan {plan.generation}: pipeline {d} has {next_layer} layers, not {plan.num_layers}")


def _check_parts(plan: Plan, stage: StagePlan) -> None:
    parts = plan.parts_of(stage)
    covered = [m for part in parts for m in part.microbatches]
    if covered != list(plan.pipelines[stage.pipeline_index].microbatches) or not all(p.microbatches for p in parts):
        raise ValueError(f"plan {plan.generation}: parts of stage {stage.stage_index} leave a gap or are empty")
    if parts[0].host != stage.host:
        raise ValueError(f"plan {plan.generation}: stage {stage.stage_index} is hosted by another than its first part")
    for part in parts:
        if not set(stage.layers) <= set(plan.layers_of(part.host)):
            raise ValueError(f"plan {plan.generation}: {part.host} lacks layers of stage {stage.stage_index}")
