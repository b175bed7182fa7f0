"""A job on a schedule."""

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.cron.shown import Shown


def entry(shown: Shown) -> RenderableType:
    """Its id and schedule, then a line for each thing to know."""
    title = Text(shown.id, style="bold")
    if shown.words:
        title.append(f"  {shown.words} ({shown.schedule}, {shown.starter})", style="not bold")
    table = Table.grid(padding=(0, 2))
    for key, value in _lines(shown):
        table.add_row(Text(f"  {key}", style="dim"), Text(value, overflow="fold"))
    return Group(title, table)


def _lines(shown: Shown) -> list[tuple[str, str]]:
    lines = []
    if shown.next_at is not None:
        lines.append(("next", _when(shown.next_at)))
    if shown.is_on:
        lines.append(("now", "a night is on"))
    if shown.last is not None and shown.last.summary:
        lines.append(("last", f"{_when(shown.last.started_at)}: {shown.last.summary.removeprefix(f'{shown.id}: ')}"))
    elif shown.last is None and shown.schedule:
        lines.append(("last", "no night yet"))
    lines += [(key, value) for key, value in (("job", shown.job), ("log", shown.log)) if value]
    return lines + [("trouble", text) for text in shown.trouble if text]


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%a %Y-%m-%d %H:%M")
