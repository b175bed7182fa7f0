"""The commands as the command line knows them, however many there are."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer.main

from bamboo_cli.main import app


@cache
def group() -> Any:
    return typer.main.get_command(app)


def commands() -> Iterator[tuple[str, Any]]:
    """Name and command, those below a group as `group verb`."""
    yield from _below("", group())


def _below(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
    for name, command in node.commands.items():
        if command.hidden:  # not for people
            continue
        if hasattr(command, "commands"):
            yield from _below(f"{prefix}{name} ", command)
        else:
            yield prefix + name, command


def parse(arguments: Sequence[str]) -> None:
    """Whether the command line takes them; nothing is done. Fails with what it says otherwise."""
    node, rest, name = group(), list(arguments), "bamboo"
    while hasattr(node, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in node.commands, f"there is no {name} {rest[0]}"
        node, name = node.commands[rest[0]], f"{name} {rest.pop(0)}"
    if hasattr(node, "commands"):
        known = {option for parameter in node.params for option in parameter.opts} | {"--help", "-h"}
        assert set(rest) <= known, f"{name} has no option {' '.join(rest)}"
    elif not {"--help", "-h"} & set(rest):
        try:
            node.make_context(name, rest)
        except Exception as error:
            raise AssertionError(f"bamboo {' '.join(arguments)}: {getattr(error, 'message', error)}") from error
