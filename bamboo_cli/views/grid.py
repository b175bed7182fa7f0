"""The pipelines as a grid: a row each, a column for each stage, the node that runs it and how it is.

Every state has a sign of its own, so that nothing hangs on colour. Too wide or too high, the grid shows signs alone.
"""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from bamboo_cli.health import Health, Place
from bamboo_cli.views.lines import Styled, joined

Pipelines = Sequence[Sequence[Place]]

SIGNS = {
    Health.WELL: "●",
    Health.BARE: "○",
    Health.DOUBLED: "◐",
    Health.SILENT: "?",
    Health.GOING: "▲",
    Health.LOST: "✕",
}
STYLES = {
    Health.WELL: "green",
    Health.BARE: "yellow",
    Health.DOUBLED: "yellow",
    Health.SILENT: "magenta",
    Health.GOING: "bold yellow",
    Health.LOST: "bold red",
}
MEANINGS = {
    Health.WELL: "runs",
    Health.BARE: "has no shadow",
    Health.DOUBLED: "runs two stages",
    Health.SILENT: "silent",
    Health.GOING: "will be taken",
    Health.LOST: "lost",
}
GAP = 2
COUNTDOWN = " 120s"
"""As long as a notice can be."""


def named(pipelines: Pipelines, width: int) -> list[Text] | None:
    """With the nodes' names, a line for each pipeline; None where that is too wide. Where there is room, every cell has
    some for a countdown: a notice then moves nothing."""
    cells = [[_cell(place) for place in pipeline] for pipeline in pipelines]
    names = [[f"{SIGNS[Health.WELL]} {place.node_id}" for place in pipeline] for pipeline in pipelines]
    titles = [("stage " if index == 0 else "") + str(index) for index in range(max(map(len, pipelines)))]
    label = len(_label(len(pipelines) - 1)) + GAP
    for room in (len(COUNTDOWN), 0):
        widths = [
            max(
                len(title),
                *(
                    max(len(row[i].text), len(name[i]) + room)
                    for row, name in zip(cells, names, strict=True)
                    if i < len(row)
                ),
            )
            for i, title in enumerate(titles)
        ]
        if label + sum(widths) + GAP * (len(widths) - 1) <= width:
            break
    else:
        return None
    gap = " " * GAP
    header = Text(" " * label + gap.join(map(str.ljust, titles, widths)).rstrip(), style="dim")
    return [header, *(_named_row(number, row, widths, label) for number, row in enumerate(cells))]


def _named_row(number: int, cells: Sequence[Styled], widths: Sequence[int], label: int) -> Text:
    line = Text(_label(number).ljust(label), style="", no_wrap=True)
    for cell, width in zip(cells, widths, strict=False):
        line.append(cell.text, cell.style)
        line.append(" " * (width - len(cell.text) + GAP))
    line.rstrip()
    return line


def _cell(place: Place) -> Styled:
    left = "" if place.left_s is None else f" {place.left_s:.0f}s"
    return Styled(f"{SIGNS[place.health]} {place.node_id}{left}", STYLES[place.health])


def signs(pipelines: Pipelines, width: int) -> list[Text] | None:
    """Signs alone, as many pipelines on a line as fit; None where not even one does."""
    label = len(_label(len(pipelines) - 1)) + 1
    block = label + max(map(len, pipelines))
    if block > width:
        return None
    a_line = max(1, (width + GAP) // (block + GAP))
    lines = []
    for begin in range(0, len(pipelines), a_line):
        line = Text(no_wrap=True)
        for number in range(begin, min(begin + a_line, len(pipelines))):
            line.append(("" if number == begin else " " * GAP) + _label(number).ljust(label), "dim")
            for place in pipelines[number]:
                line.append(SIGNS[place.health], STYLES[place.health])
            line.append(" " * (block - label - len(pipelines[number])))
        line.rstrip()
        lines.append(line)
    return lines


def counted(pipelines: Pipelines, width: int) -> Text:
    """``25 × 8 stages: ● 197 runs, ▲ 2 will be taken``"""
    count = Counter(place.health for pipeline in pipelines for place in pipeline)
    depths = sorted({len(pipeline) for pipeline in pipelines})
    shape = f"{len(pipelines)} × {' or '.join(map(str, depths))} stages"
    worst_first = [health for health in reversed(Health) if count[health]]
    parts = [Styled(f"{SIGNS[h]} {count[h]} {MEANINGS[h]}", STYLES[h]) for h in worst_first]
    return joined([shape, *parts], width)


def legend(pipelines: Pipelines, width: int) -> Text:
    """Of the signs that are on the screen, the worst first: what does not fit is what matters least."""
    there = {place.health for pipeline in pipelines for place in pipeline}
    parts = [Styled(f"{SIGNS[h]} {MEANINGS[h]}", STYLES[h]) for h in reversed(Health) if h in there]
    return joined(parts, width, separator="   ")


def _label(number: int) -> str:
    return f"p{number}"
