"""README.md and docs/*.md as readers see them: code blocks, commands, links."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
SHELL = ("", "bash", "console")
_FENCED = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]+) -->\n)?```(?P<language>[a-z]*)(?P<more>[^\n]*)\n(?P<text>.*?)^```", re.M | re.S
)
_ENDS_COMMAND = ("|", "||", "&&", ";", ">", ">>", "<", "2>&1", "&")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: str
    line: int
    language: str
    title: str
    """What file it is (```` ```yaml title="job.yaml" ````)."""
    mark: str
    """Of a comment right above it, such as ``runs``: what a test does with it."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(*languages: str, mark: str | None = None) -> list[Block]:
    """Of all pages, in these languages."""
    return [
        block
        for page in PAGES
        for block in blocks_of(page)
        if block.language in languages and mark in (None, block.mark)
    ]


def blocks_of(page: str) -> Iterator[Block]:
    text = read(page)
    for found in _FENCED.finditer(text):
        title = re.search(r'title="([^"]+)"', found["more"])
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            title=title[1] if title else "",
            mark=found["mark"] or "",
            text=found["text"],
        )


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `bamboo …` of a shell's lines, in pipes and after variables too."""
    for line in text.replace("\\\n", " ").splitlines():
        words = _words(line)
        for start, word in enumerate(words):
            before = words[start - 1] if start else ";"
            if word == "bamboo" and (before in _ENDS_COMMAND or re.fullmatch(r"[A-Z_]+=\S*", before)):
                rest = words[start + 1 :]
                end = next((index for index, part in enumerate(rest) if part in _ENDS_COMMAND), len(rest))
                yield rest[:end]


def _words(line: str) -> list[str]:
    """A line of crontab without its five fields; comments are left out."""
    line = re.sub(r"^(\$ |(?:[\d*/,-]+ ){5})", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a drawing, no command
        return []
