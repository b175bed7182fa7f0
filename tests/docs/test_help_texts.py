"""`--help` of every command, those that come later too: what it is for, examples that are true, where to read on."""

import inspect
import re
from typing import Any

import pytest

from tests.docs import pages
from tests.docs.command_tree import commands, parse

SUMMARY_CHARS = 80
"""What `bamboo --help` shows in a line."""
FORM = """
The docstring of its `command` begins with one line that ends with a full stop, then says in whole sentences what it
does and what it does not do, and ends with

    \\b
    Examples:
      bamboo {name} …

    See also: bamboo other, docs/page.md.
"""
every_command = pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])


def paragraphs(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def examples(command: Any) -> str:
    return "\n".join(text for text in paragraphs(command) if re.match(r"\x08\nExamples?\b", text))


@every_command
def test_a_line_says_what_it_does_and_sentences_say_more(name: str, command: Any) -> None:
    summary, *more = paragraphs(command)

    assert summary.endswith(".") and "\n" not in summary and len(summary) <= SUMMARY_CHARS, FORM.format(name=name)
    assert more and more[0].endswith(".") and not more[0].startswith("\b"), FORM.format(name=name)


@every_command
def test_its_examples_are_understood(name: str, command: Any) -> None:
    shown = [arguments for arguments in pages.commands(examples(command)) if arguments[:1] == name.split()[:1]]

    assert shown, f"`bamboo {name} --help` shows no example of itself." + FORM.format(name=name)
    for arguments in pages.commands(examples(command)):
        parse(arguments)


@every_command
def test_it_says_where_to_read_on(name: str, command: Any) -> None:
    last = paragraphs(command)[-1]
    named = {verb for verb, _ in commands()} | {verb.partition(" ")[0] for verb, _ in commands()}

    assert last.startswith("See also: "), FORM.format(name=name)
    for verb in re.findall(r"bamboo ([a-z-]+(?: [a-z-]+)?)", last):
        assert verb in named - {name}, f"bamboo {name} --help: See also: bamboo {verb}"
    for page in re.findall(r"docs/\S+\.md", last):
        assert page in pages.PAGES, f"bamboo {name} --help: See also: {page}"


@every_command
def test_every_argument_and_option_is_explained(name: str, command: Any) -> None:
    """What takes a value shows one: in an example, in its sentence, or as a choice or number."""
    context = command.make_context(name, [], resilient_parsing=True)
    for parameter in command.params:
        what = f"bamboo {name}: {'/'.join(parameter.opts)}"
        assert parameter.help and re.search(r"[.?]$", parameter.help), f"{what} needs a help text: whole sentences"
        if parameter.param_type_name == "option" and not parameter.is_flag:
            is_shown = set(parameter.opts) & set(examples(command).split())
            shape, _ = parameter.get_help_record(context)
            tells = re.search(r"such as|e\.g\.|: \S+, ", parameter.help) or re.search(r"\w\|\w|\bint", shape, re.I)
            assert is_shown or tells, f"{what}: show a value: in an example of the command, or `such as …` in its help"


@every_command
def test_its_end_tells_exit_codes_and_environment(name: str, command: Any) -> None:
    shown = command.get_help(command.make_context(name, [], resilient_parsing=True))

    assert "Exit codes:\n" in shown
    assert "BAMBOO_HOME" in shown
    assert ("BAMBOO_KEY" in shown) == any(parameter.name == "settings" for parameter in command.params)
