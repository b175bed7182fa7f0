"""The pages of ``docs/`` that are made from the code: ``python -m bamboo_cli.reference`` writes them.

``docs/job-file.md`` from the sentences of ``bamboo_cli.config``, ``docs/commands.md`` from the help texts. A test
checks that they are current.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bamboo_cli.config import CheckpointConfig, DrillConfig, JobConfig, LocalCloudConfig, TraceConfig, ZoneConfig
from bamboo_cli.config_aws import AwsConfig
from bamboo_cli.config_trackers import MlflowConfig, WandbConfig

DOCS = Path(__file__).parent.parent / "docs"

_JOB_FILE_INTRO = """# The job file

One YAML file says what to train, on what, and what may happen to it. `bamboo init` writes one to start from,
`bamboo plan JOB` shows what it means, and nothing is rented before it has been read in full. The smallest one:

```yaml
name: my-job
steps: 200
global_batch_size: 16
microbatch_size: 4
```

A value is taken from the first of: the flag `--set KEY=VALUE` (dots inside keys: `--set checkpoint.every=50`), the
environment variable `BAMBOO_KEY` (two underscores inside keys: `BAMBOO_CHECKPOINT__EVERY=50`), the file, the default.
Unknown keys are refused, with the line and the nearest key. Booleans are `true` and `false` only.

This page is made from `bamboo_cli/config.py` (`make docs`).
"""

_COMMANDS_INTRO = """# Commands

Each has `--help`. Results go to standard output, everything else to standard error. Exit codes: 0 done,
1 failed with a message, 2 wrong usage or a mistake in the job file, 3 a bug in Bamboo (with a traceback), 4 a run was
stopped at a limit of its job, 5 a night of `bamboo cron` was left out since another run was on, 130 Ctrl-C.

This page is made from the help texts (`make docs`).
"""

SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("", JobConfig),
    ("checkpoint", CheckpointConfig),
    ("local", LocalCloudConfig),
    ("local.zones[]", ZoneConfig),
    ("local.trace", TraceConfig),
    ("aws", AwsConfig),
    ("wandb", WandbConfig),
    ("mlflow", MlflowConfig),
    ("drill[]", DrillConfig),
)


def job_file_page() -> str:
    lines = [_JOB_FILE_INTRO]
    for path, section in SECTIONS:
        lines += [
            f"## `{path}`" if path else "## The job",
            "",
            *inspect.cleandoc(section.__doc__ or "").splitlines(),
            "",
        ]
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(cells)} |" for cells in _cells(section)]
        lines.append("")
    return "\n".join(lines)


def _cells(section: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        yield f"`{name}`", _type(field), _default(field), field.description or ""


def _type(field: FieldInfo) -> str:
    """``whole number``, ``text``, ``one of …``: for people who do not read Python."""
    return _spell_type(field.annotation).replace("|", "\\|")


def _spell_type(annotation: Any) -> str:
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}
    if annotation in names:
        return names[annotation]
    if isinstance(annotation, type) and issubclass(annotation, str):
        return "one of " + ", ".join(f"`{value}`" for value in annotation)  # type: ignore[attr-defined]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    arguments = get_args(annotation)
    origin = getattr(annotation, "__origin__", None)
    if origin is tuple:
        inner = _spell_type(arguments[0])
        return inner.replace("one of", "some of", 1) if inner.startswith("one of") else f"list of {inner}s"
    if origin is dict:
        return "section"
    if arguments and all(isinstance(value, str) for value in arguments):
        return "one of " + ", ".join(f"`{value}`" for value in arguments) if len(arguments) > 1 else f"`{arguments[0]}`"
    if arguments and not hasattr(annotation, "__metadata__"):
        return " or ".join(filter(None, map(_spell_type, arguments)))
    return _spell_type(arguments[0]) if arguments else str(annotation)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None or value == () or value == {} or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{item if isinstance(item, str) else item.name}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def commands_page() -> str:
    import typer.main

    from bamboo_cli.main import app

    lines = [_COMMANDS_INTRO]
    for name, command in _commands(typer.main.get_command(app)):
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        usage = " ".join([f"bamboo {name}", *(_argument(p) for p in arguments)])
        lines += [f"## {usage}", "", *_paragraphs(command.help), ""]
        rows = [f"| `{_argument(p)}` | {p.help} |" for p in arguments]
        rows += [f"| {', '.join(f'`{opt}`' for opt in p.opts)} | {p.help} |" for p in options]
        if rows:
            lines += ["| | |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def _commands(group: Any) -> Iterator[tuple[str, Any]]:
    """With those of groups, such as ``cron add``; without what is not for people."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield name, command
            if hasattr(command, "commands"):
                yield from ((f"{name} {inner}", found) for inner, found in _commands(command))


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return str(name) if parameter.required else f"[{name}]"


def _paragraphs(text: str) -> Iterator[str]:
    """The help text; its example (after a line with a backspace, which keeps it as it is) as a code block."""
    prose, _, example = inspect.cleandoc(text).partition("\b\n")
    yield prose.strip()
    if example:
        title, _, code = example.partition("\n")
        yield from ("", title, "", "```", inspect.cleandoc(code).strip(), "```")


def main() -> None:
    (DOCS / "job-file.md").write_text(job_file_page(), encoding="utf-8")
    (DOCS / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
