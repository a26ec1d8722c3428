"""The one parser of answers: what a model's text says about a place, or why it says nothing usable.

Thoughts, tool calls (`tool_calls.py`) and tool responses are taken out first. What is left is read in the last
`<answer>` block, else in the last `\\boxed{}`, else whole: JSON, labelled lines, pairs of numbers in the forms of
`coordinates.py`, and GeoAgent's `Country; Region; Place`. A point is read only if it is the only one the text can
mean; otherwise the result is a failure with a reason. There is no default point. A pair without any mark is
`lat, lon`, as every recipe asks.
"""

import re
from dataclasses import dataclass, field
from itertools import islice

from tasks.reward.coordinates import (
    MOST_ANGLES,
    Point,
    as_point,
    find_angles,
    point_candidates,
    read_coordinate,
    without_orders,
)
from tasks.reward.fields import CONFLICT, Fields, object_spans, read_json, read_labels
from tasks.reward.spelling import plain_spelling
from tasks.reward.tool_calls import CALL_TAGS, call_spans

_OPEN = re.compile(r"<(?:final[_ ]?)?answer(?:\s[^<>]{0,80})?>", re.IGNORECASE)
_CLOSE = re.compile(r"</(?:final[_ ]?)?answer\s{0,5}>", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\s?\{")
# Where a text that names several points says which one it means.
_FINALLY = re.compile(
    r"final(?:ly)?[\s,]{1,3}(?:the\s)?(?:answer|coordinates?|location|estimate|guess|prediction|decision)"
    r"|(?:my|the)\s(?:best|final)\s(?:answer|guess|estimate|coordinates)|best\s(?:guess|estimate)"
    r"|\banswer\s?:|最终答案|答案",
    re.IGNORECASE,
)
# The forms that recipes ask for and nothing around them: read at once, as the slow path would read them. Names may
# stand before a pair: in `Mexico, Sección 23, 19.78778, -97.37917` the number at the end of a name is no coordinate.
_PLAIN = re.compile(
    r"\s{0,5}(?:(?:(?!.{0,300}\b[Ll](?:at|on|ng))(?u:[^\W\d_]{3}[^,;:<>.\n]{0,100}, ?){1,3})?"
    r"(?P<lat>-?\d{1,2}\.\d{1,15}), ?(?P<lon>-?\d{1,3}\.\d{1,15})"
    r"|[Ll]atitude: (?P<north>-?\d{1,2}\.\d{1,15})(?:\n|, )[Ll]ongitude: (?P<east>-?\d{1,3}\.\d{1,15}))\s{0,5}",
    re.ASCII,
)
_MAX_NAME = 200
_MOST_OBJECTS = 50  # of a flood of `{}` the last ones are read
# Characters of an answer block, of a text without one, and of a whole completion; what is longer is not read.
MAX_ANSWER, MAX_TEXT, MAX_COMPLETION = 4_000, 30_000, 100_000
MAX_PLAIN = 9_000  # of a text in one spelling, in which a sign such as 纬度 is a word: more is a flood of such signs
TAIL = 6_000  # of a long text without an answer block only the end is read, where a conclusion stands
SAME_DEGREES = 0.011  # one point written twice: rounded to two decimals, or to a minute of arc


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
    if len(text) > MAX_COMPLETION:
        return ParseFailure("too_long")
    aloud = strip_reasoning(text)
    opened = list(_OPEN.finditer(aloud))
    if not opened:
        boxed = _boxed(aloud)
        if boxed is not None:
            return _read(boxed, tagged=True)
        if len(aloud) > MAX_TEXT:
            return ParseFailure("too_long")
        tail = aloud[-TAIL:]
        return _read(aloud if len(aloud) <= TAIL else tail.partition("\n")[2] or tail, tagged=False)
    start = opened[-1].end()
    closed = _CLOSE.search(aloud, start)
    body = aloud[start : closed.start() if closed else len(aloud)]
    if not body.strip():
        return ParseFailure("empty")
    # Generation that ran out of tokens can end inside a number, and half a longitude is another place.
    if closed is None and body[-1:] in "0123456789.+-":
        return ParseFailure("truncated", text=body[:MAX_ANSWER])
    boxed = _boxed(body)
    return _read(body if boxed is None else boxed, tagged=True)


def parse_point(text: str | None) -> ParsedAnswer | ParseFailure:
    """As `parse_answer`, where only coordinates will do: an address alone is the failure `no_coordinates`."""
    return require_point(parse_answer(text))


def require_point(answer: ParsedAnswer | ParseFailure) -> ParsedAnswer | ParseFailure:
    """The answer if it has a point or a reason already, else the failure `no_coordinates`."""
    if isinstance(answer, ParsedAnswer) and not answer.has_point:
        return ParseFailure("no_coordinates", answer.address, answer.text)
    return answer


def _boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` holds, if it is closed."""
    opened = list(_BOXED.finditer(text))
    if not opened:
        return None
    start, depth = opened[-1].end(), 1
    for match in re.compile(r"[{}]").finditer(text, start, start + MAX_ANSWER):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return text[start : match.start()] or None
    return None


def _read(body: str, tagged: bool) -> ParsedAnswer | ParseFailure:
    if tagged and len(body) > MAX_ANSWER:
        return ParseFailure("too_long")
    plainly = _PLAIN.fullmatch(body)
    if plainly is not None:
        lat, lon = float(plainly["lat"] or plainly["north"]), float(plainly["lon"] or plainly["east"])
        if abs(lat) <= 90 and abs(lon) <= 180:
            return ParsedAnswer(lat, lon, Address(), body)
    return _read_closely(body, tagged)


def _read_closely(body: str, tagged: bool) -> ParsedAnswer | ParseFailure:
    spans = object_spans(body)[-_MOST_OBJECTS:]
    objects = [fields for start, end in spans if (fields := _read_object(body[start:end]))]
    placed = [fields for fields in objects if fields.keys() & {"lat", "lon", "pair", "riap"}]
    if placed:
        # A text may draft before it answers; inside an answer block two points are not an answer.
        answer = _from_fields(placed[-1], body)
        if tagged and any(_from_fields(other, body) != answer for other in placed[:-1]):
            return ParseFailure("ambiguous", text=body)
        return answer
    for fields in reversed(objects):
        if fields.keys() & {"address", "country", "city"}:
            return _from_fields(fields, body)
    inner = next((fields["text"] for fields in reversed(objects) if isinstance(fields.get("text"), str)), None)
    loose = plain_spelling(body if inner is None else str(inner))
    if len(loose) > MAX_PLAIN:
        return ParseFailure("too_long", text=body)
    tagged = tagged or inner is not None
    loose_answer = _read_loose(loose, body, tagged)
    if isinstance(loose_answer, ParseFailure) and loose_answer.reason == "ambiguous":
        marks = list(_FINALLY.finditer(loose))
        if marks:
            last = _read_loose(loose[marks[-1].end() :], body, tagged)
            if isinstance(last, ParsedAnswer) and last.has_point:
                return last
    return loose_answer


def _read_loose(loose: str, body: str, tagged: bool) -> ParsedAnswer | ParseFailure:
    fields, twice = read_labels(without_orders(loose))
    address = _address(fields)
    points: list[Point | str] = []
    if "lat" in fields and ("lon" in fields or tagged):
        labelled = _labelled(fields)
        if twice:
            return ParseFailure("ambiguous", address, body)
        points.append(labelled)
    elif not fields.keys() & {"lat", "lon"}:
        after = _labelled_after(loose)
        if after is not None:
            points.append(after)
    candidates = point_candidates(loose, tagged)
    if points and not isinstance(points[0], str):
        # Labels decide; a pair that says the same in another form is not a second point.
        points += [
            candidate.place for candidate in candidates if not isinstance(candidate.place, str) and candidate.strong
        ]
    elif not points:
        points += [candidate.place for candidate in candidates]
    if points:
        first = next((point for point in points if not isinstance(point, str)), points[0])
        if any(point == "ambiguous" or not _same(point, first) for point in points):
            reason = "ambiguous" if len(points) > 1 else str(points[0])
            return ParseFailure(reason, address, body)
        if isinstance(first, str):
            return ParseFailure(first, address, body)
        return ParsedAnswer(*first, address, body)
    if "lon" in fields and tagged:
        return ParseFailure("missing_lat", address, body)
    levels = split_levels(loose)
    if levels is not None and not fields:
        return ParsedAnswer(None, None, levels, body)
    return ParseFailure("no_coordinates" if tagged else "no_answer", address, body)


def _same(point: Point | str, other: Point | str) -> bool:
    if isinstance(point, str) or isinstance(other, str):
        return point == other
    return all(abs(a - b) <= SAME_DEGREES for a, b in zip(point, other, strict=True))


def _labelled(fields: Fields) -> Point | str:
    return as_point(read_coordinate(fields.get("lat"), "lat"), read_coordinate(fields.get("lon"), "lon"))


_AFTER = {
    "lat": re.compile(r"\s{0,2}[(\"']?\s?lat(?:itude)?(?![A-Za-z])\s{0,2}(?![:=~]|is|of)", re.IGNORECASE),
    "lon": re.compile(r"\s{0,2}[(\"']?\s?(?:longitude|long|lon|lng)(?![A-Za-z])\s{0,2}(?![:=~]|is|of)", re.IGNORECASE),
}


def _labelled_after(text: str) -> Point | str | None:
    """The point in `48.85 latitude, 2.29 longitude`; None if the text labels nothing that way."""
    if not re.search(r"\d[^\n]{0,30}lat", text, re.IGNORECASE):
        return None
    by_axis: dict[str, float | str] = {}
    numbers = list(islice(find_angles(text), MOST_ANGLES + 1))
    if len(numbers) > MOST_ANGLES:
        return None
    for angle in numbers:
        for axis in ("lat", "lon"):
            if _AFTER[axis].match(text, angle.end):
                value = angle.on("lat" if axis == "lat" else "lon")
                if by_axis.get(axis, value) != value:
                    return "ambiguous"
                by_axis[axis] = value
    return as_point(by_axis["lat"], by_axis["lon"]) if len(by_axis) == 2 else None


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
    return read_labels(plain_spelling(text))[0] if fields is None else fields


def _from_fields(fields: Fields, body: str) -> ParsedAnswer | ParseFailure:
    address = _address(fields)
    if fields.get(CONFLICT):
        return ParseFailure("ambiguous", address, body)
    if "lat" not in fields and "lon" not in fields:
        if "pair" in fields or "riap" in fields:
            place = _listed(fields.get("pair", fields.get("riap")), swapped="pair" not in fields)
            if isinstance(place, str):
                return ParseFailure(place, address, body)
            return ParsedAnswer(*place, address, body)
        if isinstance(fields.get("address"), str) and address.region:
            return ParsedAnswer(None, None, address, body)  # GeoAgent's FinalAnswer: an address is all it promises
        return ParseFailure("missing_coordinates", address, body)
    place = _labelled(fields)
    if isinstance(place, str):
        return ParseFailure(place, address, body)
    return ParsedAnswer(*place, address, body)


def _listed(value: object, swapped: bool) -> Point | str:
    """The point in a list of two numbers, or in a text that is a pair."""
    if isinstance(value, str):
        candidates = point_candidates(
            f"{'lon, lat' if swapped else 'coordinates'}: {plain_spelling(value[:200])}", tagged=True
        )
        places = [candidate.place for candidate in candidates]
        return places[0] if len(places) == 1 else "ambiguous" if places else "not_a_number"
    if not isinstance(value, list) or len(value) not in (2, 3):
        return "missing_coordinates" if value is None else "not_a_number"
    first, second = value[:2]
    return _labelled({"lat": second, "lon": first} if swapped else {"lat": first, "lon": second})


def _address(fields: Fields) -> Address:
    def name(key: str) -> str | None:
        value = fields.get(key)
        return value.strip()[:_MAX_NAME] or None if isinstance(value, str) else None

    written = Address(name("country"), name("region"), name("city"))
    return written or split_levels(name("address") or "") or written


_NAMES = (
    "think|thinking|thought|thoughts|reasoning|reflection|scratchpad"
    "|tool_responses?|tool_results?|tool_outputs?|function_results?|observation"
)
_TAG = re.compile(
    rf"<(?P<close>/?)(?=[a-z])(?:(?P<call>{CALL_TAGS})(?:[\s=][^<>]{{0,80}})?|(?P<name>{_NAMES})(?:\s[^<>]{{0,80}})?)>",
    re.IGNORECASE,
)


def strip_reasoning(text: str) -> str:
    """The text without thoughts, tool calls and tool responses, and without the words that lead up to a call.

    A closing tag without an opening one ends a block that began in the prompt, so all before it goes. A block that is
    not closed runs to the end: what a thought quotes is not an answer, whether or not there was room to finish it.
    """
    kept = _Kept()
    inside: list[str] = []
    at = 0
    for tag in _TAG.finditer(text):
        name = (tag["call"] or tag["name"]).casefold().removesuffix("s")
        if not inside:
            kept.add(text[at : tag.start()])
        if tag["call"]:
            kept.end_at_call()
        if not tag["close"]:
            inside.append(name)
        elif name in inside:
            while inside.pop() != name:
                pass
        elif not inside:
            kept = _Kept()
        at = tag.end()
    if not inside:
        kept.add(text[at:])
    # A line break keeps what stood before a block from running into what follows it.
    aloud = "\n".join(kept.pieces)
    spans = call_spans(aloud)
    if not spans:
        return aloud
    kept, at = _Kept(), 0
    for start, end in spans:
        kept.add(aloud[at:start])
        kept.end_at_call()
        at = end
    kept.add(aloud[at:])
    return "\n".join(kept.pieces)


class _Kept:
    """The pieces of a text that are said aloud; words before a tool call are thought, unless they hold an answer."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._has_answer = False

    def add(self, piece: str) -> None:
        if piece.strip():
            self.pieces.append(piece)
            self._has_answer = self._has_answer or bool(_OPEN.search(piece) or _BOXED.search(piece))

    def end_at_call(self) -> None:
        if not self._has_answer:
            self.pieces.clear()
