"""The tools a request offers, bound by their schemas: what each is for, and the arguments it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.offline.chat.protocol import ChatRequest

ZOOM, SEARCH, GEOCODE = "zoom", "search", "geocode"
TIPS, KEYWORD, DETAIL, MAP, SATELLITE = "tips", "keyword", "detail", "map", "satellite"
PURPOSES = (ZOOM, SEARCH, GEOCODE, TIPS, KEYWORD, DETAIL, MAP, SATELLITE)

# Read from name and description; the first that fits decides, so the narrow ones stand first.
_PURPOSE_WORDS = (
    (ZOOM, r"zoom|crop|bbox"),
    (SATELLITE, r"satellite|aerial"),
    (DETAIL, r"detail"),
    (TIPS, r"tips|autocomplete|suggest|typeahead"),
    (MAP, r"static_?map|map_(?:query|image|picture)|street_?map"),
    (GEOCODE, r"geocod|coordinates of"),
    (KEYWORD, r"poi|keyword|nearby|places?_search"),
    (SEARCH, r"search|web|browse"),
)
_TOOLS_BLOCK = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)


@dataclass(frozen=True)
class Tool:
    """One offered function."""

    name: str
    purpose: str  # one of PURPOSES, or "" where the model does not understand what it is for
    parameters: Mapping[str, Any]
    about: str

    def arguments(self, value: Any, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The arguments that carry the one value the purpose needs, named and typed as the schema says."""
        properties = self.parameters.get("properties")
        named: dict[str, Any] = properties if isinstance(properties, dict) else {}
        listed = self.parameters.get("required")
        required = [str(name) for name in listed] if isinstance(listed, list) else []
        main = next((name for name in required if name in named), next(iter(named), "value"))
        main = next((name for name in named if _fits_purpose(name, self.purpose)), main)
        found = {main: _shaped(value, named.get(main), self.about)}
        for name in required:
            if name not in found and name in named:
                found[name] = _default(name, named[name], extra or {})
        return found

    def value_in(self, arguments: Mapping[str, Any]) -> Any:
        """The value an earlier call of this tool carried."""
        for name, value in arguments.items():
            if _fits_purpose(name, self.purpose):
                return value
        return next(iter(arguments.values()), None)


def offered(request: ChatRequest) -> dict[str, Tool]:
    """The tools of a request by name: those of `tools`, else those of a `<tools>` block in its prompt."""
    if request.tools:
        return {name: _tool(name, schema, request.tool_notes.get(name, "")) for name, schema in request.tools.items()}
    found: dict[str, Tool] = {}
    for block in _TOOLS_BLOCK.findall(request.system):
        for line in block.splitlines():
            function = _function(line)
            if function is not None:
                found[function["name"]] = _tool(
                    function["name"], function.get("parameters") or {}, str(function.get("description") or "")
                )
    return found


def in_text(request: ChatRequest) -> bool:
    """Whether calls are to be written as text: tools stand in the prompt and not in the request."""
    return not request.tools and bool(_TOOLS_BLOCK.search(request.system))


def call_text(name: str, arguments: str) -> str:
    """A call as models write it that were not given a tool protocol."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _function(line: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    function = parsed.get("function", parsed) if isinstance(parsed, dict) else None
    return function if isinstance(function, dict) and isinstance(function.get("name"), str) else None


def _tool(name: str, schema: Any, about: str) -> Tool:
    parameters = schema if isinstance(schema, dict) else {}
    return Tool(name, purpose_of(name, about, parameters), parameters, about)


def purpose_of(name: str, about: str, parameters: Mapping[str, Any]) -> str:
    """What a tool is for, by its name, its parameters' names, then its description."""
    properties = parameters.get("properties")
    fields = " ".join(properties) if isinstance(properties, dict) else ""
    for text in (name, fields, about):
        for purpose, words in _PURPOSE_WORDS:
            if re.search(words, text, re.IGNORECASE):
                return purpose
    return ""


_MAIN = {
    ZOOM: r"bbox|box|region|area|rect",
    SEARCH: r"query|q$|keywords?|text|question",
    GEOCODE: r"address|query|place|location|name",
    TIPS: r"text|keywords?|query|input|prefix",
    KEYWORD: r"keywords?|query|text|name",
    DETAIL: r"id$|poi",
    MAP: r"cent(?:er|re)|location|point|coord|lat",
    SATELLITE: r"cent(?:er|re)|location|point|coord|lat",
}


def _fits_purpose(name: str, purpose: str) -> bool:
    return purpose in _MAIN and re.search(_MAIN[purpose], name, re.IGNORECASE) is not None


def _shaped(value: Any, schema: Any, about: str) -> Any:
    """The value in the type the schema wants: a point as "lat,lon", as an array or as an object."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    told = f"{about} {schema.get('description', '') if isinstance(schema, dict) else ''}".lower()
    if isinstance(value, tuple) and len(value) == 2:  # a point: lat, lon
        lat, lon = (round(float(part), 5) for part in value)
        first_lon = bool(re.search(r"(?:lon|lng)\w*\s*[,;]\s*lat", told))
        if kind == "object":
            names = schema.get("properties") if isinstance(schema.get("properties"), dict) else {"lat": {}, "lon": {}}
            return {name: lat if "lat" in name.lower() else lon for name in names}
        pair = [lon, lat] if first_lon else [lat, lon]
        return pair if kind == "array" else ",".join(str(part) for part in pair)
    if isinstance(value, list) and kind == "string":
        return ", ".join(str(part) for part in value)
    if isinstance(value, list) and kind == "object" and isinstance(schema.get("properties"), dict):
        return dict(zip(schema["properties"], value, strict=False))
    return value


def _default(name: str, schema: Any, extra: Mapping[str, Any]) -> Any:
    """A value for a required parameter beside the main one."""
    for other, value in extra.items():
        if other in name.lower():
            return value
    described = schema if isinstance(schema, dict) else {}
    if "default" in described:
        return described["default"]
    options = described.get("enum")
    if isinstance(options, list) and options:
        return options[0]
    kinds = {"integer": 15, "number": 15.0, "boolean": False, "array": [], "object": {}}
    return kinds.get(str(described.get("type")), "")
