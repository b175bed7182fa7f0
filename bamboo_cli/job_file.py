"""Reading a job: flags over environment over file over defaults; every mistake with its file, line and key.

YAML 1.2's booleans (``true``, ``false``), so ``redundancy: off`` is the word and not a truth value.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from bamboo_cli.config import JobConfig, cross_checks
from bamboo_cli.errors import JobFileError, UsageError

Key = tuple[str | int, ...]

ENVIRONMENT_PREFIX = "BAMBOO_"
READY_RECIPES = ("gpt2", "mlp")


class _Loader(yaml.SafeLoader):
    """Booleans and floats as YAML 1.2 spells them."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
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
        raise _refusal(origins, _mistakes(error)) from None
    job = _resolve_recipe(job, origins)
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


def spell(key: Key) -> str:
    """``("drill", 1, "step")`` as ``drill[1].step``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


# --- the file ---------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """Raises JobFileError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobFileError(
            f"{path}: there is no such file", next_step="`bamboo init` writes a job file to start from."
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
        raise JobFileError(f"{path}:{root.start_mark.line + 1}: a job file is a list of `key: value` lines")
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
    for key in sorted(_leaf_keys(JobConfig)):
        variable = ENVIRONMENT_PREFIX + "__".join(key).upper()
        if variable in environment:
            yield Override(key=key, value=_parse_value(environment[variable]), source=f"environment {variable}")


def _parse_value(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def _put(values: dict[str, Any], override: Override) -> None:
    section = values
    for part in override.key[:-1]:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
    section[override.key[-1]] = override.value


# --- saying what is wrong ---------------------------------------------------------------------------------------


def _own_key(location: tuple[str | int, ...]) -> Key:
    """Pydantic's location without the names that it gives to the members of a union."""
    key: list[str | int] = []
    section: Any = JobConfig
    for part in location:
        if isinstance(part, int):
            key.append(part)
        elif isinstance(section, type) and issubclass(section, BaseModel):
            key.append(part)
            found = section.model_fields.get(part)
            section = _section_in(found.annotation) if found else None
    return tuple(key)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``tuple[Model, ...]`` or ``Model``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation) if get_origin(annotation) in (tuple, list, Union, UnionType) else ():
        section = _section_in(inner)
        if section:
            return section
    return None


def _leaf_keys(section: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All keys but those inside the items of a list."""
    for name, found in section.model_fields.items():
        inner = _section_in(found.annotation)
        if inner is None or get_origin(found.annotation) is tuple:
            yield (*prefix, name)
        else:
            yield from _leaf_keys(inner, (*prefix, name))


def _mistakes(error: ValidationError) -> list[tuple[Key, str]]:
    """One entry a key: what each member of a union wanted is joined, and a list is not blamed for its items."""
    texts: dict[Key, list[str]] = {}
    for found in error.errors(include_url=False):
        texts.setdefault(_own_key(found["loc"]), []).append(_explain(found))
    inner = [key for key in texts if not any(key != other and other[: len(key)] == key for other in texts)]
    return [(key, "; or ".join(dict.fromkeys(texts[key]))) for key in inner]


def _explain(error: Any) -> str:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return _unknown_key(_own_key(error["loc"]))
    if kind == "missing":
        return "is missing; every job needs it"
    if kind == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        return f"{value!r} cannot be used as a name here (it has to match {error['ctx']['pattern']})"
    if kind in ("int_parsing", "int_type", "int_from_float"):
        return f"should be a whole number, but is {value!r}"
    text = str(error["msg"]).removeprefix("Input should be ")
    return f"should be {text}, but is {value!r}"


def _unknown_key(key: Key) -> str:
    section: type[BaseModel] | None = JobConfig
    for part in key[:-1]:
        if isinstance(part, str) and section is not None and part in section.model_fields:
            section = _section_in(section.model_fields[part].annotation)
    word, siblings = str(key[-1]), list((section or JobConfig).model_fields)
    elsewhere = [leaf for leaf in _leaf_keys(JobConfig) if leaf[-1] == word]
    if elsewhere:
        return f"there is no such key here; did you mean `{spell(elsewhere[0])}`?"
    near = difflib.get_close_matches(word, siblings, n=1) or [name for name in siblings if name.startswith(word)]
    if near:
        return f"there is no such key; did you mean `{near[0]}`?"
    return f"there is no such key; there are {', '.join(siblings)}"


def _resolve_recipe(job: JobConfig, origins: _Origins) -> JobConfig:
    """A recipe file by its absolute path, so that every worker finds it."""
    if job.recipe in READY_RECIPES:
        return job
    file, colon, function = job.recipe.partition(":")
    if not file.endswith(".py"):
        near = difflib.get_close_matches(job.recipe, READY_RECIPES, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"take one of {', '.join(READY_RECIPES)}, or a .py file"
        raise _refusal(origins, [(("recipe",), f"there is no recipe {job.recipe!r}; {hint}")])
    from_flag = any(override.key == ("recipe",) for override in origins.overrides)
    path = ((Path.cwd() if from_flag else origins.path.parent) / Path(file).expanduser()).absolute()
    if not path.is_file():
        raise _refusal(origins, [(("recipe",), f"there is no file {path}")])
    return job.model_copy(update={"recipe": f"{path}{colon}{function}"})
