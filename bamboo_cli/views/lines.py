"""Lines that fit: parts that stand in the order of their weight, and tables that lose columns, never words."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from bamboo_cli.streams import ASCII

SEPARATOR = " · "
GAP = "  "
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Styled:
    """A word or two, and how they are shown; what the style says, the words say as well."""

    text: str
    style: str = ""


Part = str | Styled


def joined(parts: Sequence[Part], width: int | None = None, separator: str = SEPARATOR) -> Text:
    """On one line; of parts that do not fit ``width``, the last are left out. The first is cut off if it must be."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for number, part in enumerate(parts):
        text, style = (part.text, part.style) if isinstance(part, Styled) else (part, "")
        between = separator if number else ""
        if width is not None and number and line.cell_len + len(between) + len(text) > width:
            break
        line.append(between)
        line.append(text, style)
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def in_ascii(line: Text) -> Text:
    """As long as before, so that styles stay where they are."""
    line.plain = line.plain.translate(ASCII).encode("ascii", "replace").decode("ascii")
    return line


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    weight: int
    """Columns of little weight are left out first; those of 0 never are."""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], notes: Sequence[str], width: int | None
) -> list[Text]:
    """As many columns as fit. A note stands behind its row, or in lines below it where it does not fit."""
    widths = [max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)]
    shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    while width is not None and sum(widths[i] + len(GAP) for i in shown) - len(GAP) > width:
        spare = [i for i in shown if columns[i].weight]
        if not spare:
            break
        shown.remove(min(spare, key=lambda i: columns[i].weight))
    lines = [Text(GAP.join(columns[i].title.ljust(widths[i]) for i in shown).rstrip(), style="bold")]
    for row, note in zip(rows, notes, strict=True):
        padded = GAP.join(row[i].ljust(widths[i]) for i in shown)
        lines += _with_note(padded, note, width)
    return lines


def _with_note(row: str, note: str, width: int | None) -> list[Text]:
    if not note:
        return [Text(row.rstrip())]
    if width is None or len(row) + len(GAP) + len(note) <= width:
        return [Text.assemble(row, GAP, (note, "dim"))]
    below = textwrap.wrap(note, max(1, width - len(INDENT)))
    return [Text(row.rstrip()), *(Text(INDENT + part, style="dim") for part in below)]
