"""What a job would look like."""

from bamboo_trainer.grid import LEGEND
from bamboo_trainer.plan import Mode
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.preview import PlacedNode, PlacedWorker, Preview
from bamboo_cli.recipe_check import Model

TIMES_ASSUMED = (
    "what each protection costs: layers are taken to be equally fast, messages and sums to take no time; memory is the "
    "fullest worker's, the framework itself aside"
)


def plan(found: Preview) -> RenderableType:
    """Placement, the schedule as a grid, bubbles, price per hour, and what to be aware of."""
    parts: list[RenderableType] = [
        Text(
            f"{_shape(found)}, {found.num_microbatches} microbatches of {found.microbatch_size} samples a step, "
            f"redundancy {' and '.join(found.modes)}"
        ),
        *([Text(_model(found.model))] if found.model else []),
        Text(""),
        _placement(found),
        Text(""),
        *_schedule(found),
        Text(""),
        Text(f"bubbles: {found.bubble_share:.0%} of the time, if all stages take equally long{_redundant(found)}"),
        Text(f"losses:  {_survival(found)}"),
        Text(
            f"price:   {output.usd(found.spot_usd_per_hour)} per hour on spot, "
            f"{output.usd(found.on_demand_usd_per_hour)} on demand (prices: {', '.join(found.price_sources)})"
        ),
    ]
    parts += [Text(""), Text(TIMES_ASSUMED), _protections(found), Text(""), Text(f"auto:    {found.auto.reason}")]
    parts += [Text(f"note:    {warning}", style="yellow") for warning in found.warnings]
    return Group(*parts)


def _shape(found: Preview) -> str:
    if len(set(found.num_stages)) == 1:
        return f"{found.num_pipelines} × {found.num_stages[0]} (pipelines × stages)"
    return f"{found.num_pipelines} pipelines of {' and '.join(map(str, found.num_stages))} stages"


def _protections(found: Preview) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("protection")
    for name in ("step time", "memory", "after a loss", "losses at once"):
        table.add_column(name, justify="right")
    table.add_column("a loss comes to")
    table.add_column("fatal about once in", justify="right")
    for price in found.protections:
        table.add_row(
            f"{price.mode}{f', level {price.level}' if price.level > 1 else ''}",
            f"× {price.step_ratio:.2f}",
            _bytes(price.memory_bytes) + (f" + {_bytes(price.host_bytes)} host" if price.host_bytes else ""),
            _bytes(price.peak_bytes) + ("" if price.fits else " too much"),
            str(price.losses_survived),
            price.survived_by,
            output.seconds(3600.0 * price.hours_between_fatal),
        )
    return table


def _bytes(number: int | None) -> str:
    return "?" if number is None else output.size(number)


def _survival(found: Preview) -> str:
    every = output.seconds(3600.0 / found.hazard)
    rare = output.seconds(3600.0 * found.hours_between_fatal)
    zones = ", ".join(found.zones_that_matter)
    alone = f"zone {zones} going at once would do it" if zones else "no zone going at once would do it"
    return f"with a loss per node every {every}, all holders of a layer go together about once in {rare}; {alone}"


def _model(model: Model) -> str:
    return (
        f"{model.num_parameters:,} parameters in {len(model.layer_names)} layers; "
        f"{model.num_samples:,} samples to learn from"
    )


def _placement(found: Preview) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("node")
    table.add_column("zone", overflow="fold")
    table.add_column("runs")
    table.add_column("shadows")
    table.add_column("activations", justify="right")
    table.add_column("spot/h", justify="right")
    for node in found.nodes:
        for index, worker in enumerate(node.workers):
            table.add_row(
                _name(node, worker),
                node.zone,
                _stage(found, worker),
                ", ".join(f"stage {stage_index}" for stage_index in worker.shadows_stages),
                "" if worker.stage_index is None else f"{worker.peak_activations} × microbatch",
                "" if index else output.usd(node.spot_usd_per_hour),
            )
    return table


def _name(node: PlacedNode, worker: PlacedWorker) -> str:
    """The node's, or of several on it the worker's."""
    return node.node_id if len(node.workers) == 1 else worker.worker_id


def _stage(found: Preview, worker: PlacedWorker) -> str:
    if worker.stage_index is None:
        return "(stands by)"
    pipeline = f" of pipeline {worker.pipeline_index}" if found.num_pipelines > 1 else ""
    return f"stage {worker.stage_index}{pipeline}"


def _schedule(found: Preview) -> list[RenderableType]:
    """The grid is never wrapped: what does not fit is cut off, with an ellipsis."""
    working = {_name(node, worker): worker.schedule for node in found.nodes for worker in node.workers}
    width = max(map(len, working))
    lines = [f"{name.ljust(width)}  {schedule}" for name, schedule in working.items() if schedule]
    parts: list[RenderableType] = [Text(f"one step: {LEGEND}")]
    return parts + [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


def _redundant(found: Preview) -> str:
    if found.redundant_share is None:
        return ""
    where = "are computed every step" if Mode.EAGER in found.modes else "fit into them"
    return f"; {found.redundant_share:.0%} of the redundant forwards {where}"
