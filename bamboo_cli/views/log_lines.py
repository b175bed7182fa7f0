"""Lines of logs behind the name of who says them: in a colour of its own on a terminal, plain elsewhere."""

import re
import zlib
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from bamboo_cli import output

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
BAD = re.compile(r"\b(ERROR|CRITICAL|WARNING|Traceback)\b|\b\d\d:\d\d:\d\d,\d+ [EW] ")
"""Of what Python's logging writes, and the workers' short form of it."""


@dataclass(slots=True)
class LogLines:
    width: int
    """Of the names; grows with them."""
    wanted: re.Pattern[str] | None = None
    console: Console = field(default_factory=output.console)

    def show(self, source: str, text: str) -> None:
        self.width = max(self.width, len(source))
        prefix = source.ljust(self.width)
        if not self.console.is_terminal:
            output.line(f"{prefix}  {text}")
            return
        line = Text(text, style="bold red" if BAD.search(text) else "")
        if self.wanted is not None:
            line.highlight_regex(self.wanted, "reverse")
        colour = COLOURS[zlib.crc32(source.encode()) % len(COLOURS)]
        self.console.print(Text.assemble((prefix, colour), "  ", line), soft_wrap=True)
