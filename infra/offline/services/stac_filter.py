"""Conditions on an item's properties: the query extension, and the part of CQL2 JSON that people use."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

Look = Callable[[str], Any]  # a property's value, None where the item has none
Condition = Callable[[Look], bool]

PROPERTIES = frozenset(
    ("id", "collection", "datetime", "platform", "constellation", "eo:cloud_cover", "sat:orbit_state",
     "sat:relative_orbit", "s2:mgrs_tile", "s2:nodata_pixel_percentage", "s2:processing_baseline", "s2:product_type",
     "s2:product_uri", "s2:mean_solar_zenith", "s2:mean_solar_azimuth", "proj:epsg", "proj:code")
)  # fmt: skip
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge, "eq": operator.eq, "neq": operator.ne,
}  # fmt: skip
_SIGNS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte", "=": "eq", "<>": "neq"}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith, "endsWith": str.endswith, "contains": operator.contains,
}  # fmt: skip
_DEEPEST = 20


def _known(name: Any) -> str:
    if not isinstance(name, str) or name.removeprefix("properties.") not in PROPERTIES:
        raise ValueError(f"property {str(name)[:60]!r}: unknown")
    return name.removeprefix("properties.")


def _compare(kind: str, name: str, value: Any) -> Condition:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name}: a number or a text is needed to compare with")
    check = _ORDER[kind]

    def holds(look: Look) -> bool:
        found = look(name)
        if found is None or isinstance(found, str) is not isinstance(value, str):
            return False  # as in SQL: nothing is known of a missing value
        return check(found, value)

    return holds


def read_query(query: Any) -> list[Condition]:
    """Conditions of the query extension: `{"eo:cloud_cover": {"lt": 20}}`."""
    if not isinstance(query, dict):
        raise ValueError("query: an object is needed")
    conditions: list[Condition] = []
    for name, wanted in query.items():
        if not isinstance(wanted, dict):
            raise ValueError(f"query {name[:60]!r}: an object of operators is needed")
        known = _known(name)
        for kind, value in wanted.items():
            if kind in _ORDER:
                conditions.append(_compare(kind, known, value))
            elif kind == "in" and isinstance(value, list):
                conditions.append(_any([_compare("eq", known, one) for one in value]))
            elif kind in _TEXT and isinstance(value, str):
                conditions.append(_text(kind, known, value))
            else:
                raise ValueError(f"query {known}: operator {kind[:40]!r} is not supported")
    return conditions


def _text(kind: str, name: str, value: str) -> Condition:
    return lambda look: isinstance(look(name), str) and _TEXT[kind](look(name), value)


def _any(parts: list[Condition]) -> Condition:
    return lambda look: any(part(look) for part in parts)


def _all(parts: list[Condition]) -> Condition:
    return lambda look: all(part(look) for part in parts)


def read_filter(wanted: Any, asked: dict[str, Any]) -> list[Condition]:
    """Conditions of a CQL2 JSON filter; none without one."""
    if wanted is None:
        return []
    language = asked.get("filter-lang", asked.get("filter_lang", "cql2-json"))
    if language != "cql2-json":
        raise ValueError(f"filter-lang: {str(language)[:40]!r}; only cql2-json is supported")
    return [_expression(wanted, 0)]


def _expression(node: Any, depth: int) -> Condition:
    if not isinstance(node, dict) or not isinstance(node.get("args"), list) or depth > _DEEPEST:
        raise ValueError('filter: expressions like {"op": "<=", "args": [...]} are needed')
    kind, args = node.get("op"), node["args"]
    if kind in ("and", "or") and args:
        parts = [_expression(part, depth + 1) for part in args]
        return _all(parts) if kind == "and" else _any(parts)
    if kind == "not" and len(args) == 1:
        inner = _expression(args[0], depth + 1)
        return lambda look: not inner(look)
    if not args or not isinstance(args[0], dict):
        raise ValueError(f"filter: the first argument of {str(kind)[:40]!r} must be a property")
    name = _known(args[0].get("property"))
    if kind in _SIGNS and len(args) == 2:
        return _compare(_SIGNS[kind], name, _literal(args[1]))
    if kind == "between" and len(args) == 3:
        return _all([_compare("gte", name, _literal(args[1])), _compare("lte", name, _literal(args[2]))])
    if kind == "in" and len(args) == 2 and isinstance(args[1], list):
        return _any([_compare("eq", name, _literal(one)) for one in args[1]])
    if kind == "isNull" and len(args) == 1:
        return lambda look: look(name) is None
    raise ValueError(f"filter: operator {str(kind)[:40]!r} with {len(args)} arguments is not supported")


def _literal(value: Any) -> Any:
    """A plain value; times of CQL2 are compared as text, which sorts as time does."""
    return value.get("timestamp", value.get("date")) if isinstance(value, dict) else value
