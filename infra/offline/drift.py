"""Answers that are not what they were: a field renamed, retyped or gone, and records that come twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from infra.offline.faults import DRIFTS, Fault
from infra.offline.seeded_random import fraction, key_of

# Where the services keep their records, outermost first.
_LISTS = ("data", "results", "features", "web", "pois", "tips", "choices")


def change_json(body: bytes, duplicate: Fault | None, drifts: Sequence[Fault], request: str) -> bytes:
    """The body with its records changed; what is no JSON, or has no records, comes back as it was."""
    if duplicate is None and not drifts:
        return body
    try:
        value = json.loads(body)
    except ValueError:
        return body
    rows = _records(value)
    for drift in drifts:
        _drift(rows if rows else [value] if isinstance(value, dict) else [], drift, request)
    if duplicate is not None and rows:
        rows.append(rows[key_of("duplicate", request) % len(rows)])
    return json.dumps(value, ensure_ascii=False).encode()


def _records(value: Any) -> list[Any]:
    """The list of records in an answer, itself and not a copy; an empty list where it has none."""
    if isinstance(value, list):
        return value
    for name in _LISTS:
        if isinstance(value, dict) and isinstance(value.get(name), list | dict):
            return _records(value[name])
    return []


def _drift(rows: list[Any], rule: Fault, request: str) -> None:
    records = [row for row in rows if isinstance(row, dict)]
    names = sorted({name for row in records for name in row})
    if not names:
        return
    name = rule.field or names[int(fraction("drifting field", request) * len(names))]
    how = rule.how or DRIFTS[int(fraction("drift", request) * len(DRIFTS))]
    for row in records:
        if name not in row:
            continue
        value = row.pop(name)
        if how == "rename":
            row[_renamed(name)] = value
        elif how == "retype":
            row[name] = _retyped(value)


def _renamed(name: str) -> str:
    """The other usual spelling: camel case for snake case and the other way round, else with a version."""
    head, *tail = name.split("_")
    if tail and all(tail):
        return head + "".join(part.capitalize() for part in tail)
    snake = "".join(f"_{ch.lower()}" if ch.isupper() else ch for ch in name)
    return snake if snake != name else f"{name}_v2"


def _retyped(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        # An id as a number is what real services did to their clients.
        return int(value) if value.isdigit() else {"value": value}
    return [value] if isinstance(value, dict) else {"items": value} if isinstance(value, list) else ""
