"""An answer in the form that is requested: labelled lines, JSON, or levels divided by semicolons.

The form is read from the request's own words or its JSON schema, never assumed: a prompt that asks for `Country: ...`
lines gets lines, one that shows a JSON object gets its keys in its order. Without a demand the answer is a JSON object.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from infra.offline.chat.protocol import ChatRequest, Reply

DEEPEST_SCHEMA = 24  # a schema may refer to itself; an answer ends
_LONGEST = 60_000
_MARK = re.compile(r'"((?:\\.|[^"\\\n])*)"(\s*:)?|[{}]')  # of JSON: strings, keys, braces
# Names of values in one line, such as `Country; Region; Specific Location`.
_LISTED = re.compile(r"\bCountry\s*(?P<mark>[;,])\s*[A-Z][\w ]*(?:(?P=mark)\s*[A-Z][\w ]*)+")
_LINE = re.compile(
    r"^[ \t>*-]*([A-Z][A-Za-z_ /]{1,30}?)(?:\*\*)?[ \t]*:[ \t]*(?:\*\*)?[ \t]*(?:\.\.\.|…|<[^<>\n]*>|\[[^\]\n]*\])",
    re.M,
)
# What a label may be called, to the value it stands for.
FIELDS = {
    "country": "country", "region": "region", "state": "region", "province": "region", "stateorprovince": "region",
    "city": "city", "town": "city", "place": "place", "address": "address", "location": "location",
    "specificlocation": "place", "street": "street",
    "lat": "lat", "latitude": "lat", "lon": "lon", "lng": "lon", "longitude": "lon", "coordinates": "coordinates",
    "confidence": "confidence", "explanation": "explanation", "reason": "explanation", "reasoning": "explanation",
    "answer": "levels", "finalanswer": "levels",
}  # fmt: skip
_PLACES = {"country", "city", "lat", "location", "coordinates", "address"}


def fill_schema(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """JSON text that follows the schema; properties are matched to known values by name.

    With an empty schema (`json_object`) all known values are given. Where a name is not known, the
    least telling value of its type is given, as a model does that must name what it cannot see.
    """
    return json.dumps(_fill(schema, known, known, schema) if schema else known, ensure_ascii=False)


def _fill(schema: Any, value: Any, known: dict[str, Any], root: dict[str, Any], depth: int = 0) -> Any:
    if not isinstance(schema, dict) or depth > DEEPEST_SCHEMA:
        return value

    def fill(part: Any, of: Any) -> Any:
        return _fill(part, of, known, root, depth + 1)

    if isinstance(schema.get("$ref"), str):
        group, _, name = schema["$ref"].removeprefix("#/").partition("/")  # `#/$defs/<name>`
        definitions = root.get(group)
        return fill(definitions.get(name) if isinstance(definitions, dict) else None, value)
    if isinstance(schema.get("anyOf"), list) and schema["anyOf"]:
        nothing = [option for option in schema["anyOf"] if isinstance(option, dict) and option.get("type") == "null"]
        something = [option for option in schema["anyOf"] if option not in nothing]
        return fill(((nothing if value is None else something) or schema["anyOf"])[0], value)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list) and listed:
        return (_alike(str(value), [(str(option), option) for option in listed]) or listed)[0]
    kinds_listed = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    if value is None and "null" in kinds_listed:
        return None
    kind = next((kind for kind in kinds_listed if kind != "null"), None)
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties:
        values = [*(value if isinstance(value, dict) else known).items(), *known.items()]
        return {name: fill(part, next(iter(_alike(name, values)), None)) for name, part in properties.items()}
    if kind == "object":
        return value if isinstance(value, dict) else {}
    if kind == "array":
        value = value.get("bbox_2d", [value]) if isinstance(value, dict) else value
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        limit = schema.get("maxItems")
        return [
            fill(schema.get("items"), item) for item in (items[: max(0, limit)] if isinstance(limit, int) else items)
        ]
    if kind in ("number", "integer"):
        number = float(value) if isinstance(value, int | float) else 0.0
        for name, bound in (("minimum", max), ("maximum", min)):
            if isinstance(schema.get(name), int | float):
                number = bound(number, float(schema[name]))
        return round(number) if kind == "integer" else number
    if kind == "boolean":
        return value in (True, "yes")
    return _text(value) if kind == "string" else value


def _text(value: Any) -> str:
    """The value as a text: of an entry its main part."""
    if isinstance(value, dict):
        value = next((value[name] for name in ("query", "Conclusion") if name in value), value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "; ".join(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _alike(name: str, values: list[tuple[str, Any]]) -> list[Any]:
    """What stands under this name, or under names that mean the same when spelled loosely."""
    key = _key(name)
    exact = [value for other, value in values if _key(other) == key]
    return exact or [value for other, value in values if _key(other) in key or key in _key(other)]


def shown_keys(text: str) -> list[list[str]]:
    """The keys of each JSON-like object that a text shows, of the outermost ones; values may be words or dots."""
    shown: list[list[str]] = []
    keys: list[str] = []
    depth = 0
    for mark in _MARK.finditer(text[:_LONGEST]):
        if depth == 1 and mark[2]:
            keys.append(mark[1])
        depth = max(0, depth + {"{": 1, "}": -1}.get(mark[0], 0))
        if depth == 0 and keys:
            shown.append(keys)
            keys = []
    return shown


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
        levels = (self.country, self.region or self.city, self.place)
        values: dict[str, Any] = {
            **vars(self),
            "region": self.region or self.city,
            "place": self.place,
            "street": self.street or self.city,
            "address": ", ".join(part for part in (self.street, self.city, self.region, self.country) if part),
            "location": ", ".join(part for part in (self.city, self.country) if part),
            "lat": round(self.lat, 5),
            "lon": round(self.lon, 5),
            "coordinates": f"{self.lat:.5f}, {self.lon:.5f}",
            "confidence": round(100 * self.confidence) if percent else round(self.confidence, 2),
            "levels": "; ".join(part for part in levels if part),
        }
        return values[field]

    @property
    def place(self) -> str:
        """The finest level: street and city."""
        return ", ".join(part for part in (self.street, self.city) if part)


def field_of(label: str) -> str | None:
    """The plain name of a label as a prompt writes it, or None."""
    return FIELDS.get(_key(label))


def write_answer(request: ChatRequest, thought: str, answer: Answer) -> Reply:
    """The last message: the thought, then the answer in the form the prompt asks for.

    Tags stand around both, unless the prompt shows a form without them.
    """
    prompt, body = request.prompt, answer_body(request.prompt, answer)
    if "<answer>" in prompt or not (_labels(prompt) or _keys(prompt)):
        return Reply(f"<think>{thought}</think><answer>{body}</answer>")
    return Reply(f"<think>{thought}</think>{body}" if "<think>" in prompt else f"{thought}\n{body}")


def answer_body(prompt: str, answer: Answer) -> str:
    """The answer as the prompt wants it."""
    labels = _labels(prompt)
    listed = None if labels or _keys(prompt) else _LISTED.search(prompt)
    names = re.split(r"\s*[;,]\s*", listed[0]) if listed else labels or _keys(prompt)
    is_percent = "%" in prompt or "percent" in prompt
    filled = {}
    for name in names or ["country", "city", "lat", "lon"]:
        value = answer.value(field_of(name) or "explanation", is_percent)
        filled[name] = value if value != "" else answer.country or "unknown"
    if listed:
        mark = listed["mark"]
        return f"{mark} ".join(str(value).replace(mark, "") for value in filled.values())
    if labels:
        return "".join(["\n", *(f"{label}: {value}\n" for label, value in filled.items())])
    return json.dumps(filled, ensure_ascii=False)


def _labels(prompt: str) -> list[str]:
    """The labels of the lines the prompt shows, one for each value; none where they name no place."""
    labels = {field: label.strip() for label in reversed(_LINE.findall(prompt)) if (field := field_of(label))}
    return list(reversed(labels.values())) if labels.keys() & _PLACES else []


def _keys(prompt: str) -> list[str]:
    """The keys of the last object the prompt shows that has a place's."""
    return next((keys for keys in reversed(shown_keys(prompt)) if {field_of(key) for key in keys} & _PLACES), [])
