"""Every setting by name: default, value, what it means and what it may be, read from the settings' own models."""

import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union

import annotated_types
from pydantic.fields import FieldInfo

from schemas.settings.base import Settings

HUGE = 1 << 62  # a bound that is never reached, such as that of 64 bits, tells a reader nothing


@dataclass(frozen=True)
class Setting:
    """One field of the configuration."""

    name: str  # as for --set
    section: str
    default: Any
    value: Any  # with recipe, profile, file and --set
    allowed: str
    meaning: str


def settings_of(default: Settings, value: Settings, section: str = "") -> Iterator[Setting]:
    """All fields below a section, in the order of the models."""
    yield from _walk(type(default), default, value, section)


def sections_of(kind: type[Settings], name: str = "") -> Iterator[tuple[str, str]]:
    """(name, what it is) of every section, this one first."""
    yield name, (inspect.getdoc(kind) or kind.__name__).splitlines()[0]
    for field, info in kind.model_fields.items():
        inner = _section(info.annotation)
        if inner is not None:
            yield from sections_of(inner, f"{name}.{field}" if name else field)


def _walk(kind: type[Settings], default: Any, value: Any, section: str) -> Iterator[Setting]:
    for field, info in kind.model_fields.items():
        name = f"{section}.{field}" if section else field
        inner = _section(info.annotation)
        standard, now = _get(default, field, info), _get(value, field, info)
        if inner is None:
            yield Setting(name, section, _plain(standard), _plain(now), allowed(info), _meaning(kind, field))
        else:
            yield from _walk(inner, standard, now, name)


def _get(holder: Any, field: str, info: FieldInfo) -> Any:
    """A section that is not there by itself (`train.lora`) shows what it would have."""
    if holder is not None:
        return getattr(holder, field)
    return None if info.is_required() else info.get_default(call_default_factory=True)


def _section(annotation: Any) -> type[Settings] | None:
    """The section an annotation stands for, also one that may be left out; lists of sections are values."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return next((section for argument in typing.get_args(annotation) if (section := _section(argument))), None)
    return None


def _meaning(kind: type[Settings], field: str) -> str:
    """The description; a class that only changes a default inherits that of the class before."""
    for base in kind.__mro__:
        info = getattr(base, "model_fields", {}).get(field)
        if info is not None and info.description:
            return str(info.description)
    return ""


def _plain(value: Any) -> Any:
    """As JSON would have it."""
    if isinstance(value, Settings):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def allowed(info: FieldInfo) -> str:
    """What a field may be, in words."""
    bounds = [words for constraint in info.metadata for words in _bound(constraint)]
    return ", ".join([_type(info.annotation), *bounds])


_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "mapping", type(None): "null"}


def _type(annotation: Any) -> str:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inside[0])
    if origin is Literal:
        return " or ".join(map(str, inside))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in inside))
    if origin in (tuple, list, set, frozenset):
        kinds = [part for part in inside if part is not Ellipsis]
        if origin is tuple and Ellipsis not in inside:
            return "[" + ", ".join(_type(kind) for kind in kinds) + "]"
        return f"list of {_type(kinds[0])}" if kinds else "list"
    if origin is dict:
        return f"mapping of name to {_type(inside[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return "mapping with " + ", ".join(annotation.model_fields)
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bound(constraint: Any) -> list[str]:
    if isinstance(constraint, (annotated_types.MinLen, annotated_types.MaxLen)):
        least = isinstance(constraint, annotated_types.MinLen)
        length = constraint.min_length if isinstance(constraint, annotated_types.MinLen) else constraint.max_length
        return ["not empty"] if least and length == 1 else [f"at {'least' if least else 'most'} {length} long"]
    pattern = getattr(constraint, "pattern", None)
    if pattern:
        return [f"like {pattern}"]
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    words["multiple_of"] = "a multiple of"
    bounds = [(word, getattr(constraint, sign, None)) for sign, word in words.items()]
    return [f"{word} {bound:,}" for word, bound in bounds if bound is not None and abs(bound) < HUGE]
