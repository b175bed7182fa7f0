"""The pictures of docs/pictures, drawn from state files: ``python -m tests.cli.pictures`` (or ``make docs``)."""

import io
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

from bamboo_cli import stories
from bamboo_cli.views import story
from bamboo_cli.views.screen import Screen
from tests.cli import scenes

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
FOREGROUND = (214, 217, 222)
COLOURS = [
    (60, 64, 72),
    (235, 98, 98),
    (122, 200, 122),
    (229, 192, 95),
    (97, 160, 235),
    (205, 130, 220),
    (86, 190, 195),
]
THEME = TerminalTheme((24, 26, 31), FOREGROUND, [*COLOURS, FOREGROUND])
PLAIN_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: "DejaVu Sans", Arial, sans-serif; font-size: 16px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Without fonts from the net."""
NOTE = "Ctrl-C ends this view, and nothing else"


def drawings(home: Path) -> dict[str, tuple[RenderableType, int, int, str]]:
    """By name: what, how wide, how high, under which title."""
    small, wide = scenes.storm(home / "small"), scenes.storm(home / "wide", wide=True)
    told = stories.read_losses(scenes.healed(home), "latest", None)
    return {
        "live": (Screen(small, scenes.NOW, NOTE), 100, 24, "bamboo status --watch"),
        "narrow": (Screen(small, scenes.NOW, NOTE), 44, 16, "bamboo status --watch"),
        "wide": (Screen(wide, scenes.NOW, NOTE), 100, 40, "bamboo status --watch"),
        "loss": (story.losses(told), 100, 24, "bamboo events --loss latest"),
    }


def svg(what: RenderableType, width: int, height: int, title: str) -> str:
    console = Console(
        file=io.StringIO(), width=width, height=height, record=True, force_terminal=True, color_system="standard",
        highlight=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    console.print(what)
    return console.export_svg(title=title, theme=THEME, code_format=PLAIN_SVG, unique_id="bamboo")


def words(picture: str) -> list[str]:
    """What an SVG says, whatever version of rich drew it."""
    return re.sub(r"<style>.*?</style>|<[^>]*>|&#160;|\s", " ", picture, flags=re.DOTALL).split()


def draw() -> dict[str, str]:
    """All of them, at a fixed time in a fixed time zone."""
    with tempfile.TemporaryDirectory() as home, _utc():
        return {name: svg(*drawing) for name, drawing in drawings(Path(home)).items()}


@contextmanager
def _utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, picture in draw().items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
