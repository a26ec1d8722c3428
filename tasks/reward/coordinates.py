"""Points in plain text: `lat, lon` pairs, labelled pairs in either order, WKT, tables, map links.

What is found is a list of candidates; which of them is the answer, if any, is decided in `answer.py`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tasks.reward.angles import Angle, Axis, angle_at, angles, check
from tasks.reward.fields import field_of
from tasks.reward.spelling import plain

Point = tuple[float, float]

_DECIMAL_COMMA = re.compile(r"([-+]?\s?\d{1,3}),(\d{1,20})(?![\d.])")
# Decimal commas of a pair: parted by something else than a comma, or too long to be anything but decimals.
_COMMA_PAIR = re.compile(
    r"(?<![\d.,])(\d{1,3}),(\d{1,20})(\s?°?\s?[NSns]?\s{0,2}(?:[;/|]|\s)\s{0,2}[-+]?)(\d{1,3}),(\d{1,20})(?![\d.,])"
    r"|(?<![\d.,])(\d{1,3}),(\d{4,20})(\s?°?\s?[NSns]?,\s{1,3}[-+]?)(\d{1,3}),(\d{4,20})(?![\d.,])"
    r"|(?<![\d.,])(\d{1,3}),(\d{1,20})(\s?°\s?[NSns]?,?\s{1,3}[-+]?)(\d{1,3}),(\d{1,20})(?=\s?°)"
)
_NOT_GIVEN = re.compile(r"(?:null|none|n/?a|unknown|latitude|longitude|nan\b|tbd|-+|\?+)[.\s\"'}]*", re.IGNORECASE)
_NEARLY = re.compile(
    r"(?:~|=|:|>|(?:approximately|approx[.]?|about|around|roughly|circa|ca[.]|estimated|near|is|at)(?![A-Za-z])|\s)+",
    re.IGNORECASE,
)


def read_coordinate(value: object, axis: Axis) -> float | str:
    """The coordinate in degrees, or why the value is none: a number, or text that is one, whatever surrounds it."""
    if isinstance(value, bool) or value is None:
        return f"missing_{axis}" if value is None else "not_a_number"
    if isinstance(value, int | float):
        return check(float(value), axis)
    if not isinstance(value, str):
        return "not_a_number"
    text = plain(value[:200]).strip(" \t\r\n\"'([{<}])>,;")
    if not text or (_NOT_GIVEN.fullmatch(text) and not re.match(r"nan", text, re.IGNORECASE)):
        return f"missing_{axis}"
    if re.match(r"[-+]?(?:nan|inf)", text, re.IGNORECASE):
        return "not_finite"
    nearly = _NEARLY.match(text[:60])
    text = text[nearly.end() :] if nearly else text
    comma = _DECIMAL_COMMA.match(text)
    if comma is not None:  # under its own label a comma can only be the decimal comma
        text = f"{comma[1]}.{comma[2]}{text[comma.end() :]}"
    found = angle_at(text)
    return "not_a_number" if found is None else found.on(axis)


@dataclass(frozen=True)
class Candidate:
    """A point, or why what was written is none; `strong` if its own form says that it is a place."""

    place: Point | str
    start: int
    strong: bool


_JOINT = re.compile(
    r"\s{0,3}[)\]\"'}]{0,2}\s{0,2}(?P<sep>[,;/|&x×-]|,?\s?(?:and|y|und|et|by|和)\s|)\s{0,3}[(\[\"'{]{0,2}\s{0,2}~?\s?"
)
_LAT, _LON = r"lat(?:itude|itud)?s?[.]?", r"(?:long(?:itude|itud)?|lon|lng)s?[.]?"
_BETWEEN = r"\s{0,2}(?:[,/&|+;-]|and|y|-)?\s{0,2}"
_TO_VALUE = (
    r"\s{0,2}[)\]]?\s{0,2}(?:coordinates?|values?|pair|in decimal degrees)?\s{0,2}(?:[:=~]|is|are|->|\s){0,4}\s{0,3}"
    r"[(\[{\"']{0,2}\s{0,2}\Z"
)
# `lat/lon` says an order; its halves are no labels of the numbers that follow.
_ORDER = re.compile(rf"(?<![A-Za-z])(?:{_LAT}{_BETWEEN}{_LON}|{_LON}{_BETWEEN}{_LAT})(?![A-Za-z])", re.IGNORECASE)
_LAT_FIRST = re.compile(rf"(?<![A-Za-z]){_LAT}{_BETWEEN}{_LON}{_TO_VALUE}", re.IGNORECASE)
_LON_FIRST = re.compile(
    rf"(?:(?<![A-Za-z]){_LON}{_BETWEEN}{_LAT}{_TO_VALUE})|(?:(?<![A-Za-z])POINT\s?Z?\s?\(\s{{0,2}}\Z)", re.IGNORECASE
)
_NAMED = re.compile(
    r"(?:coordinates?|coords?|gps|geolocation|location|lat[/-]?lon[g]?|position|point|located at|answer)"
    r"[^\d\n]{0,40}\Z",
    re.IGNORECASE,
)
_DENIED = re.compile(r"(?:\bnot|n't|rather than|instead of|unlike)\s(?:[a-z]{1,12}\s){0,2}[(\[]?\Z", re.IGNORECASE)
_LINK = re.compile(
    r"https?://[^\s\"'<>)\]]{1,2000}|\bgeo:[-+\d.,]{3,60}",
    re.IGNORECASE,
)
_IN_LINK = (
    re.compile(r"!3d(-?\d{1,3}\.\d{1,20})!4d(-?\d{1,3}\.\d{1,20})"),
    re.compile(
        r"[?&](?:q|ll|query|center|destination|daddr|mlat)=(?:loc:)?(-?\d{1,3}\.\d{1,20})(?:,|%2C|&mlon=)\s?(-?\d{1,3}\.\d{1,20})"
    ),
    re.compile(r"@(-?\d{1,3}\.\d{1,20}),(-?\d{1,3}\.\d{1,20})"),
    re.compile(r"#map=\d{1,2}/(-?\d{1,3}\.\d{1,20})/(-?\d{1,3}\.\d{1,20})"),
    re.compile(r"^geo:(-?\d{1,3}(?:\.\d{1,20})?),(-?\d{1,3}(?:\.\d{1,20})?)"),
)
_NUMBERING = re.compile(r"^(\s{0,8})\d{1,2}[.)](?=\s)", re.MULTILINE)

_MOST_RUNS, MOST_ANGLES = 40, 200  # a text with more lists of numbers, or more numbers, names no one place


def without_orders(text: str) -> str:
    """The text without phrases such as `lat, lon`, for a reader of labels."""
    return _ORDER.sub(lambda match: " " * len(match[0]), text)


def candidates(text: str, tagged: bool) -> list[Candidate]:
    """Every point that plain text names in a form of its own, each with the reason where it is none."""
    found: list[Candidate] = []

    def take_link(match: re.Match[str]) -> str:
        for form in _IN_LINK:
            inside = form.search(match[0])
            if inside is not None:
                found.append(Candidate(_point(float(inside[1]), float(inside[2])), match.start(), True))
                break
        return " " * len(match[0])

    bare = _LINK.sub(take_link, _NUMBERING.sub(r"\1   ", text))
    bare = _COMMA_PAIR.sub(_decimal_points, bare)
    found += [Candidate(place, at, True) for at, place in _tables(bare)]
    if any(one.strong for one in found) and not tagged:
        return found
    numbers = list(islice(angles(bare), MOST_ANGLES + 1))
    runs = [run for run in _runs(bare, numbers) if len(run) > 1]
    if len(runs) > _MOST_RUNS or len(numbers) > MOST_ANGLES:
        return [*found, Candidate("ambiguous", 0, False)]
    for run in runs:
        found += _from_run(bare, run, tagged)
    return sorted(found, key=lambda one: one.start)


def _decimal_points(match: re.Match[str]) -> str:
    a, b, gap, c, d = (group for group in match.groups() if group is not None)
    return f"{a}.{b}{gap}{c}.{d}"


def _runs(text: str, numbers: Sequence[Angle]) -> list[list[Angle]]:
    """Angles that stand beside each other, parted by nothing but a separator."""
    runs: list[list[Angle]] = []
    for angle in numbers:
        last = runs[-1][-1] if runs else None
        if last is not None and angle.start - last.end <= 12 and _JOINT.fullmatch(text, last.end, angle.start):
            runs[-1].append(angle)
        else:
            runs.append([angle])
    return runs


def _from_run(text: str, run: list[Angle], tagged: bool) -> list[Candidate]:
    before = text[max(0, run[0].start - 60) : run[0].start]
    if len(run) == 3:
        run = _without_third(run)
    if len(run) < 2 or _DENIED.search(before):
        return []
    swapped = _LON_FIRST.search(before) is not None
    explicit = swapped or _LAT_FIRST.search(before) is not None
    if len(run) % 2:
        return [Candidate("ambiguous", run[0].start, False)] if explicit or all(one.precise for one in run) else []
    pairs = list(zip(run[::2], run[1::2], strict=True))
    return [
        Candidate(_pair(first, second, swapped), first.start, explicit or (bool(first.letter) and bool(second.letter)))
        for first, second in pairs
        if explicit or _meant(text, first, second, before, tagged, len(pairs) == 1)
    ]


def _without_third(run: list[Angle]) -> list[Angle]:
    """Two of three numbers where the third can only be an altitude, a zoom or a house number."""
    whole = [one for one in run if not one.precise]
    others = [one for one in run if one.precise]
    if len(whole) == 1 and whole[0] is not run[1] and all(one.decimals >= 3 or one.letter for one in others):
        return others
    return run


def _meant(text: str, first: Angle, second: Angle, before: str, tagged: bool, alone: bool) -> bool:
    """Whether two numbers beside each other are meant as a place, and not as years, scores or house numbers."""
    joint = text[first.end : second.start]
    separator = _JOINT.fullmatch(joint)
    sep = separator["sep"].strip() if separator else ""
    around = text[: first.start] + text[second.end :]
    if alone and not around.strip(" \t\r\n()[]{}<>.,;:\"'~|") and (sep or (first.precise and second.precise)):
        return True
    if first.letter and second.letter:
        return True
    if sep in ("-", "x", "×", "by"):
        return False
    if not (first.precise and second.precise):
        named = _NAMED.search(before)
        return named is not None and sep == "," and before[named.start() :].rstrip(" ([~").endswith((":", "="))
    line = _line(text, first.start, second.end)
    on_own_line = not line.strip(" \t()[]{}<>.,;:\"'~|-")
    if sep in (",", ";", "/", "|", "&") or ("\n" not in joint and (tagged or _NAMED.search(before))):
        few = min(first.decimals, second.decimals) >= 2 and max(first.decimals, second.decimals) >= 3
        return tagged or on_own_line or few or _NAMED.search(before) is not None
    return on_own_line and tagged


def _line(text: str, start: int, end: int) -> str:
    """What else stands on the lines of a piece of text."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    return text[begin:start] + text[end : stop if stop >= 0 else len(text)]


