"""An answer in the form that is asked for: labelled lines, JSON, or levels divided by semicolons.

The form is read from the request's own words or its JSON schema, never assumed: a prompt that asks for `Country: ...`
lines gets lines, one that shows a JSON object gets its keys in its order. Without a demand the answer is a JSON object.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from infra.offline.chat.protocol import ChatRequest

DEEPEST_SCHEMA = 24  # a schema may refer to itself; an answer ends
_LONGEST = 60_000
_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:"]|[^"{}\[\],:]+')  # of JSON: strings, marks, what stands between
_LEVELS = re.compile(r"\bCountry\s*;\s*(?:Region|State|Province)\w*(?:\s*/\s*\w+)?\s*;\s*[\w <>.]+", re.IGNORECASE)
_LINE = re.compile(
    r"^[ \t>*-]*(?P<label>[A-Z][A-Za-z_ /]{1,30}?)(?:\*\*)?[ \t]*:[ \t]*(?:\*\*)?[ \t]*(?P<rest>\.\.\.|…|<[^<>\n]*>"
    r"|\[[^\]\n]*\]|\{[^{}\n]*\}|_{2,})",
    re.MULTILINE,
)
# What a label may be called, to the value it stands for.
FIELDS = {
    "country": "country", "countryname": "country", "nation": "country",
    "region": "region", "state": "region", "province": "region", "stateorprovince": "region", "provincestate": "region",
    "provinceorstate": "region", "stateprovince": "region", "admin1": "region",
    "city": "city", "town": "city", "cityname": "city", "cityortown": "city",
    "place": "place", "address": "address", "location": "location", "specificlocation": "place",
    "preciselocation": "place", "street": "street", "streetaddress": "address",
    "lat": "lat", "latitude": "lat", "lon": "lon", "lng": "lon", "long": "lon", "longitude": "lon",
    "coordinates": "coordinates", "coordinate": "coordinates", "gps": "coordinates",
    "confidence": "confidence", "confidencepercent": "confidence", "certainty": "confidence",
    "probability": "confidence",
    "explanation": "explanation", "reason": "explanation", "reasoning": "explanation", "rationale": "explanation",
    "justification": "explanation", "evidence": "explanation", "summary": "explanation",
    "answer": "levels", "finalanswer": "levels",
}  # fmt: skip


def fill_schema(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """JSON text that follows the schema; properties are matched to known values by name.

    With an empty schema (`json_object`) all known values are given. Where a name is not known, the
    least telling value of its type is given, as a model does that was asked for what it cannot see.
    """
    if not schema:
        return json.dumps(known, ensure_ascii=False)
    groups = {name: schema.get(name) for name in ("$defs", "definitions")}
    root: dict[str, Any] = {name: group for name, group in groups.items() if isinstance(group, dict)}
    return json.dumps(_fill_value(schema, known, known, root), ensure_ascii=False)


def _fill_value(schema: Any, value: Any, known: dict[str, Any], root: dict[str, Any], depth: int = 0) -> Any:
    if not isinstance(schema, dict) or depth > DEEPEST_SCHEMA:
        return value
    schema = _resolve(schema, root)
    for key in ("anyOf", "oneOf"):
        listed = schema.get(key)
        options = [_resolve(option, root) for option in listed if isinstance(option, dict)] if _full(listed) else []
        if options:
            fitting = [option for option in options if _fits(option, value)]
            return _fill_value((fitting or options)[0], value, known, root, depth + 1)
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
        values = {name: _find(name, inner, known) for name in properties}
        return {name: _fill_value(part, values[name], known, root, depth + 1) for name, part in properties.items()}
    return _scalar(kind, schema, value, known, root, depth)


def _scalar(
    kind: Any, schema: dict[str, Any], value: Any, known: dict[str, Any], root: dict[str, Any], depth: int
) -> Any:
    if kind == "array":
        if isinstance(value, dict):
            value = next((value[name] for name in ("bbox_2d", "box", "items") if name in value), [value])
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        limit = _bound(schema, "maxItems", len(items))
        return [
            _fill_value(schema.get("items", {}), item, known, root, depth + 1) for item in items[: max(0, int(limit))]
        ]
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
    number = re.search(r"-?\d+(?:\.\d+)?", value) if isinstance(value, str) else None
    return float(number.group()) if number else 0.0


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


@lru_cache(maxsize=512)
def templates_in(text: str) -> tuple[dict[str, Any], ...]:
    """The JSON-like objects with keys that a text shows, as object schemas, in their order."""
    templates: list[dict[str, Any]] = []
    at = 0
    text = text[:_LONGEST]
    while (start := text.find("{", at)) >= 0:
        at = start + 1
        end = _end_of_object(text, start)
        # An example stands for values by words and dots, which are not JSON: of those no type is known.
        parts = _PARTS.findall(text, start, end)
        plain = (part if part[0] in '"{}[],:' else "null" * bool(part.strip()) for part in parts)
        try:
            example = json.loads("".join(plain))
        except (ValueError, RecursionError):
            continue
        if example:
            templates.append(_schema_of(example))
            at = end
    return tuple(templates)


def _end_of_object(text: str, start: int) -> int:
    depth = 0
    for part in _PARTS.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(part[0], 0)
        if depth == 0:
            return part.end()
    return start


def _schema_of(example: Any) -> dict[str, Any]:
    if isinstance(example, dict):
        return {"type": "object", "properties": {name: _schema_of(value) for name, value in example.items()}}
    if isinstance(example, list):
        return {"type": "array", "items": _schema_of(example[0]) if example else {}}
    return {"type": "string"} if isinstance(example, str) else {}


@dataclass(frozen=True)
class Answer:
    """What a model concludes, at every level it can name."""

    lat: float
    lon: float
    country: str = ""
    region: str = ""
    city: str = ""
    street: str = ""
    confidence: float = 0.5  # that the point lies within 25 km
    explanation: str = ""

    def value(self, field: str, percent: bool = True) -> Any:
        """The value of a field by its plain name (one of FIELDS' values)."""
        levels = [part for part in (self.country, self.region or self.city, self.place) if part]
        values: dict[str, Any] = {
            "country": self.country,
            "region": self.region or self.city,
            "city": self.city,
            "place": self.place,
            "street": self.street or self.city,
            "address": ", ".join(part for part in (self.street, self.city, self.region, self.country) if part),
            "location": ", ".join(part for part in (self.city, self.country) if part),
            "lat": round(self.lat, 5),
            "lon": round(self.lon, 5),
            "coordinates": f"{self.lat:.5f}, {self.lon:.5f}",
            "confidence": round(100 * self.confidence) if percent else round(self.confidence, 2),
            "explanation": self.explanation,
            "levels": "; ".join(levels),
        }
        return values[field]

    @property
    def place(self) -> str:
        return ", ".join(part for part in (self.street, self.city) if part)

    def as_json(self) -> dict[str, Any]:
        """The plain object of a model that was asked for no form."""
        plain = {"country": self.country, "city": self.city}
        return plain | {"lat": round(self.lat, 5), "lon": round(self.lon, 5)}


def field_of(label: str) -> str | None:
    """The plain name of a label as a prompt writes it, or None."""
    return FIELDS.get(re.sub(r"[^a-z0-9]", "", label.lower()))


def write_answer(request: ChatRequest, thought: str, answer: Answer) -> str:
    """The last message: the thought, then the answer in the form the prompt asks for."""
    told = prompt_of(request)
    body = answer_body(told, answer)
    head = f"<think>{thought}</think>" if wants_think(told) else f"{thought}\n"
    return f"{head}<answer>{body}</answer>" if "<answer>" in told or not wants_bare(told) else f"{head}{body}"


def prompt_of(request: ChatRequest) -> str:
    """The words that say how to answer: the system's and the user's."""
    return "\n".join(m.text for m in request.messages if m.role in ("system", "developer", "user"))


def wants_think(told: str) -> bool:
    """Whether thoughts go into tags: unless the prompt shows an answer's form and no such tag."""
    return "<think>" in told or not wants_bare(told)


def wants_bare(told: str) -> bool:
    """Whether the prompt shows a form and does not put it into answer tags."""
    return "<answer>" not in told and (_template(told) is not None or len(_labels(told)) >= 2)


def answer_body(told: str, answer: Answer) -> str:
    """The answer as the prompt wants it."""
    lines, template = _labels(told), _template(told)
    if lines:
        return "\n" + "\n".join(f"{label}: {_filled(label, answer, told)}" for label, _ in lines) + "\n"
    if template is not None:
        return json.dumps({key: _filled(key, answer, told) for key in template["properties"]}, ensure_ascii=False)
    if _LEVELS.search(told):
        return str(answer.value("levels"))
    return json.dumps(answer.as_json(), ensure_ascii=False)


def _filled(label: str, answer: Answer, told: str) -> Any:
    field = field_of(label)
    value = answer.explanation if field is None else answer.value(field, percent="%" in told or "percent" in told)
    return value if value != "" else answer.country or "unknown"


def _labels(told: str) -> list[tuple[str, str]]:
    """(label, field) of the labelled lines the prompt shows, once each; at least two of them name a place."""
    labels: dict[str, str] = {}
    for matched in _LINE.finditer(told):
        label = matched.group("label").strip()
        field = field_of(label)
        if field is not None and field not in labels.values():
            labels[label] = field
    known = set(labels.values())
    return list(labels.items()) if len(known & {"country", "city", "lat", "lon", "location", "address"}) >= 1 else []


def _template(told: str) -> dict[str, Any] | None:
    """The last object the prompt shows that has a place's keys."""
    for template in reversed(templates_in(told)):
        if {field_of(key) for key in template["properties"]} & {"lat", "country", "city", "location", "coordinates"}:
            parsed: dict[str, Any] = template
            return parsed
    return None
