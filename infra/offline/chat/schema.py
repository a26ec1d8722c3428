"""Known values poured into the JSON schema a client asks for."""

import json
import re
from typing import Any

DEEPEST = 24  # a schema may refer to itself; an answer ends


def fill(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """JSON text that follows the schema; properties are matched to known values by name.

    With an empty schema (`json_object`) all known values are given. Where a name is not known, the
    least telling value of its type is given, as a model does that was asked for what it cannot see.
    """
    if not schema:
        return json.dumps(known, ensure_ascii=False)
    groups = {name: schema.get(name) for name in ("$defs", "definitions")}
    root: dict[str, Any] = {name: group for name, group in groups.items() if isinstance(group, dict)}
    return json.dumps(_value(schema, known, known, root), ensure_ascii=False)


def _value(schema: Any, value: Any, known: dict[str, Any], root: dict[str, Any], depth: int = 0) -> Any:
    if not isinstance(schema, dict) or depth > DEEPEST:
        return value
    schema = _resolve(schema, root)
    for key in ("anyOf", "oneOf"):
        listed = schema.get(key)
        options = [_resolve(option, root) for option in listed if isinstance(option, dict)] if _full(listed) else []
        if options:
            fitting = [option for option in options if _fits(option, value)]
            return _value((fitting or options)[0], value, known, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if _full(schema.get("enum")):
        return _choose(schema["enum"], value)
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if value is None and "null" in kinds:
        return None
    kind = next((k for k in kinds if k != "null"), None)
    if kind == "object" or "properties" in schema:
        inner = value if isinstance(value, dict) else known
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return inner if isinstance(value, dict) else {}
        found = {name: _find(name, inner, known) for name in properties}
        return {name: _value(part, found[name], known, root, depth + 1) for name, part in properties.items()}
    return _scalar(kind, schema, value, known, root, depth)


def _scalar(
    kind: Any, schema: dict[str, Any], value: Any, known: dict[str, Any], root: dict[str, Any], depth: int
) -> Any:
    if kind == "array":
        if isinstance(value, dict):
            value = next((value[name] for name in ("bbox_2d", "box", "items") if name in value), [value])
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        limit = _bound(schema, "maxItems", len(items))
        return [_value(schema.get("items", {}), item, known, root, depth + 1) for item in items[: max(0, int(limit))]]
    if kind in ("number", "integer"):
        number = float(value) if isinstance(value, int | float | bool) else _number_in(value)
        number = max(number, _bound(schema, "minimum", number))
        number = min(number, _bound(schema, "maximum", number))
        return round(number) if kind == "integer" else number
    if kind == "boolean":
        return value in (True, "yes") if not isinstance(value, bool) else value
    if kind == "string":
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            value = next((value[name] for name in ("query", "text", "label", "Conclusion") if name in value), value)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return "; ".join(value)
        if isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False)
        return "" if value is None else str(value)
    return value


def _number_in(value: Any) -> float:
    """The first number a text gives, as a model that said it in words would write it."""
    found = re.search(r"-?\d+(?:\.\d+)?", value) if isinstance(value, str) else None
    return float(found.group()) if found else 0.0


def _full(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _bound(schema: dict[str, Any], name: str, default: float) -> float:
    value = schema.get(name)
    return default if isinstance(value, bool) or not isinstance(value, int | float) else value


def _resolve(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    steps = 0
    while isinstance(schema.get("$ref"), str) and steps < 8:
        group, _, name = schema["$ref"].removeprefix("#/").partition("/")
        target = root.get(group, {}).get(name)
        schema = target if isinstance(target, dict) else {}
        steps += 1
    return schema


def _fits(schema: dict[str, Any], value: Any) -> bool:
    types = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "array": list, "object": dict}
    kind = schema.get("type")
    if kind == "null":
        return value is None
    return isinstance(value, types.get(str(kind), object))  # type: ignore[arg-type]


def _choose(options: list[Any], value: Any) -> Any:
    if value in options:
        return value
    wanted = _key(str(value))
    for option in options:
        if _key(str(option)) == wanted:
            return option
    near = [option for option in options if _key(str(option)) in wanted or wanted in _key(str(option))]
    return (near or options)[0]


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _find(name: str, inner: dict[str, Any], known: dict[str, Any]) -> Any:
    """The value of a property under its own name, or under a name that means the same when spelled loosely."""
    for source in (inner, known):
        if name in source:
            return source[name]
        for other, value in source.items():
            if _key(other) == _key(name):
                return value
    for source in (inner, known):
        for other, value in source.items():
            if _key(other) in _key(name) or _key(name) in _key(other):
                return value
    return None