def _pair(first: Angle, second: Angle, swapped: bool) -> Point | str:
    if first.wrong or second.wrong:
        return str(first.wrong or second.wrong)
    if (first.letter in ("E", "W") and second.letter in ("N", "S", "")) or (
        second.letter in ("N", "S") and not first.letter
    ):
        swapped = True
    elif first.letter or second.letter:
        swapped = False
    lat, lon = (second, first) if swapped else (first, second)
    at_lat, at_lon = lat.on("lat"), lon.on("lon")
    if isinstance(at_lat, str):
        return at_lat
    return at_lon if isinstance(at_lon, str) else (at_lat, at_lon)


def _point(lat: float, lon: float) -> Point | str:
    at_lat, at_lon = check(lat, "lat"), check(lon, "lon")
    if isinstance(at_lat, str):
        return at_lat
    return at_lon if isinstance(at_lon, str) else (at_lat, at_lon)


def _tables(text: str) -> list[tuple[int, Point | str]]:
    """Points of tables whose head has a column for each coordinate: markdown, tabs or commas."""
    found: list[tuple[int, Point | str]] = []
    columns: tuple[str, int, int, int] | None = None
    at = 0
    for line in text.split("\n")[:400]:
        position, at = at, at + len(line) + 1
        if len(line) > 2000:
            columns = None
            continue
        if columns is not None:
            mark, width, lat, lon = columns
            cells = [cell.strip() for cell in line.strip().strip("|").split(mark)]
            if len(cells) == width and any(cell.strip("-: ") for cell in cells):
                found.append((position, _cell_point(cells[lat], cells[lon])))
            elif not set(line.strip()) <= set("|-: \t"):
                columns = None
        columns = columns or _head(line)
    return found


def _head(line: str) -> tuple[str, int, int, int] | None:
    if any(letter.isdigit() for letter in line):
        return None
    for mark in ("|", "\t", ",", ";"):
        if mark in line:
            fields = [field_of(cell) for cell in line.strip().strip("|").split(mark)]
            if fields.count("lat") == fields.count("lon") == 1:
                return mark, len(fields), fields.index("lat"), fields.index("lon")
    return None


def _cell_point(lat: str, lon: str) -> Point | str:
    at_lat, at_lon = read_coordinate(lat, "lat"), read_coordinate(lon, "lon")
    if isinstance(at_lat, str):
        return at_lat
    return at_lon if isinstance(at_lon, str) else (at_lat, at_lon)
