"""The live view: one screen, whatever its size. ``FALLS_AWAY`` is what a small one lacks first; docs/terminal.md."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from bamboo_cli import health, output
from bamboo_cli.views import blocks, grid
from bamboo_cli.views.lines import in_ascii, joined
from bamboo_cli.views.story import event_line

if TYPE_CHECKING:
    from bamboo_cli.coordinator.looking import Look

STORY_LINES = (5, 3, 1, 0)
SHORT_STORY_WIDTH = 60
"""Narrower, an event is told without its seconds."""
ON_SCREEN = (
    *("title", "trouble", "run", "figures", "money", "counts", "gap"),
    *("grid", "legend", "others", "alerts", "gap", "story"),
)
FALLS_AWAY = (
    *("legend", "gap", "story", "counts", "grid", "others", "story", "alerts", "figures", "trouble"),
    *("grid", "story", "money", "others", "alerts", "run"),
)
"""Each time it is named, a block gives way to its next smaller form, the last of which may be nothing."""

Form = Sequence[Text]


@dataclass(frozen=True, slots=True)
class Screen:
    """For rich, which says how large it may be."""

    look: "Look"
    now: float
    note: str = ""
    """How to end it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or options.max_height
        lines = picture(self.look, self.now, options.max_width, height, self.note)
        yield from map(in_ascii, lines) if options.ascii_only else lines


def picture(look: "Look", now: float, width: int, height: int, note: str = "") -> list[Text]:
    """Lines, none of them wider than ``width``, and no more than ``height``."""
    forms = dict(_forms(look, now, width))
    chosen = dict.fromkeys(forms, 0)
    for name in FALLS_AWAY:
        if _height(forms, chosen) <= height:
            break
        chosen[name] = min(chosen[name] + 1, len(forms[name]) - 1)
    lines: list[Text] = []
    for line in (line for name in ON_SCREEN for line in forms[name][chosen[name]]):
        if line.plain or (lines and lines[-1].plain):  # where a block is empty, one gap is enough
            lines.append(line)
    if note and len(lines) + 2 <= height:
        lines += [Text(), Text(note, style="dim")]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _height(forms: dict[str, Sequence[Form]], chosen: dict[str, int]) -> int:
    return sum(len(forms[name][chosen[name]]) for name in ON_SCREEN)


def _forms(look: "Look", now: float, width: int) -> Iterator[tuple[str, Sequence[Form]]]:
    """Of each block, the largest form first."""
    cluster, run = look.cluster, look.cluster.run
    pipelines = health.pipelines(cluster, now)
    yield "title", [[blocks.title(cluster, now, width)]]
    trouble = [Text(line, style="yellow") for line in blocks.trouble(cluster, now)]
    yield "trouble", [_wrapped(trouble, width), trouble[:1]]
    yield "gap", [[Text()], []]
    if run is None:
        yield "run", [[Text("no run yet")]]
        yield from ((name, [[]]) for name in ("figures", "counts"))
    else:
        yield "run", [[blocks.run_line(cluster, run, width)]]
        yield "figures", [blocks.figures(run, look.series, width), [blocks.short_figures(run, width)]]
        yield "counts", [[blocks.counts_line(run, width)], []]
    yield "money", [[blocks.money_line(cluster, width)], []]
    if pipelines:
        named, signs = grid.named(pipelines, width), grid.signs(pipelines, width)
        counted = [grid.counted(pipelines, width)]
        yield "grid", [named or signs or counted, signs or counted, counted]
        all_well = all(place.health is health.Health.WELL for pipeline in pipelines for place in pipeline)
        yield "legend", [[] if all_well else [grid.legend(pipelines, width)], []]
    else:
        yield from ((name, [[]]) for name in ("grid", "legend"))
    yield "others", [blocks.others(cluster, pipelines, width), [blocks.others_counted(cluster, pipelines, width)], []]
    yield "alerts", [blocks.alerts(cluster, now, width), blocks.short_alerts(cluster, now, width), []]
    story = [_told(event_line(event), width) for event in look.story]
    yield "story", [story[-num:] if num else [] for num in STORY_LINES]


def _told(line: str, width: int) -> Text:
    """``12:03:04  n3 …``, or ``12:03 n3 …`` where that is too wide."""
    if width < SHORT_STORY_WIDTH:
        line = f"{line[:5]} {line[10:]}"
    return Text(line, style="dim")


def _wrapped(lines: Iterable[Text], width: int) -> list[Text]:
    console = Console(width=width)
    return [part for line in lines for part in line.wrap(console, width)]


def summary_line(look: "Look") -> str:
    """All of it in one line, for where there is no terminal."""
    cluster, run = look.cluster, look.cluster.run
    there = health.present(cluster)
    nodes = f"{output.plural(len(there), 'node')}, {cluster.wanted_nodes} wanted"
    cost = f"cost {output.usd(cluster.spot_microusd / 1e6)}"
    if run is None:
        return joined([f"cluster {cluster.name}: {cluster.state}", nodes, cost]).plain
    figures = blocks.short_figures(run, None).plain
    steps = f"{run.committed_steps} of {run.num_steps} steps"
    return joined([f"run {run.run_id}: {run.state}", steps, *([figures] if figures else []), nodes, cost]).plain
