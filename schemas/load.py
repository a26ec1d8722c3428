"""Configuration from layers: defaults, recipe, profile, file, command line. A wrong value names its layer."""

import difflib
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from schemas.config import Config
from schemas.describe import allowed, settings_of
from schemas.recipes import OURS, SETTINGS, default_recipe, recipe_folders

SHIPPED = files("schemas")
# The settings that name the recipe, unless its own say otherwise.
OF_RECIPE = {
    "synthesize": ("recipe",),
    "difficulty": ("recipe", "agent_recipe"),
    "train": ("recipe",),
    "evaluate": ("agent_recipe",),
}
# What must not be echoed back even when it is wrong: a user may have pasted a key there.
HIDDEN = ("key", "token", "secret", "password")


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are yes and no: NO is Norway, and `off` may be a word."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, form) for tag, form in known if tag != "tag:yaml.org,2002:bool"]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


class ConfigError(Exception):
    """The configuration is wrong; every line of the message names file, field, what was given and what is allowed."""


def profile_names() -> list[str]:
    """The profiles that are shipped."""
    return sorted(f.name.removesuffix(".yaml") for f in (SHIPPED / "profiles").iterdir() if f.name.endswith(".yaml"))


def load_config(
    recipe: str | None = None,
    profile: str | None = None,
    file: str | Path | None = None,
    lake: str | None = None,
    overrides: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration the layers amount to; later layers win. `extra` comes before the file, for the demo."""
    own = _read_file(Path(file)) if file else {}
    recipe = recipe or own.get("recipe") or default_recipe()
    profile = profile or own.get("profile") or "offline"
    one_by_one: dict[str, Any] = {}
    for text in overrides:
        _merge(one_by_one, _override(text), "--set", {}, ())
    layers: list[tuple[str, dict[str, Any]]] = [(f"recipe {recipe}", _recipe(recipe))]
    shipped = _profile(profile)
    quality = next((layer["quality"] for layer in (one_by_one, own, shipped) if "quality" in layer), "paper")
    if quality == "ours":
        layers.append((f"quality ours of {recipe}", _ours(recipe)))
    layers.append((f"profile {profile}", shipped))
    if extra:
        layers.append(("demo", dict(extra)))
    if file:
        layers.append((str(file), own))
    layers.append(("--set", one_by_one))
    chosen: dict[str, Any] = {"recipe": recipe, "profile": profile}
    if lake is not None:
        chosen["lake"] = lake
    layers.append(("command line", chosen))
    merged: dict[str, Any] = {}
    origin: dict[tuple[str, ...], str] = {}
    for source, layer in layers:
        _make_room(merged, layer)
        _merge(merged, layer, source, origin, ())
    try:
        return Config(**merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(e, origin) for e in _first_causes(error.errors()))) from None


def _recipe(name: str) -> dict[str, Any]:
    folders = recipe_folders()
    _require_known("recipe", name, list(folders))
    values: dict[str, Any] = {section: dict.fromkeys(fields, name) for section, fields in OF_RECIPE.items()}
    own = _parse((folders[name] / SETTINGS).read_text(), f"{folders[name].name}/{SETTINGS}")
    _merge(values, own, "", {}, ())
    return values


def _ours(recipe: str) -> dict[str, Any]:
    """What `quality: ours` changes in the recipe; nothing where its folder has no such file."""
    file = recipe_folders()[recipe] / OURS
    return _parse(file.read_text(), f"{file.parent.name}/{OURS}") if file.is_file() else {}


def _profile(name: str) -> dict[str, Any]:
    _require_known("profile", name, profile_names())
    return _parse((SHIPPED / "profiles" / f"{name}.yaml").read_text(), f"profiles/{name}.yaml")


def _require_known(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(str(name), known, 1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"unknown {kind} '{name}'{hint} (available: {', '.join(known)})")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text(), str(path))
    except OSError as error:
        raise ConfigError(f"configuration file '{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file '{path}' is not text") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        document = deepcopy(_document(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: not YAML: {getattr(error, 'problem', error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{source}: must be a mapping of sections, such as 'plan:' with 'places: 100' below it")
    return document


@lru_cache(maxsize=32)
def _document(text: str) -> Any:
    """Parsed once a process: every configuration has the same profile and recipe below it."""
    return yaml.load(text, _Loader)


def _override(text: str) -> dict[str, Any]:
    path, sign, value = text.partition("=")
    if not sign or not path.strip():
        raise ConfigError(f"--set {text}: must look like section.field=value, such as plan.places=200")
    try:
        parsed = yaml.load(value, _Loader)
    except yaml.YAMLError:
        parsed = value
    *sections, field = path.strip().split(".")
    layer: dict[str, Any] = {field: parsed}
    for name in reversed(sections):
        layer = {name: layer}
    return layer


def _merge(
    into: dict[str, Any],
    layer: Mapping[str, Any],
    source: str,
    origin: dict[tuple[str, ...], str],
    path: tuple[str, ...],
) -> None:
    for name, value in layer.items():
        here = (*path, name)
        origin[here] = source
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value, source, origin, here)
        else:
            into[name] = dict(value) if isinstance(value, dict) else value
            if isinstance(value, dict):
                _merge(into[name], value, source, origin, here)


def _make_room(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """A preset stands for the fields it sets: what earlier layers say about them gives way."""
    for section, values in layer.items():
        presets = getattr(_model((section,)), "presets", {})
        preset = presets.get(str(values.get("preset"))) if isinstance(values, dict) else None
        if preset and isinstance(merged.get(section), dict):
            _take_out(merged[section], preset)


def _take_out(settings: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        inner = settings.get(name)
        if isinstance(value, dict) and isinstance(inner, dict):
            _take_out(inner, value)
        if not (isinstance(value, dict) and inner):
            settings.pop(name, None)


def _first_causes(errors: Sequence[Any]) -> list[Any]:
    """Without what is said of a field only because something inside it is wrong, such as that too little is left."""
    places = [e["loc"] for e in errors]
    return [e for e in errors if not any(len(p) > len(e["loc"]) and p[: len(e["loc"])] == e["loc"] for p in places)]


def _explain(error: Any, origin: Mapping[tuple[str, ...], str]) -> str:
    path = tuple(str(part) for part in error["loc"])
    source = next((origin[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origin), "defaults")
    dotted = ".".join(path) or "configuration"
    if error["type"] == "extra_forbidden":
        known = _fields(path[:-1])
        return f"{source}: {dotted}: no such field; {_meant(path, known)}allowed: {', '.join(known)}"
    about = _about(path)
    # Cross-field checks are raised on the section: its whole content would hide the message.
    value = "" if isinstance(error["input"], dict | BaseModel) else f"given {_shown(path, error['input'])}; "
    requirement = _requirement(error, path)
    return f"{source}: {dotted}: {value}{requirement[0].lower()}{requirement[1:]}" + (f" ({about})" if about else "")


def _requirement(error: Any, path: tuple[str, ...]) -> str:
    """What the field must be, in plain words; our own checks say it themselves."""
    if error["type"] in ("value_error", "assertion_error"):
        return str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("tuple_type", "list_type"):
        return f"must be a list, such as [{_shown(path, error['input']).strip(chr(39))}]"
    if error["type"] == "missing":
        return "must be given"
    for length in range(len(path), 0, -1):  # an item of a list has no field of its own: its list's says what it may be
        info = _field(path[:length])
        if info is not None:
            words = allowed(info)
            return f"must be {'a ' if words.startswith(('whole', 'number', 'list', 'mapping')) else ''}{words}"
    return str(error["msg"])


def _meant(path: tuple[str, ...], known: Sequence[str]) -> str:
    """The name that was probably meant: beside the wrong one, or anywhere else with its section."""
    close = difflib.get_close_matches(path[-1], known, 1, cutoff=0.75)
    names = [".".join((*path[:-1], close[0]))] if close else settings_named(path[-1])[:3]
    if not names:
        close = difflib.get_close_matches(path[-1], known, 1)
        names = [".".join((*path[:-1], field)) for field in close]
    return f"did you mean {' or '.join(repr(name) for name in names)}? " if names else ""


def settings_named(field: str) -> list[str]:
    """Every setting of this name with its section, the shortest name first."""
    every = [setting.name for setting in settings_of(Config(), Config())]
    return sorted(
        (name for name in every if name.rpartition(".")[2] == field), key=lambda name: (name.count("."), name)
    )


def _shown(path: tuple[str, ...], value: Any) -> str:
    if any(word in HIDDEN for word in re.split(r"[^a-z]+", path[-1].lower())):  # not of `max_tokens`
        return "something (not shown)"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _model(path: Sequence[str]) -> type[BaseModel] | None:
    model: type[BaseModel] = Config
    names = iter(path)
    for name in names:
        info = model.model_fields.get(name)
        if info is None:
            return None
        kinds = [k for k in (info.annotation, *get_args(info.annotation)) if isinstance(k, type)]
        inner = next((k for k in kinds if issubclass(k, BaseModel)), None)
        if inner is None:
            return None
        model = inner
        if get_origin(info.annotation) is dict:
            next(names, None)  # the key of an entry, such as a model's or a stage's name
    return model


def _fields(path: Sequence[str]) -> list[str]:
    model = _model(path)
    return list(model.model_fields) if model else []


def _field(path: Sequence[str]) -> FieldInfo | None:
    model = _model(path[:-1]) if path else None
    return model.model_fields.get(path[-1]) if model else None


def _about(path: Sequence[str]) -> str:
    info = _field(path)
    return (info.description or "") if info else ""
