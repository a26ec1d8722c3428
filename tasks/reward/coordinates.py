"""Points in plain text: `lat, lon` pairs, labelled pairs in either order, WKT, tables, map links.

What is found is a list of candidates; which of them is the answer, if any, is decided in `answer.py`.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Literal

from tasks.reward.fields import field_of
from tasks.reward.spelling import plain_spelling

Axis = Literal["lat", "lon"]
LIMIT = {"lat": 90.0, "lon": 180.0}

_NUMBER = r"(?:\d{1,20}(?:[.]\d{0,40})?|[.]\d{1,40})(?:[eE][-+]?\d{1,4}(?!\d))?"
_WORDS = (
    r"(?:north|south|east|west)(?:ern)?|norte|sur|oeste|este|leste|nord|sud|süd|ouest|ovest|oest|ost"
    r"|est(?=\s?(?:[,;.)]|$))"  # French for `is` as well
)
_GAP = r"[^\S\n]{0,2}"
_AFTER = (
    rf"(?:{_GAP}(?:[NSEW](?![A-Za-z0-9])|(?:of\s)?(?i:{_WORDS})(?![A-Za-z]))"
    r"|[nsew](?![A-Za-z0-9]))"
)
_SIXTY = r"\d{1,2}(?:[.]\d{0,20})?"
_MARKED = r"\d{1,2}(?:[.,]\d{1,20})?[.]?"  # before a mark a comma can only be the decimal comma
_DEGREES = r"°|deg(?:rees?)?(?![A-Za-z])"
_MINUTES = r"'(?!')|min(?:utes?)?(?![A-Za-z])[.]?"
_SECONDS = r"\"|''|sec(?:onds?)?(?![A-Za-z])[.]?|s(?![A-Za-z])"
_ANGLE = re.compile(
    r"(?:(?<![A-Za-z0-9_])(?P<before>[NSEW]|[nsew](?=[\s:]?\d))(?:\s{0,2}:)?\s{0,2})?"
    r"(?P<sign>(?<![\d°'\"])[-+]\s?)?"
    rf"(?P<degrees>(?<![\d.]){_NUMBER})(?P<extra>(?:[.]\d{{1,20}}){{1,5}})?(?!\d)"
    r"(?:"
    # 48°51'30", 48 deg 51 min 30 sec, 48 degrees, 51 minutes and 30 seconds, 48d51m30s
    rf"\s?(?P<mark>{_DEGREES}|d(?=\s?{_SIXTY}\s?(?:m|')))[.]?"
    rf"(?:,?\s?(?:and\s)?(?P<minutes>{_MARKED})\s?(?:{_MINUTES}|m(?=\s?\d))"
    rf"(?:,?\s?(?:and\s)?(?P<seconds>{_MARKED})\s?(?:{_SECONDS})"
    rf"|\s?(?P<seconds0>{_SIXTY})(?={_AFTER}|\s?(?:[,;)\n]|$)))?"  # 48°51'30
    # N 48° 51.504, 48° 51.504 N: where a compass letter says so, minutes need no mark
    rf"|\s?(?P<minutes0>{_SIXTY})(?={_AFTER}|(?(before)(?=[\s,;)]|$)|(?!))))?"
    r"(?:\s?(?P<low>[nsew])(?![A-Za-z0-9]))?"
    # 48:51:30 N, 48 51 30 N: a compass letter must say that these are not a list
    rf"|(?:(?P<sep>[: -])(?P<minutes2>{_SIXTY})(?P=sep)(?P<seconds2>{_SIXTY})|:(?P<minutes3>{_SIXTY}))"
    rf"(?={_AFTER}|(?(before)(?=[\s,;)]|$)|(?!)))"
    r")?"
    # In `N 48.85 E 2.29` the second letter belongs to what follows.
    rf"(?:(?(before)(?!\s{{0,2}}[NSEWnsew][\s:]{{0,3}}\d))(?P<after>{_AFTER})"
    rf"|\s?\(\s?(?P<told>[NSEW]|(?i:{_WORDS}))\s?(?:\)|$))?"
    rf"(?:\s?±\s?{_NUMBER}\s?(?:°|km|m|deg(?:rees?)?)?(?:{_AFTER})?)?",
    re.ASCII,
)
_SIXTIETHS = (("minutes", "minutes0", "minutes2", "minutes3"), ("seconds", "seconds0", "seconds2"))
_UNIT = re.compile(
    r"\s?(?:%|/\s?10\b|(?:km|m|mi|miles?|meters?|metres?|feet|ft|years?|th|st|nd|rd|am|pm|am|hours?|minutes?|lanes?|people)(?![A-Za-z]))"
    r"|(?:st|nd|rd|th)(?![A-Za-z])|:\d|/\d{1,4}/",
    re.ASCII,
)
_RANGE = re.compile(
    r"(?:\s{1,2}-\s{1,2}|-|\s{0,2}(?:to|through|or|versus|vs[.]?|\.\.\.?|…|~)\s{0,2})"
    rf"[NSEW]?\s?[-+]?{_NUMBER}",
    re.ASCII,
)
_EASTING = re.compile(r"\s?°?\s?[EWew](?![A-Za-z])")
_DASH = re.compile(r"[^\s,;:=(\[|~\"'<>/]\s{0,3}\Z")
_LEADING = re.compile(r"(?:[A-Za-z0-9_#]|\d[.:-])\Z")


@dataclass(frozen=True)
class Angle:
    """A number that may be a coordinate. `wrong` says why it cannot be one, whatever its value."""

    start: int
    end: int
    degrees: float  # with its sign, without the compass letter
    letter: str  # N, S, E, W or ""
    decimals: int
    marked: bool  # a degree sign or a compass letter
    wrong: str | None

    @property
    def precise(self) -> bool:
        return self.decimals > 0 or self.marked

    def on(self, axis: Axis) -> float | str:
        """The coordinate in degrees, or why it is none."""
        if self.wrong is not None:
            return self.wrong
        if self.letter and (self.degrees < 0 or self.letter not in ("NS" if axis == "lat" else "EW")):
            return "conflicting_hemisphere"
        return check_degrees(-self.degrees if self.letter in ("S", "W") else self.degrees, axis)


def check_degrees(degrees: float, axis: Axis) -> float | str:
    """The coordinate itself if it is on Earth, else the reason."""
    if not math.isfinite(degrees):
        return "not_finite"
    return degrees if abs(degrees) <= LIMIT[axis] else f"{axis}_out_of_range"


def find_angles(text: str) -> Iterator[Angle]:
    """Every number of a plain text that could be a coordinate, left to right; measures such as `5 km` are left out."""
    doubtful = -1  # where the second half of a range starts
    for match in _ANGLE.finditer(text):
        angle, second = _angle(text, match)
        if angle is None:
            continue
        if angle.start <= doubtful < angle.end:
            angle = replace(angle, wrong="ambiguous")
        yield angle
        doubtful = max(doubtful, second)


def angle_at(text: str, start: int = 0) -> Angle | None:
    """The angle that begins at a position, or None."""
    match = _ANGLE.match(text, start)
    return None if match is None else _angle(text, match)[0]


def _angle(text: str, match: re.Match[str]) -> tuple[Angle | None, int]:
    start, end = match.start(), match.end()
    if _LEADING.search(text[max(0, start - 2) : start]) or _UNIT.match(text, end):
        return None, -1
    number, sign = match["degrees"], (match["sign"] or "").strip()
    minutes, seconds = (
        next((match[name].replace(",", ".") for name in names if match[name]), "") for names in _SIXTIETHS
    )
    letters = [(match[name] or "").strip().removeprefix("of").strip() for name in ("before", "low", "after")]
    compass = [_compass(letter) for letter in letters if letter]
    told = _compass(match["told"]) if match["told"] else ""
    if told and not (sign == "-" and told in "SW"):  # "-33.9 (South)" explains its sign
        compass.append(told)
    sixtieths = float(minutes or 0), float(seconds or 0)
    wrong = "not_a_number" if match["extra"] or max(sixtieths) >= 60 else None
    if len(compass) > 1:
        wrong = "conflicting_hemisphere"
    ranged = _RANGE.match(text, end)
    if ranged is not None and compass and compass[0] in "NS" and _EASTING.match(text, ranged.end()):
        ranged = None  # 48.85° N - 2.29° E
    if ranged is not None:
        wrong = "ambiguous"
    if match["sign"] and len(match["sign"]) > 1:  # a dash and a space: a sign, or what parts a name from its place
        if _DASH.search(text[max(0, match.start("sign") - 3) : match.start("sign")]):
            if compass:
                sign = ""
            else:
                wrong = wrong or "ambiguous"
        elif "\n" in text[:start][-2:]:
            wrong = wrong or "ambiguous"  # a bullet, or a sign
    size = float(number) + sixtieths[0] / 60 + sixtieths[1] / 3600
    angle = Angle(
        start,
        end,
        -size if sign == "-" else size,
        compass[0] if compass else "",
        # A minute of arc is as fine as two decimals.
        len(number.partition(".")[2].split("e")[0].split("E")[0]) + 2 * bool(minutes) + 2 * bool(seconds),
        bool(compass or match["mark"]),
        wrong,
    )
    return angle, (ranged.end() - 1 if ranged is not None else -1)


def _compass(word: str) -> str:
    """N, S, E or W of a letter or a word; `oeste` and `ouest` are west, `ost` is east."""
    lower = word.casefold()
    if len(lower) == 1:
        return lower.upper()
    if lower.startswith(("oes", "oue", "ove", "west")):
        return "W"
    return "N" if lower.startswith("n") else "S" if lower.startswith("s") else "E"


Point = tuple[float, float]

_DECIMAL_COMMA = re.compile(r"([-+]?\s?\d{1,3}),(\d{1,20})(?![\d.]|,\d)")
# Decimal commas of a pair: parted by something else than a comma, or too long to be anything but decimals.
_COMMA_PAIR = re.compile(
    r"(?<![\d.,])(\d{1,3}),(\d{1,20})(\s?°?\s{0,2}[NSns]?\s{0,2}(?:[;/|]|\s)\s{0,2}[-+]?)(\d{1,3}),(\d{1,20})(?![\d.,])"
    r"|(?<![\d.,])(\d{1,3}),(\d{4,20})(\s?°?\s{0,2}[NSns]?,\s{1,3}[-+]?)(\d{1,3}),(\d{4,20})(?![\d.,])"
    r"|(?<![\d.,])(\d{1,3}),(\d{1,20})(\s?°\s{0,2}[NSns]?,?\s{1,3}[-+]?)(\d{1,3}),(\d{1,20})(?=\s?°)"
)
# Under a label: 48 51 30.24, 48:51:30.24, 48-51-30.24, 48° 51.504, 48 51.504; no unit such as km may follow.
_PART = r"\d{1,2}(?:[.,]\d{1,20})?"
_UNDER_LABEL = re.compile(
    rf"(?P<degrees>[NSEW]?\s?[-+]?\s?\d{{1,3}})(?:(?P<sep>\s?:\s?|\s|-(?=[^-]{{1,30}}-))|\s?(?:{_DEGREES})\s?)"
    rf"(?P<minutes>{_PART})(?:(?(sep)(?P=sep)|\s?(?:{_MINUTES})?\s?)(?P<seconds>{_PART})\s?(?(sep)\"?|(?:{_SECONDS})?))?"
    rf"(?![\d.):'°\"-]|,\d|\s{{0,2}}(?:[-+.]?\d|(?!(?i:{_WORDS})(?![A-Za-z]))[a-z]{{2,}}))",
    re.ASCII,
)
# A number right behind whole degrees that is neither: what was meant is not known. `2.` and `2)` number the next line.
_UNREAD = re.compile(r"[\s,:'-]{0,3}\d{1,20}(?:[.,]\d{1,20})?(?![\d)]|[.](?:\s|$))", re.ASCII)
_NOT_GIVEN = re.compile(
    r"(?:null|none|n/?a|unknown|latitude|longitude|nan\b|tbd|-+|\?+)[.\s\"'\])}>,;]*", re.IGNORECASE
)
_NEARLY = re.compile(
    r"(?:~|=|:|>|(?:approximately|approx[.]?|about|around|roughly|circa|ca[.]|estimated|near|is|at)(?![A-Za-z])|\s)+",
    re.IGNORECASE,
)


def read_coordinate(value: object, axis: Axis) -> float | str:
    """The coordinate in degrees, or why the value is none: a number, or text that is one, whatever surrounds it."""
    if isinstance(value, bool) or value is None:
        return f"missing_{axis}" if value is None else "not_a_number"
    if isinstance(value, int | float):
        return check_degrees(float(value), axis)
    if not isinstance(value, str):
        return "not_a_number"
    text = plain_spelling(value[:200]).lstrip(" \t\r\n\"'([{<}])>,;")
    if not text or (_NOT_GIVEN.fullmatch(text) and not re.match(r"nan", text, re.IGNORECASE)):
        return f"missing_{axis}"
    if re.match(r"[-+]?(?:nan|inf)", text, re.IGNORECASE):
        return "not_finite"
    nearly = _NEARLY.match(text[:60])
    text = text[nearly.end() :] if nearly else text
    comma = _DECIMAL_COMMA.match(text)
    if comma is not None:  # under its own label a comma can only be the decimal comma
        text = f"{comma[1]}.{comma[2]}{text[comma.end() :]}"
    else:
        parts = _UNDER_LABEL.match(text)
        if parts is not None:
            seconds = f'{parts["seconds"]}"' if parts["seconds"] else ""
            text = f"{parts['degrees']}°{parts['minutes']}'{seconds}{text[parts.end() :]}"
    angle = angle_at(text)
    if angle is None:
        return "not_a_number"
    unread = _UNREAD.match(text, angle.end) if not (angle.decimals or angle.letter) else None
    return "ambiguous" if unread is not None and not _UNIT.match(text, unread.end()) else angle.on(axis)


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
# `lat/lon` says an order; its halves are not labels of the numbers that follow. A line that ends in `Long`, as the
# towns Bueng Khong Long and Ressons-le-Long do, and a line that begins with `Latitude` are two things.
_ORDER = re.compile(
    rf"(?<![A-Za-z])(?:{_LAT}{_BETWEEN}{_LON}|{_LON}{_BETWEEN}{_LAT})(?![A-Za-z])".replace(r"\s", r"[^\S\n]"),
    re.IGNORECASE,
)
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


def point_candidates(text: str, tagged: bool) -> list[Candidate]:
    """Every point that plain text names in a form of its own, each with the reason where it is none."""
    candidates: list[Candidate] = []

    def take_link(match: re.Match[str]) -> str:
        for form in _IN_LINK:
            inside = form.search(match[0])
            if inside is not None:
                point = as_point(check_degrees(float(inside[1]), "lat"), check_degrees(float(inside[2]), "lon"))
                candidates.append(Candidate(point, match.start(), True))
                break
        return " " * len(match[0])

    bare = _LINK.sub(take_link, _NUMBERING.sub(r"\1   ", text))
    bare = _COMMA_PAIR.sub(_decimal_points, bare)
    candidates += [Candidate(place, at, True) for at, place in _tables(bare)]
    if any(candidate.strong for candidate in candidates) and not tagged:
        return candidates
    numbers = list(islice(find_angles(bare), MOST_ANGLES + 1))
    runs = [run for run in _runs(bare, numbers) if len(run) > 1]
    if len(runs) > _MOST_RUNS or len(numbers) > MOST_ANGLES:
        return [*candidates, Candidate("ambiguous", 0, False)]
    for run in runs:
        candidates += _from_run(bare, run, tagged)
    return sorted(candidates, key=lambda candidate: candidate.start)


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
    if len(run) in (4, 6):
        run = _in_sixtieths(text, run)
    if len(run) == 3:
        run = _without_third(run)
    if len(run) < 2 or _DENIED.search(before):
        return []
    swapped = _LON_FIRST.search(before) is not None
    explicit = swapped or _LAT_FIRST.search(before) is not None
    if len(run) % 2:
        return (
            [Candidate("ambiguous", run[0].start, False)] if explicit or all(number.precise for number in run) else []
        )
    pairs = list(zip(run[::2], run[1::2], strict=True))
    return [
        Candidate(_pair(first, second, swapped), first.start, explicit or (bool(first.letter) and bool(second.letter)))
        for first, second in pairs
        if explicit or _meant(text, first, second, before, tagged, len(pairs) == 1)
    ]


def _in_sixtieths(text: str, run: list[Angle]) -> list[Angle]:
    """Two angles for `48 51 30.24, 2 17 40.2` or `48 51.504, 2 17.67`; any other list of numbers as it is."""
    size = len(run) // 2
    angles = []
    for part in (run[:size], run[size:]):
        words = [text[number.start : number.end] for number in part]
        spaced = all(text[a.end : b.start].isspace() for a, b in pairwise(part))
        whole = all(word.lstrip("+-").isdigit() for word in words[:-1])
        fine = all(re.fullmatch(_PART, word, re.ASCII) and float(word) < 60 for word in words[1:])
        if not (spaced and whole and fine and (size == 3 or "." in words[-1])):
            return run
        value = sum(float(word) / 60**power for power, word in enumerate(words[1:], start=1))
        degrees = math.copysign(abs(part[0].degrees) + value, -1 if words[0].startswith("-") else 1)
        angles.append(Angle(part[0].start, part[-1].end, degrees, "", 2 * size - 2, True, part[0].wrong))
    return run if text[run[size - 1].end : run[size].start].isspace() else angles


def _without_third(run: list[Angle]) -> list[Angle]:
    """Two of three numbers where the third can only be an altitude, a zoom or a house number."""
    whole = [number for number in run if not number.precise]
    others = [number for number in run if number.precise]
    if len(whole) == 1 and whole[0] is not run[1] and all(other.decimals >= 3 or other.letter for other in others):
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
    return as_point(lat.on("lat"), lon.on("lon"))


def as_point(lat: float | str, lon: float | str) -> Point | str:
    """The point of two coordinates, or the first reason why one of them is none."""
    if isinstance(lat, str):
        return lat
    return lon if isinstance(lon, str) else (lat, lon)


def _tables(text: str) -> list[tuple[int, Point | str]]:
    """Points of tables whose head has a column for each coordinate: markdown, tabs or commas."""
    points: list[tuple[int, Point | str]] = []
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
                point = as_point(read_coordinate(cells[lat], "lat"), read_coordinate(cells[lon], "lon"))
                points.append((position, point))
            elif not set(line.strip()) <= set("|-: \t"):
                columns = None
        columns = columns or _head(line)
    return points


def _head(line: str) -> tuple[str, int, int, int] | None:
    if any(letter.isdigit() for letter in line):
        return None
    for mark in ("|", "\t", ",", ";"):
        if mark in line:
            fields = [field_of(cell) for cell in line.strip().strip("|").split(mark)]
            if fields.count("lat") == fields.count("lon") == 1:
                return mark, len(fields), fields.index("lat"), fields.index("lon")
    return None
