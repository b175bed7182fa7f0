"""Losses on purpose that could never happen. Refused is only what no earlier loss could make possible either."""

import re
from collections.abc import Iterator

from bamboo_trainer.plan import Mode, split_microbatches

from bamboo_cli.config import ACTION_PATTERN, DrillConfig, JobConfig

Mistake = tuple[tuple[str | int, ...], str]
"""(key, what is wrong and what to do)"""


def check_drill(job: JobConfig) -> list[Mistake]:
    return [
        (("drill", index, key), text)
        for index, entry in enumerate(job.drill)
        for key, text in (*_check_range(job, entry), *_check_action(job, entry))
    ]


def _check_range(job: JobConfig, entry: DrillConfig) -> Iterator[tuple[str, str]]:
    if entry.step >= job.steps:
        yield "step", f"step {entry.step} never comes: the job's steps are 0 to {job.steps - 1}"
    if entry.node is not None and int(entry.node[1:]) > job.num_nodes and not job.local.replace:
        yield "node", f"there are only the nodes n1 to n{job.num_nodes}, since none is replaced (`local.replace`)"
    if entry.stage is not None and entry.stage >= _most_stages(job):
        yield "stage", f"there are only the stages 0 to {_most_stages(job) - 1}"
    if entry.pipeline >= _most_pipelines(job):
        yield "pipeline", f"there are only the pipelines 0 to {_most_pipelines(job) - 1}"


def _most_stages(job: JobConfig) -> int:
    return job.num_workers if job.stages == "auto" else job.stages


def _most_pipelines(job: JobConfig) -> int:
    return job.num_workers if job.pipelines == "auto" else job.pipelines


def _check_action(job: JobConfig, entry: DrillConfig) -> Iterator[tuple[str, str]]:
    if entry.action is None:
        return
    if action := ACTION_PATTERN.match(entry.action):
        wrong = _out_of_range(job, entry, action) or _never_by_that_stage(job, entry, action)
    else:
        wrong = _never_at(job, entry)
    if wrong:
        yield "action", f"{entry.action}: {wrong}"


def _out_of_range(job: JobConfig, entry: DrillConfig, action: re.Match[str]) -> str:
    microbatch = int(action["microbatch"])
    if int(action["stage"]) >= _most_stages(job):
        return f"there are only the stages 0 to {_most_stages(job) - 1}"
    if microbatch >= job.num_microbatches:
        return f"there are only the microbatches 0 to {job.num_microbatches - 1}"
    most = min(_most_pipelines(job), job.num_microbatches)
    if job.pipelines == "auto" or entry.stage is None or entry.pipeline >= most:
        return ""
    # after losses there may be fewer pipelines, with more microbatches each
    ranges = [split_microbatches(job.num_microbatches, d)[entry.pipeline] for d in range(entry.pipeline + 1, most + 1)]
    if any(microbatch in numbers for numbers in ranges):
        return ""
    return (
        f"pipeline {entry.pipeline} never has microbatch {microbatch}; it has {_span(ranges[-1])}, "
        "since they are counted over all pipelines"
    )


def _span(numbers: range) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _never_by_that_stage(job: JobConfig, entry: DrillConfig, action: re.Match[str]) -> str:
    stage, mode = int(action["stage"]), job.redundancy
    if mode == "auto":
        return ""
    if action["kind"] == "FRC":
        if mode not in (Mode.BUBBLE, Mode.EAGER) or job.stages == 1:
            return f"nobody computes FRC with `redundancy: {mode}` and `stages: {job.stages}`"
        if entry.stage != stage:
            return ""
        shadow = (stage - 1) % _most_stages(job)
        return f"the host of a stage never computes its FRC, its shadow does; take `stage: {shadow}`"
    takes_over = mode.has_shadows and mode.survives_within_step
    if entry.stage in (None, stage) or takes_over:
        return ""
    return f"the host of stage {entry.stage} never runs stage {stage} with `redundancy: {mode}`; take `stage: {stage}`"


def _never_at(job: JobConfig, entry: DrillConfig) -> str:
    every = job.checkpoint.every
    if entry.action == "TAKEOVER" and job.redundancy != "auto" and not job.redundancy.survives_within_step:
        return f"nobody takes a stage over with `redundancy: {job.redundancy}`"
    if entry.action == "TAKEOVER" and job.pipelines == job.stages == 1:
        return "one stage in one pipeline is taken over by nobody"
    if entry.action != "CHECKPOINT" or every == "auto" or entry.step == job.steps - 1 or (entry.step + 1) % every == 0:
        return ""
    nearest = min(job.steps - 1, entry.step // every * every + every - 1)
    return f"step {entry.step} is not saved with `checkpoint.every: {every}`; the next that is saved is step {nearest}"
