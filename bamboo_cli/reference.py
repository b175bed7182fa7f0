"""The pages of ``docs/`` that are made from the code: ``python -m bamboo_cli.reference`` writes them.

``docs/job-file.md`` from the sentences of ``bamboo_cli.config``, ``docs/commands.md`` from the help texts. A test
checks that they are current.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bamboo_cli.config import CheckpointConfig, DrillConfig, JobConfig, LocalCloudConfig, TraceConfig, ZoneConfig
from bamboo_cli.config_aws import AwsConfig
from bamboo_cli.config_trackers import MlflowConfig, WandbConfig

SEE_ALSO = "See also: "
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

Each has `--help`, which says what is here and more. Results go to standard output, everything else to standard error.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed; the message says what to do next ([troubleshooting](troubleshooting.md) says more) |
| 2 | wrong usage, or a mistake in the job file |
| 3 | a bug in Bamboo, with a traceback |
| 4 | `run` and `train`: the run was stopped in order at a limit of its job |
| 5 | `cron`: the night was left out, since another run was on |
| 130 | Ctrl-C; 128 + n: another signal n |

| environment variable | meaning |
| --- | --- |
| `BAMBOO_HOME` | the folder of all that Bamboo keeps; by default the platform's, `~/.local/state/bamboo` on Linux |
| `BAMBOO_KEY` | a key of the [job file](job-file.md), such as `BAMBOO_STEPS`, `BAMBOO_CHECKPOINT__EVERY` |
| `AWS_PROFILE`, `AWS_ACCESS_KEY_ID`, … | who you are, as for the AWS CLI |

`bamboo --install-completion` makes the shell complete commands, options, clusters, nodes, runs, job files and values;
`bamboo --show-completion` prints what it would install.

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


def commands() -> dict[str, Any]:
    import typer.main

    from bamboo_cli.main import app

    return dict(_below(typer.main.get_command(app)))


def _below(group: Any) -> Iterator[tuple[str, Any]]:
    """With those of groups, such as ``cron add``; without what is not for people."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield name, command
            if hasattr(command, "commands"):
                yield from ((f"{name} {inner}", found) for inner, found in _below(command))


def commands_page() -> str:
    lines = [_COMMANDS_INTRO]
    for name, command in commands().items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        lines += [f"## {_heading(name)}", *_paragraphs(command.help), ""]
        rows = [f"| `{_argument(p)}` | {p.help} |" for p in arguments]
        rows += [f"| {', '.join(f'`{opt}`' for opt in p.opts)} | {p.help} |" for p in options]
        if rows:
            lines += ["| | |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def _heading(verb: str) -> str:
    arguments = [p for p in commands()[verb].params if p.param_type_name == "argument"]
    return " ".join([f"bamboo {verb}", *(_argument(p) for p in arguments)])


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return str(name) if parameter.required else f"[{name}]"


def _paragraphs(text: str) -> Iterator[str]:
    """The help text; what a line with a backspace keeps as it is becomes a code block below its title."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield ""
        if paragraph.startswith("\b\n"):
            title, _, code = paragraph.removeprefix("\b\n").partition("\n")
            yield from (title, "", "```", inspect.cleandoc(code), "```")
        else:
            yield _with_links(paragraph) if paragraph.startswith(SEE_ALSO) else paragraph


def _with_links(text: str) -> str:
    """`See also: bamboo up, docs/aws.md.`"""
    text = re.sub(r"bamboo ([a-z]+)", lambda found: f"[bamboo {found[1]}](#{_anchor(found[1])})", text)
    return re.sub(r"docs/([a-z-]+\.md)", r"[\1](\1)", text)


def _anchor(verb: str) -> str:
    """What GitHub and MkDocs make of a command's heading."""
    return re.sub(r"[^a-z0-9 -]", "", _heading(verb).lower()).replace(" ", "-")


def main() -> None:
    (DOCS / "job-file.md").write_text(job_file_page(), encoding="utf-8")
    (DOCS / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
