"""Which settings production has to itself, and which of them nobody read."""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from schemas.config import Config
from schemas.load import SHIPPED, load_config
from schemas.recipes import SETTINGS, recipe_folders
from schemas.settings.base import Settings

RECORDER = Path(__file__).parent / "recorder"


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """`section|field` -> value of everything that is set; a mapping of names counts by its entries."""
    if isinstance(value, Settings):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    return {
        name: one
        for key, inner in value.items()
        for name, one in leaves(inner, f"{path}|{key}" if path else str(key)).items()
    }


def named_by_recipe(recipe: str) -> set[str]:
    """The settings in a recipe's own file."""
    return _set_in((recipe_folders()[recipe] / SETTINGS).read_text())


def production_only(recipes: Iterable[str]) -> set[str]:
    """What the profile sets, and where a recipe under it differs from the same recipe offline."""
    found = _set_in((SHIPPED / "profiles" / "production.yaml").read_text())
    for recipe in recipes:
        here, offline = (leaves(load_config(recipe, profile)) for profile in ("production", "offline"))
        found |= {field_of(name) for name, value in here.items() if offline.get(name, value) != value}
    return found


def _set_in(text: str) -> set[str]:
    return {field_of(path) for path in leaves(yaml.safe_load(text))}


def section_in(annotation: Any) -> tuple[type[Settings] | None, bool]:
    """The section an annotation stands for or holds, and whether by name in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation, False
    inner = next((found for one in get_args(annotation) if (found := section_in(one)[0])), None)
    return inner, get_origin(annotation) is dict


def field_of(path: str) -> str:
    """The field a path of a file leads to: `ingest|shares` of `ingest|shares|mp16-pro`, which is read whole."""
    kind: type[Settings] | None = Config
    parts = path.split("|")
    at = 0
    while kind is not None and at < len(parts):
        kind, is_mapping = section_in(kind.model_fields[parts[at]].annotation)
        at += 2 if is_mapping and kind else 1
    return "|".join(parts[:at])


def paths_of_classes() -> dict[str, list[str]]:
    """`Class` -> every section of that class, entries of mappings as `*`."""
    found: dict[str, list[str]] = {}

    def walk(kind: type[Settings], path: str) -> None:
        found.setdefault(kind.__name__, []).append(path)
        for name, info in kind.model_fields.items():
            inner, is_mapping = section_in(info.annotation)
            if inner:
                walk(inner, f"{path}|{name}{'|*' * is_mapping}".lstrip("|"))

    walk(Config, "")
    return found


def recorded(folder: Path) -> set[str]:
    """The paths that all processes wrote; of a section made anew every place where its class stands."""
    lines = {line for file in folder.glob("reads-*") for line in file.read_text().splitlines()}
    places = paths_of_classes()
    found = {line for line in lines if not line.startswith("?")}
    for line in lines - found:
        kind, _, field = line[1:].partition("|")
        found |= {f"{place}|{field}".lstrip("|") for place in places.get(kind, ())}
    return found


def never_read(wanted: Collection[str], reads: Collection[str]) -> list[str]:
    """The settings among `wanted` that no path of `reads` covers, in order."""
    patterns = [re.compile(re.escape(one).replace(r"\*", "[^|]+")) for one in reads if "*" in one]
    return sorted(one for one in wanted if one not in reads and not any(p.fullmatch(one) for p in patterns))
