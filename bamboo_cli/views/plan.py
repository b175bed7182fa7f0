"""What a job would look like."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from bamboo_trainer.grid import LEGEND
from bamboo_trainer.plan import Mode
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.preview import PlacedNode, PlacedWorker, Preview
from bamboo_cli.recipe_check import Model
from bamboo_cli.views.lines import Column, in_ascii, table

TIMES_ASSUMED = (
    "what each protection costs, and what a loss comes to under it: layers are taken to be equally fast, messages and "
    "sums to take no time; memory is the fullest worker's, the framework itself aside; at once: so many losses "
    "together it survives, wherever they fall"
)
LABEL = len("bubbles: ")
PLACEMENT = (
    Column("node", 0),
    Column("zone", 3),
    Column("runs", 0),
    Column("shadows", 4),
    Column("activations", 1),
    Column("spot/h", 2),
)
PROTECTIONS = (
    Column("protection", 0),
    Column("step time", 5),
    Column("memory", 3),
    Column("after a loss", 1),
    Column("at once", 2),
    Column("fatal once in", 4),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Placement, the schedule as a grid, bubbles, price per hour, and what to be aware of. For rich, which says how
    wide it may be."""

    found: Preview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = _lines(self.found, options.max_width)
        yield from map(in_ascii, lines) if options.ascii_only else lines


def plan(found: Preview) -> Plan:
    return Plan(found)


def _lines(found: Preview, width: int) -> Iterator[Text]:
    yield from _wrapped(
        f"{_shape(found)}, {found.num_microbatches} microbatches of {found.microbatch_size} samples a step, "
        f"redundancy {' and '.join(found.modes)}",
        width,
    )
    if found.model:
        yield from _wrapped(_model(found.model), width)
    yield Text()
    yield from _placement(found, width)
    yield Text()
    yield from _schedule(found, width)
    yield Text()
    share = f"{found.bubble_share:.0%} of the time, if all stages take equally long{_redundant(found)}"
    yield from _labelled("bubbles", share, width)
    yield from _labelled("losses", _survival(found), width)
    yield from _labelled(
        "price",
        f"{output.usd(found.spot_usd_per_hour)} per hour on spot, "
        f"{output.usd(found.on_demand_usd_per_hour)} on demand (prices: {', '.join(found.price_sources)})",
        width,
    )
    yield Text()
    yield from _wrapped(TIMES_ASSUMED, width)
    yield from _protections(found, width)
    yield Text()
    yield from _labelled("auto", found.auto.reason, width)
    for warning in found.warnings:
        yield from _labelled("note", warning, width, style="yellow")


def _wrapped(text: str, width: int) -> list[Text]:
    return [Text(line) for line in textwrap.wrap(text, width)]


def _labelled(label: str, text: str, width: int, *, style: str = "") -> list[Text]:
    """What does not fit stands below its begin, not below the label."""
    first = f"{label}:".ljust(LABEL)
    lines = textwrap.wrap(text, max(width, 2 * LABEL), initial_indent=first, subsequent_indent=" " * LABEL)
    return [Text(line, style=style) for line in lines]


def _shape(found: Preview) -> str:
    if len(set(found.num_stages)) == 1:
        return f"{found.num_pipelines} × {found.num_stages[0]} (pipelines × stages)"
    return f"{found.num_pipelines} pipelines of {' and '.join(map(str, found.num_stages))} stages"


def _protections(found: Preview, width: int) -> Iterator[Text]:
    """In groups by what a loss comes to, which is too long for a column."""
    rows = [
        (
            f"  {price.mode}{f', level {price.level}' if price.level > 1 else ''}",
            f"× {price.step_ratio:.2f}",
            _bytes(price.memory_bytes) + (f" + {_bytes(price.host_bytes)} host" if price.host_bytes else ""),
            _bytes(price.peak_bytes) + ("" if price.fits else " too much"),
            str(price.losses_survived),
            output.seconds(3600.0 * price.hours_between_fatal),
        )
        for price in found.protections
    ]
    head, *lines = table(PROTECTIONS, _to_the_right(PROTECTIONS, rows), [""] * len(rows), width)
    yield head
    for rung, group in groupby(zip(found.protections, lines, strict=True), key=lambda pair: pair[0].survived_by):
        yield Text(rung, style="dim")
        yield from (line for _, line in group)


def _to_the_right(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """All cells but the first, below each other's ends and the title's."""
    widths = [max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


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


def _placement(found: Preview, width: int) -> list[Text]:
    rows = [
        (
            _name(node, worker),
            node.zone,
            _stage(found, worker),
            _shadows(worker.shadows_stages),
            "" if worker.stage_index is None else f"{worker.peak_activations} × microbatch",
            "" if index else output.usd(node.spot_usd_per_hour),
        )
        for node in found.nodes
        for index, worker in enumerate(node.workers)
    ]
    return table(PLACEMENT, rows, [""] * len(rows), width)


def _shadows(stages: Iterable[int]) -> str:
    return ", ".join(f"stage {stage_index}" for stage_index in stages)


def _name(node: PlacedNode, worker: PlacedWorker) -> str:
    """The node's, or of several on it the worker's."""
    return node.node_id if len(node.workers) == 1 else worker.worker_id


def _stage(found: Preview, worker: PlacedWorker) -> str:
    if worker.stage_index is None:
        return "(stands by)"
    pipeline = f" of pipeline {worker.pipeline_index}" if found.num_pipelines > 1 else ""
    return f"stage {worker.stage_index}{pipeline}"


def _schedule(found: Preview, width: int) -> list[Text]:
    """The grid is never wrapped: what does not fit is cut off, with an ellipsis."""
    working = {_name(node, worker): worker.schedule for node in found.nodes for worker in node.workers}
    longest = max(map(len, working))
    lines = [f"{name.ljust(longest)}  {schedule}" for name, schedule in working.items() if schedule]
    return _wrapped(f"one step: {LEGEND}", width) + [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


def _redundant(found: Preview) -> str:
    if found.redundant_share is None:
        return ""
    where = "are computed every step" if Mode.EAGER in found.modes else "fit into them"
    return f"; {found.redundant_share:.0%} of the redundant forwards {where}"
