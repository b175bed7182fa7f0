"""The messages of errors as the sources spell them, with `…` for what varies."""

import ast
import re
from functools import cache
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("bamboo_cli", "agent/bamboo_agent", "trainer/bamboo_trainer")
TREES = ("BambooError", "RecipeError")
"""Whose messages, and those of classes below them, end a command."""
VARIES = "…"


@cache
def modules() -> dict[Path, ast.Module]:
    return {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@cache
def raised() -> tuple[tuple[str, str], ...]:
    """Where, and the first line of the message; one for each way in which a condition spells it."""
    names = _error_classes()
    return tuple(
        (f"{path}:{node.lineno}", text.partition("\n")[0])
        for path, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and node.args and _name(node.func) in names
        for text in _spellings(node.args[0])
    )


@cache
def spelt_anywhere() -> frozenset[str]:
    """Every text of the sources, raised or not: some errors are put together elsewhere."""
    return frozenset(
        text.partition("\n")[0]
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for text in _spellings(node)
    )


def _error_classes() -> set[str]:
    found, before = set(TREES), 0
    while len(found) > before:
        before = len(found)
        found |= {
            node.name
            for module in modules().values()
            for node in ast.walk(module)
            if isinstance(node, ast.ClassDef) and any(_name(base) in found for base in node.bases)
        }
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _spellings(node: ast.expr) -> list[str]:
    found = [re.sub(f"{VARIES}+", VARIES, text) for text in _all(node)]
    return list(dict.fromkeys(found))


def _all(node: ast.expr) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(words) for words in product(*map(_all, parts))]
        case ast.FormattedValue(value=ast.IfExp() as inner):
            return _all(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [first + second for first in _all(left) for second in _all(right)]
        case ast.IfExp(body=one, orelse=other):
            return [*_all(one), *_all(other)]
        case _:
            return [VARIES]
