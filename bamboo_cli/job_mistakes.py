"""What is wrong with a job, in the words of a job file: pydantic's errors by key, with the key that was meant."""

import difflib
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from bamboo_cli.config import PATTERN_WORDS, JobConfig
from bamboo_cli.paths import NAME_PATTERN, NAME_WORDS, name_like

Key = tuple[str | int, ...]


def spell(key: Key) -> str:
    """``("drill", 1, "step")`` as ``drill[1].step``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


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


def leaf_keys(section: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All keys but those inside the items of a list."""
    for name, found in section.model_fields.items():
        inner = _section_in(found.annotation)
        if inner is None or get_origin(found.annotation) is tuple:
            yield (*prefix, name)
        else:
            yield from leaf_keys(inner, (*prefix, name))


def mistakes_in(error: ValidationError) -> list[tuple[Key, str]]:
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
        key = _own_key(error["loc"])
        return f"is missing; every {'job' if len(key) == 1 else f'section `{spell(key[:-1])}`'} needs it"
    if kind == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        return _no_name(str(value), error["ctx"]["pattern"])
    if kind in ("bool_type", "bool_parsing"):
        return f"should be true or false, but is {value!r}"
    if kind in ("int_parsing", "int_type", "int_from_float"):
        return f"should be a whole number, but is {value!r}"
    text = str(error["msg"]).removeprefix("Input should be ")
    return f"should be {text}, but is {value!r}"


def _no_name(value: str, pattern: str) -> str:
    if pattern == NAME_PATTERN:
        return f"{value!r} cannot be a name: use {NAME_WORDS}; for example `{name_like(value)}`"
    return f"{value!r} cannot be used here: use {PATTERN_WORDS[pattern]}"


def _unknown_key(key: Key) -> str:
    section: type[BaseModel] | None = JobConfig
    for part in key[:-1]:
        if isinstance(part, str) and section is not None and part in section.model_fields:
            section = _section_in(section.model_fields[part].annotation)
    word, siblings = str(key[-1]), list((section or JobConfig).model_fields)
    elsewhere = [leaf for leaf in leaf_keys(JobConfig) if leaf[-1] == word]
    if elsewhere:
        return f"there is no such key here; did you mean `{spell(elsewhere[0])}`?"
    near = difflib.get_close_matches(word, siblings, n=1) or [name for name in siblings if name.startswith(word)]
    if near:
        return f"there is no such key; did you mean `{near[0]}`?"
    return f"there is no such key; there are {', '.join(siblings)}"
