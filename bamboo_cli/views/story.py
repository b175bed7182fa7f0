"""The story: what happened, in order; and each loss by itself, step by step."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import StoryEvent
    from bamboo_cli.incidents import Told


def event_line(event: "StoryEvent") -> str:
    """``12:03:04  n3: the cloud took the node``, without a node or step that the text names itself."""
    named = set(re.findall(r"\w+", event.text))
    where = f"{event.node_id}: " if event.node_id and event.node_id not in named else ""
    when = f" (step {event.step})" if event.step is not None and str(event.step) not in named else ""
    return f"{output.clock(event.at)}  {where}{event.text}{when}"


def events(story: Sequence["StoryEvent"]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column, justify in (("time", "left"), ("event", "left"), ("node", "left"), ("step", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    for event in story:
        step = "" if event.step is None else str(event.step)
        cells = (output.clock(event.at), event.kind, event.node_id or "", step, event.text)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def losses(found: Sequence["Told"]) -> RenderableType:
    """Each with a headline, its moments since the first sign, and what it came to."""
    parts: list[RenderableType] = []
    for told in found:
        parts += [Text(), *_loss(told)] if parts else _loss(told)
    return Group(*parts) if parts else Text("no loss is on record")


def _loss(told: "Told") -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, show_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for moment in told.moments:
        style = "dim" if moment.is_commit else ""
        since = f"{moment.after_s:+.2f} s"
        table.add_row(Text(since), Text(_precise(moment.at), style="dim"), Text(moment.text, style=style))
    return [Text(_headline(told), style="bold"), table, Text(_outcome(told))]


def _headline(told: "Told") -> str:
    """``n3 was taken without notice at 12:03:04, in step 17``"""
    loss = told.loss
    what = "was noticed" if loss.noticed else "was taken without notice" if loss.taken else "was lost"
    step = f", in step {told.step}" if told.step is not None else ""
    return f"{loss.node_id} {what} at {output.clock(loss.begins_at)}{step}"


def _outcome(told: "Told") -> str:
    loss, parts = told.loss, []
    if told.late_s is not None:
        parts.append(f"{told.late_s:.2f} s late")
    parts.append(f"{output.plural(told.steps_rerun, 'step')} run again")
    if loss.healed_at is not None:
        parts.append(f"whole again after {output.seconds(loss.healed_at - loss.begins_at)}")
    else:
        parts.append("not made whole again")
    return f"in all: {', '.join(parts)}"


def _precise(at: float) -> str:
    """Local time of day with milliseconds."""
    return f"{output.clock(at)}{f'{at % 1:.3f}'[1:] if at % 1 < 0.9995 else '.999'}"
