"""A drill: what is rehearsed and what is not, one line a loss, the verdict."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.config import JobConfig
from bamboo_cli.drills.losses import How
from bamboo_cli.drills.promise import promise_of
from bamboo_cli.drills.rehearsal import Drill
from bamboo_cli.drills.verdict import LossFacts, weights_words

COLUMNS = ("step", "what was done", "to", "found by", "after", "recovered by", "pause", "in steps", "run again")
NUMBERS = ("step", "after", "pause", "in steps", "run again")


def intro(job: JobConfig, rehearsed: JobConfig, hows: Sequence[How]) -> str:
    """What is going to happen, before it does."""
    num_pipelines, num_stages = job.fixed_shape
    promise = promise_of(job.fixed_mode, num_pipelines=num_pipelines, num_stages=num_stages)
    instead = f", in place of {job.cloud}" if job.cloud != "local" else ""
    return (
        f"A rehearsal of {job.name}: its shape {job.pipelines} × {job.stages} (pipelines × stages), recipe and "
        f"protection (redundancy {job.redundancy}),\nwith {', '.join(hows)}. It runs on a cloud of processes on this "
        f"machine{instead}, and says nothing\nabout a real cloud, its network or its machines. "
        f"{rehearsed.num_nodes} nodes, one standing by for each loss.\n\n"
        f"Promised: {promise.words}; a noticed node hands over at a step boundary; the weights stay the same."
    )


def drill(found: Drill) -> RenderableType:
    facts, verdict = found.facts, found.verdict
    before, after = facts.undisturbed, facts.disturbed
    lines = [
        "",
        f"usual step   {_milliseconds(facts.usual_step_s)} (median, undisturbed)",
        f"in all       {output.seconds(after.wall_s)}, undisturbed {output.seconds(before.wall_s)}; paused "
        f"{output.seconds(after.pause_s)}, changes of the plan after each loss included",
        f"weights      {weights_words(facts)} ({after.steps} steps, {after.samples} samples)",
    ]
    lines += [f"broken       {sentence}" for sentence in verdict.broken]
    lines += ["", verdict.sentence]
    return Group(_table(found), *(Text(line) for line in lines))


def _table(found: Drill) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left", overflow="fold")
    for facts in found.facts.losses:
        table.add_row(*(Text(cell) for cell in _cells(facts, several=found.num_pipelines > 1)))
    return table


def _cells(facts: LossFacts, *, several: bool) -> Sequence[str]:
    """``several`` pipelines: ``0/1`` is pipeline/stage, as in `bamboo status`."""
    loss = facts.loss
    place = f"{loss.pipeline_index}/{loss.stage_index}" if several else str(loss.stage_index)
    return (
        str(loss.step),
        loss.how if loss.action is None else f"{loss.how} at {loss.action}",
        f"{facts.node_id or '?'}, stage {place}",
        facts.found or "(not shown)",
        "" if facts.found_after_s is None else output.seconds(facts.found_after_s),
        facts.rung or "",
        "" if facts.pause_s is None else output.seconds(facts.pause_s),
        "" if facts.pause_steps is None else f"{facts.pause_steps:.1f}",
        str(facts.steps_rerun),
    )


def _milliseconds(amount_s: float) -> str:
    return f"{amount_s * 1e3:.0f} ms"
