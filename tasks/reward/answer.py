"""The one parser of answers: what a model's text says about a place, or why it says nothing usable.

Reads, in the last `<answer>` block or (without one) in the whole text: the fixed JSON `{"lat","lon","city","country"}`
of Thinking with Map, the labelled lines of SpotAgent, `lat, lon`, and GeoAgent's `Country; Region; Place`.
A coordinate that is missing, not finite or off the Earth is a failure with a reason. There is no default point.
Pass the model's own last message: a tool's text may hold an answer block that a web page wrote.
"""

import re
from dataclasses import dataclass, field

from tasks.reward.coordinates import plain, read_coordinate, read_pairs
from tasks.reward.fields import Fields, object_spans, read_json, read_labels

_OPEN = re.compile(r"<answer(?:\s[^<>]{0,80})?>", re.IGNORECASE)
_CLOSE = re.compile(r"</answer\s{0,5}>", re.IGNORECASE)
# What a model thinks, asks of a tool or is told by one is not its answer.
_ASIDE_END = re.compile(r"</(?:think|tool_call|tool_response)\s{0,5}>", re.IGNORECASE)
_ASIDE_OPEN = re.compile(r"<(?:think|tool_call|tool_response)>", re.IGNORECASE)
_MAX_NAME = 200


@dataclass(frozen=True)
class Address:
    """Names of a place, from coarse to fine; None where nothing was said."""

    country: str | None = None
    region: str | None = None  # province or state
    city: str | None = None  # city, or the specific place of GeoAgent's third level

    def __bool__(self) -> bool:
        return any((self.country, self.region, self.city))


@dataclass(frozen=True)
class ParsedAnswer:
    """A usable answer: a point on Earth, an address, or both. `text` is the answer as written."""

    lat: float | None
    lon: float | None
    address: Address = field(default_factory=Address)
    text: str = ""

    @property
    def has_point(self) -> bool:
        return self.lat is not None and self.lon is not None


@dataclass(frozen=True)
class ParseFailure:
    """Why an answer has no usable coordinates, one snake_case word, with what it said besides."""

    reason: str
    address: Address = field(default_factory=Address)
    text: str = ""


def parse_answer(text: str | None) -> ParsedAnswer | ParseFailure:
    """The place a text answers with; `Country; Region; Place` alone gives an address without a point."""
    if not isinstance(text, str) or not text.strip():
        return ParseFailure("empty")
    opened = list(_OPEN.finditer(text))
    if not opened:
        return _read(_outspoken(text), tagged=False)
    start = opened[-1].end()
    closed = _CLOSE.search(text, start)
    body = text[start : closed.start() if closed else len(text)]
    if not body.strip():
        return ParseFailure("empty")
    # Generation that ran out of tokens can end inside a number, and half a longitude is another place.
    if closed is None and body[-1:] in "0123456789.+-":
        return ParseFailure("truncated", text=body)
    return _read(body, tagged=True)


def parse_point(text: str | None) -> ParsedAnswer | ParseFailure:
    """As `parse_answer`, where only coordinates will do: an address alone is the failure `no_coordinates`."""
    return require_point(parse_answer(text))


def require_point(answer: ParsedAnswer | ParseFailure) -> ParsedAnswer | ParseFailure:
    """The answer if it has a point or a reason already, else the failure `no_coordinates`."""
    if isinstance(answer, ParsedAnswer) and not answer.has_point:
        return ParseFailure("no_coordinates", answer.address, answer.text)
    return answer


def _outspoken(text: str) -> str:
    """What follows the last thought or tool call, up to one that was not finished."""
    ends = list(_ASIDE_END.finditer(text))
    start = ends[-1].end() if ends else 0
    opened = _ASIDE_OPEN.search(text, start)
    return text[start : opened.start() if opened else len(text)]


def _read(body: str, tagged: bool) -> ParsedAnswer | ParseFailure:
    objects = [fields for start, end in object_spans(body) if (fields := _read_object(body[start:end]))]
    placed = [fields for fields in objects if "lat" in fields or "lon" in fields]
    if placed:
        # A text may draft before it answers; inside an answer block two points are no answer.
        answer = _from_fields(placed[-1], body)
        if tagged and any(_from_fields(other, body) != answer for other in placed[:-1]):
            return ParseFailure("ambiguous", text=body)
        return answer
    for fields in reversed(objects):
        if "address" in fields or "country" in fields or "city" in fields:
            return _from_fields(fields, body)

    loose = plain(body)
    fields, ambiguous = read_labels(loose)
    if ambiguous:
        return ParseFailure("ambiguous", _address(fields), body)
    if "lat" in fields and ("lon" in fields or tagged):
        return _from_fields(fields, body)
    pairs = read_pairs(loose, whole=True) or (read_pairs(loose, whole=False) if tagged else [])
    if pairs:
        if any(pair != pairs[0] for pair in pairs[1:]):
            return ParseFailure("ambiguous", _address(fields), body)
        if isinstance(pairs[0], str):
            return ParseFailure(pairs[0], _address(fields), body)
        return ParsedAnswer(*pairs[0], _address(fields), body)
    levels = split_levels(loose)
    if levels is not None and not fields:
        return ParsedAnswer(None, None, levels, body)
    return ParseFailure("no_coordinates" if tagged else "no_answer", _address(fields), body)


def split_levels(text: str) -> Address | None:
    """The address in GeoAgent's `Country; Region; Place`, whose last parts may be empty; None for other text."""
    line = text[:1000].strip().rstrip(".")
    if ";" not in line or "\n" in line or len(text.strip()) > 600:
        return None
    country, region, *rest = (part.strip()[:_MAX_NAME] for part in line.split(";"))
    place = "; ".join(part for part in rest if part)[:_MAX_NAME]
    return Address(country, region or None, place or None) if country else None


def _read_object(text: str) -> Fields:
    fields = read_json(text)
    return read_labels(plain(text))[0] if fields is None else fields


def _from_fields(fields: Fields, body: str) -> ParsedAnswer | ParseFailure:
    address = _address(fields)
    if "lat" not in fields and "lon" not in fields:
        if isinstance(fields.get("address"), str) and address.region:
            return ParsedAnswer(None, None, address, body)  # GeoAgent's FinalAnswer: an address is all it promises
        return ParseFailure("missing_coordinates", address, body)
    lat = read_coordinate(fields.get("lat"), "lat")
    if isinstance(lat, str):
        return ParseFailure(lat, address, body)
    lon = read_coordinate(fields.get("lon"), "lon")
    if isinstance(lon, str):
        return ParseFailure(lon, address, body)
    return ParsedAnswer(lat, lon, address, body)


def _address(fields: Fields) -> Address:
    def name(key: str) -> str | None:
        value = fields.get(key)
        return value.strip()[:_MAX_NAME] or None if isinstance(value, str) else None

    written = Address(name("country"), name("region"), name("city"))
    return written or split_levels(name("address") or "") or written
