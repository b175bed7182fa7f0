"""The story: what happened, in order."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import StoryEvent


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
