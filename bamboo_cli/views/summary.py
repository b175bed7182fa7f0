"""How a run went."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.training import RunSummary
from bamboo_cli.views.bill import cost_line


def summary(run: RunSummary) -> RenderableType:
    """The run, its losses, what happened to it, what it cost, where the model is."""
    table = Table.grid(padding=(0, 2))
    for key, value in _lines(run):
        table.add_row(Text(key, style="dim"), Text(value, overflow="fold"))
    return table


def _lines(run: RunSummary) -> list[tuple[str, str]]:
    lines = [("run", f"{run.run_id}: {run.state}")]  # why it did not end well is told as an error
    lines.append(("steps", f"{run.steps}, {run.samples} samples in {output.seconds(run.wall_s)}"))
    if run.first_loss is not None and run.final_loss is not None:
        lines.append(("loss", f"{output.loss(run.first_loss)} at first, {output.loss(run.final_loss)} at last"))
    lines.append(
        (
            "survived",
            f"{output.plural(run.preemptions, 'preemption')} by {output.plural(run.failovers, 'failover')}, "
            f"{output.plural(run.reconfigurations, 'reconfiguration')}, {output.plural(run.restores, 'restore')}; "
            f"{output.plural(run.steps_rerun, 'step')} run again; paused {output.seconds(run.pause_s)} in all",
        )
    )
    lines.append(("cost", cost_line(run.cost_usd, run.on_demand_usd, run.on_demand_note).removeprefix("cost ")))
    lines += [("drill", f"never struck: {entry}") for entry in run.drills_missed]
    if run.checkpoint_step is not None:
        lines.append(("checkpoint", f"of step {run.checkpoint_step} in {run.checkpoint_url}"))
    if run.model_url:
        lines.append(("model", run.model_url))
    if run.weights_sha256:
        lines.append(("weights", f"sha256 {run.weights_sha256}"))
    return lines
