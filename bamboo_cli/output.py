"""How Bamboo talks: results to stdout, everything else to stderr. With ``views``, the only code that imports rich.

rich is imported where it is used, so that ``bamboo --help`` does not pay for it.
"""

import dataclasses
import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bamboo_cli import streams
from bamboo_cli.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    Drawn = tuple[RenderableType, RenderableType]
    """A picture, and what stays of it if it was the last one."""

QUIET_REMINDER_S = 10.0
"""Without a terminal, a long wait says so again this often."""


PIPED_WIDTH = 200
UNBOUNDED_WIDTH = 1_000_000
JSON_WIDTH = 400
"""A node or a stage is a line: `grep` finds it whole."""


def console(*, stderr: bool = False, piped_width: int = PIPED_WIDTH) -> "Console":
    """Colour only on a terminal. Without one, lines are never wrapped: whatever reads them can do that better."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else piped_width
    return Console(file=stream, width=width, highlight=False, emoji=False, soft_wrap=not stream.isatty())


def result(renderable: "RenderableType", *, one_line_a_row: bool = False) -> None:
    """A table or text that was asked for. ``one_line_a_row``: however long, where standard output is no terminal."""
    target = console(piped_width=UNBOUNDED_WIDTH if one_line_a_row else PIPED_WIDTH)
    if target.is_terminal:
        target.print(renderable)
        return
    with target.capture() as captured:
        target.print(renderable)
    for text in captured.get().splitlines():
        line(text.rstrip())  # the cells of a table are padded


def page(renderable: "RenderableType", columns: int) -> str:
    """As HTML, of that width."""
    from rich.console import Console

    target = Console(file=io.StringIO(), width=columns, record=True, highlight=False, emoji=False)
    target.print(renderable)
    return target.export_html()


@contextmanager
def screen(first: "Drawn") -> Iterator[Callable[["Drawn"], None]]:
    """A picture on a screen of its own, drawn over without being wiped, so that nothing flickers; the yielded function
    draws the next one. What shall stay of the last one is left when it ends, and what was said meanwhile after it."""
    from rich.live import Live

    (picture, stays), target, said = first, console(), io.StringIO()
    try:
        with (
            redirect_stderr(said),
            Live(picture, console=target, screen=True, auto_refresh=False, redirect_stderr=False) as live,
        ):

            def show(drawn: "Drawn") -> None:
                nonlocal stays
                picture, stays = drawn
                live.update(picture, refresh=True)

            yield show
    finally:
        target.print(stays)
        print(said.getvalue(), end="", file=sys.stderr, flush=True)


def line(text: str) -> None:
    """One plain line of result."""
    print(text, flush=True)


def note(text: str) -> None:
    """Something to know besides the result. Where nobody can read it (a full disk, a pipe that is closed), the work
    that it is about goes on: nodes have to be given back all the same."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def as_json(value: Any) -> Any:
    """Dataclasses as objects, enums as their values; the same names as in the code."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def json_result(value: Any) -> None:
    """One JSON document, indented for people; what is not too long stays on one line."""
    line("\n".join(_json_lines(as_json(value))))


def _json_lines(value: Any, indent: str = "") -> list[str]:
    whole = _dumped(value)
    if not isinstance(value, dict | list) or len(indent) + len(whole) <= JSON_WIDTH:
        return [whole]
    inner = indent + "  "
    names = [f"{_dumped(name)}: " for name in value] if isinstance(value, dict) else None
    lines = ["{" if names else "["]
    items = list(value.values()) if isinstance(value, dict) else value
    for number, item in enumerate(items):
        first, *rest = _json_lines(item, inner)
        lines += [f"{inner}{names[number] if names else ''}{first}", *rest]
        lines[-1] += "," if number < len(items) - 1 else ""
    return [*lines, indent + ("}" if names else "]")]


def json_line(value: Any) -> None:
    """One JSON document on one line, for programs."""
    line(_dumped(as_json(value)))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=not streams.takes_all_letters())


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what costs money or kills. Raises UsageError when nobody can answer, or the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} Nobody can answer: standard input is no terminal.", next_step="Say yes beforehand with --yes."
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("Not confirmed; nothing was done.")


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is waited for and since when. Call the yielded function on each look, with what is seen."""
    wait = _TerminalWait(what) if sys.stderr.isatty() else _PlainWait(what)
    try:
        yield wait.saw
    finally:
        wait.close()


class _PlainWait:
    """A line at the start, and when something changed or a while has passed."""

    def __init__(self, what: str) -> None:
        self._what, self._seen = what, ""
        self._since = self._told = time.monotonic()
        note(f"waiting for {what}")

    def saw(self, seen: str) -> None:
        now = time.monotonic()
        if seen != self._seen or now - self._told >= QUIET_REMINDER_S:
            self._seen, self._told = seen, now
            note(f"waiting for {self._what}{f': {seen}' if seen else ''} ({now - self._since:.0f} s)")

    def close(self) -> None: ...


class _TerminalWait:
    """One line, rewritten."""

    def __init__(self, what: str) -> None:
        self._what, self._since = what, time.monotonic()
        self.saw("")

    def saw(self, seen: str) -> None:
        elapsed = f"({time.monotonic() - self._since:.0f} s)"
        text = " ".join(part for part in (f"waiting for {self._what}", f"· {seen}" if seen else "", elapsed) if part)
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


# --- one way to spell each kind of value ------------------------------------------------------------------------


def usd(amount: float) -> str:
    """Cents, or as many digits as it takes to show two: ``$12.50``, ``$0.0123``, ``$0.000036``."""
    if amount == 0 or abs(amount) >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.{max(4, 1 - math.floor(math.log10(abs(amount))))}f}"


def loss(amount: float) -> str:
    """Four decimals, or four digits where it has run away: ``2.3456``, ``1.234e+30``, ``nan``."""
    return f"{amount:.4f}" if abs(amount) < 1e6 else f"{amount:.4g}"


MINUTES_A_DAY = 24 * 60
MINUTES_A_YEAR = 365 * MINUTES_A_DAY


def seconds(amount: float) -> str:
    """``25 ms``, ``0.8 s``, ``42 s``, ``3 min 05 s``, ``2 h 07 min``, ``9 days``, ``40 years``, ``over 1000 years``."""
    if 0.0005 <= amount < 0.0995:
        return f"{1000 * amount:.0f} ms"
    if amount < 9.95:
        return f"{amount:.1f} s"
    if amount < 59.5:
        return f"{amount:.0f} s"
    minutes, rest = divmod(round(amount), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    if minutes > 1000 * MINUTES_A_YEAR:
        return "over 1000 years"
    if minutes >= 2 * MINUTES_A_YEAR:
        return f"{minutes / MINUTES_A_YEAR:,.0f} years"
    if minutes >= 2 * MINUTES_A_DAY:
        return f"{minutes / MINUTES_A_DAY:.0f} days"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(num_bytes: float) -> str:
    """``1.25 GB``, ``8.4 MB``"""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def plural(count: int, thing: str) -> str:
    """``1 node``, ``2 nodes``"""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def clock(at: float) -> str:
    """Local time of day."""
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%H:%M:%S")
