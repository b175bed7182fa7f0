"""The pages that are made from code are current, and the README only names what exists."""

import re
from pathlib import Path

import pytest
import typer.main

from bamboo_cli import reference
from bamboo_cli.main import app

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "made"), [("job-file.md", reference.job_file_page), ("commands.md", reference.commands_page)]
)
def test_the_page_is_what_the_code_says(page: str, made) -> None:  # type: ignore[no-untyped-def]
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == made(), "run `make docs`"


def test_every_field_of_the_job_file_has_a_sentence() -> None:
    for _, section in reference.SECTIONS:
        for name, field in section.model_fields.items():
            assert field.description and field.description.endswith("."), f"{section.__name__}.{name}"


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_command_and_option_on_the_page_exists(page: str) -> None:
    """`bamboo verb … --option` in code blocks and in backticks."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = (ROOT / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    for verb, rest in re.findall(r"\bbamboo ([a-z]+)\b([^`\n#|]*)", code):
        assert verb in commands, f"{page}: bamboo {verb}"
        command = commands[verb]
        if hasattr(command, "commands") and rest.strip():  # a group, such as cron
            assert rest.split()[0] in command.commands, f"{page}: bamboo {verb}{rest}"
            command = command.commands[rest.split()[0]]
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest):
            assert option in known, f"{page}: bamboo {verb} {option}"
