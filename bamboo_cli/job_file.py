"""Reading a job: flags over environment over file over defaults; every mistake with its file, line and key.

YAML 1.2's booleans (``true``, ``false``), so ``redundancy: off`` is the word and not a truth value; and its numbers, so
``max_hours: 1:30`` is no number, and not 90.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bamboo_cli.config import JobConfig
from bamboo_cli.cross_checks import cross_checks
from bamboo_cli.errors import CloudError, JobFileError, UsageError
from bamboo_cli.job_mistakes import Key, leaf_keys, mistakes_in, spell
from bamboo_cli.providers.local import load_trace

ENVIRONMENT_PREFIX = "BAMBOO_"
READY_RECIPES = ("gpt2", "mlp")


class _Loader(yaml.SafeLoader):
    """Booleans and numbers as YAML 1.2 spells them."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^(?:[-+]?(?:0|[1-9][\d_]*)|0x[\da-fA-F]+|0b[01]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$"),
    list("-+.0123456789"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One value that did not come from the file. ``source``: how to call it in a message."""

    key: tuple[str, ...]
    value: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origins:
    """Where each key was said."""

    path: Path
    root: yaml.Node | None
    overrides: Sequence[Override] = field(default_factory=tuple)

    def place(self, key: Key) -> str:
        for override in self.overrides:
            if key[: len(override.key)] == override.key:
                return override.source
        line = _line_of(self.root, key)
        return f"{self.path}:{line}" if line else str(self.path)


def load_job(path: Path, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> JobConfig:
    """The job of ``path`` with ``--set`` settings (``key=value``, dots inside keys) and ``BAMBOO_…`` variables over it.

    Raises JobFileError with every mistake that was found, UsageError on a malformed setting.
    """
    root = _compose(path)
    values = _construct(path, root)
    from_flags = [_parse_setting(setting) for setting in settings]
    overrides = [*from_flags, *_from_environment(os.environ if environment is None else environment)]
    for override in reversed(overrides):
        _put(values, override)
    origins = _Origins(path=path, root=root, overrides=overrides)
    try:
        job = JobConfig.model_validate(values)
    except ValidationError as error:
        raise _refusal(origins, mistakes_in(error)) from None
    for resolve in (_resolve_recipe, _resolve_trace, _resolve_wheelhouse, _resolve_checkpoints):
        job = resolve(job, origins)
    mistakes = cross_checks(job)
    if mistakes:
        raise _refusal(origins, mistakes)
    return job


def _refusal(origins: _Origins, mistakes: Sequence[tuple[Key, str]]) -> JobFileError:
    lines = [f"{origins.place(key)}: {spell(key)}: {text}" for key, text in mistakes]
    return JobFileError(
        "\n".join(lines),
        next_step="Every key is explained in docs/job-file.md; `bamboo init` writes a job file to start from.",
    )


# --- the file ---------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """Raises JobFileError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobFileError(
            f"{path}: there is no such file", next_step="`bamboo init` writes a job file to start from."
        ) from None
    except IsADirectoryError:
        inside = path / "job.yaml"
        raise JobFileError(
            f"{path} is a folder, not a job file",
            next_step=f"Give the file in it: {inside}" if inside.exists() else "Give the path of a job file.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobFileError(f"{path}: cannot be read: {error}") from error


def _compose(path: Path) -> yaml.Node | None:
    try:
        root = yaml.compose(read_text(path), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobFileError(f"{path}:{line}: this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise JobFileError(f"{path}: this is not YAML: {error}") from None
    except RecursionError:
        raise JobFileError(f"{path}: is nested too deeply") from None
    if root is not None and not isinstance(root, yaml.MappingNode):
        what = "a list (lines that begin with a dash)" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise JobFileError(
            f"{path}:{root.start_mark.line + 1}: this is {what}, but a job file consists of `key: value` lines",
            next_step="The first of them may be `name: my-job`; `bamboo init` writes a job file to start from.",
        )
    try:
        _refuse_doubles(path, root)
    except RecursionError:  # an alias inside what it stands for has no end
        raise JobFileError(f"{path}: is nested too deeply") from None
    return root


def _construct(path: Path, root: yaml.Node | None) -> dict[str, Any]:
    if root is None:
        return {}
    loader = _Loader("")
    try:
        values: dict[str, Any] = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobFileError(f"{path}:{line}: {error.problem}") from None
    except ValueError as error:  # a date such as 2026-13-45
        raise JobFileError(f"{path}: a value cannot be read: {error}") from None
    finally:
        loader.dispose()
    return values


def _refuse_doubles(path: Path, node: yaml.Node | None) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_doubles(path, item)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise JobFileError(f"{path}:{line}: a key has to be a word, not a list or a section")
            if key.value in seen:
                raise JobFileError(f"{path}:{line}: {key.value}: already said on line {seen[key.value]}")
            seen[key.value] = line
            _refuse_doubles(path, value)


def _line_of(node: yaml.Node | None, key: Key) -> int | None:
    """The line of ``key``, or of the innermost section of it that the file has."""
    line = None
    for part in key:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == part]
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


# --- what stands over the file ----------------------------------------------------------------------------------


def _parse_setting(setting: str) -> Override:
    name, sign, text = setting.partition("=")
    if not sign or not name.strip():
        raise UsageError(f"--set {setting}: write it as key=value", next_step="For example --set stages=3")
    return Override(key=tuple(name.strip().split(".")), value=_parse_value(text), source=f"--set {name.strip()}")


def _from_environment(environment: Mapping[str, str]) -> Iterator[Override]:
    """Only the names of keys count: Bamboo's other variables share the prefix."""
    for key in sorted(leaf_keys(JobConfig)):
        variable = ENVIRONMENT_PREFIX + "__".join(key).upper()
        if variable in environment:
            yield Override(key=key, value=_parse_value(environment[variable]), source=f"environment {variable}")


def _parse_value(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date such as 2026-13-45
        return text


def _put(values: dict[str, Any], override: Override) -> None:
    section = values
    for part in override.key[:-1]:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
    section[override.key[-1]] = override.value


# --- files that the job names -----------------------------------------------------------------------------------


def _resolve_recipe(job: JobConfig, origins: _Origins) -> JobConfig:
    """A recipe file by its absolute path, so that every worker finds it."""
    if job.recipe in READY_RECIPES:
        return job
    file, colon, function = job.recipe.partition(":")
    if not file.endswith(".py"):
        near = difflib.get_close_matches(job.recipe, READY_RECIPES, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"take one of {', '.join(READY_RECIPES)}, or a .py file"
        raise _refusal(origins, [(("recipe",), f"there is no recipe {job.recipe!r}; {hint}")])
    path = _absolute(("recipe",), file, origins)
    if not path.is_file():
        raise _refusal(origins, [(("recipe",), f"there is no file {path}")])
    return job.model_copy(update={"recipe": f"{path}{colon}{function}"})


def _resolve_trace(job: JobConfig, origins: _Origins) -> JobConfig:
    """By its absolute path, and readable."""
    if job.local.trace is None:
        return job
    key = ("local", "trace", "path")
    path = _absolute(key, job.local.trace.path, origins)
    try:
        load_trace(path)
    except CloudError as error:
        raise _refusal(origins, [(key, error.message)]) from None
    trace = job.local.trace.model_copy(update={"path": str(path)})
    return job.model_copy(update={"local": job.local.model_copy(update={"trace": trace})})


def _resolve_wheelhouse(job: JobConfig, origins: _Origins) -> JobConfig:
    """By its absolute path, and there."""
    if job.aws is None or job.aws.wheelhouse is None:
        return job
    key = ("aws", "wheelhouse")
    path = _absolute(key, job.aws.wheelhouse, origins)
    if not path.is_dir():
        raise _refusal(origins, [(key, f"there is no folder {path}")])
    return job.model_copy(update={"aws": job.aws.model_copy(update={"wheelhouse": str(path)})})


def _resolve_checkpoints(job: JobConfig, origins: _Origins) -> JobConfig:
    """A folder by its absolute path: coordinator and workers each run in a folder of their own."""
    url = job.checkpoint.url
    if not url or "://" in url:
        return job
    from bamboo_trainer import storage

    key = ("checkpoint", "url")
    if (meant := storage.meant_url(url)) is not None:
        raise _refusal(origins, [(key, f"{url} is no URL; did you mean {meant}?")])
    path = _absolute(key, url, origins)
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"url": str(path)})})


def _absolute(key: tuple[str, ...], file: str, origins: _Origins) -> Path:
    """Relative to the job file, or, from a flag, to where the command runs."""
    from_flag = any(override.key == key for override in origins.overrides)
    return ((Path.cwd() if from_flag else origins.path.parent) / Path(file).expanduser()).absolute()
