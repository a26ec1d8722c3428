"""The JSON object a prompt shows as an example, read as a schema: keys and nesting count, values do not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

DEEPEST = 12
_LONGEST = 60_000


@lru_cache(maxsize=512)
def templates_in(text: str) -> tuple[dict[str, Any], ...]:
    """The JSON-like objects with keys that a text shows, as object schemas, in their order."""
    found: list[dict[str, Any]] = []
    at = 0
    text = text[:_LONGEST]
    while (start := text.find("{", at)) >= 0:
        schema, end = _object(text, start + 1, 0)
        if schema.get("properties"):
            found.append(schema)
            at = max(end, start + 1)
        else:
            at = start + 1
    return tuple(found)


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    properties: dict[str, Any] = {}
    while at < len(text) and depth < DEEPEST:
        char = text[at]
        if char == "}":
            return {"type": "object", "properties": properties}, at + 1
        if char == '"':
            key, after = _string(text, at)
            colon = _skip(text, after)
            if colon < len(text) and text[colon] == ":" and len(key) <= 60:
                properties[key], at = _value(text, _skip(text, colon + 1), depth + 1)
                continue
            at = after
            continue
        at += 1
    return {"type": "object", "properties": {}}, at


def _value(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    if at >= len(text) or depth > DEEPEST:
        return {}, at
    if text[at] == "{":
        return _object(text, at + 1, depth)
    if text[at] == "[":
        item, end = _value(text, _skip(text, at + 1), depth + 1)
        return {"type": "array", "items": item}, _closing(text, end)
    if text[at] == '"':
        return {"type": "string"}, _string(text, at)[1]
    end = at
    while end < len(text) and text[end] not in ",}]\n":
        end += 1
    return {}, end


def _string(text: str, at: int) -> tuple[str, int]:
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    return text[at + 1 : end], min(len(text), end + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _closing(text: str, at: int) -> int:
    """After the bracket that ends the array, whatever stands before it."""
    depth, end = 1, at
    while end < len(text) and depth:
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if text[end] == "}" and depth == 1:
            return end  # the example left the array open
        end += 1
    return end
