"""Angles in plain text: decimal degrees, degrees-minutes-seconds, compass letters, each with what surrounds it."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Axis = Literal["lat", "lon"]
LIMIT = {"lat": 90.0, "lon": 180.0}

_NUMBER = r"(?:\d{1,20}(?:[.]\d{0,40})?|[.]\d{1,40})(?:[eE][-+]?\d{1,4}(?!\d))?"
_WORDS = r"north|south|east|west|norte|sur|oeste|este|leste|nord|sud|ouest|ost"
_AFTER = (
    rf"(?:\s?(?:[NSEW](?![A-Za-z0-9])|(?i:{_WORDS})(?![A-Za-z]))"
    r"|[nsew](?![A-Za-z0-9]))"
)
_SIXTY = r"\d{1,2}(?:[.]\d{0,20})?"
_ANGLE = re.compile(
    r"(?:(?<![A-Za-z0-9_])(?P<before>[NSEW]|[nsew](?=[\s:]?\d))(?:\s{0,2}:)?\s{0,2})?"
    r"(?P<sign>(?<![\d°'\"])[-+]\s?)?"
    rf"(?P<degrees>(?<![\d.]){_NUMBER})(?P<extra>(?:[.]\d{{1,20}}){{1,5}})?(?!\d)"
    r"(?:"
    # 48°51'30", 48 deg 51 min 30 sec, 48d51m30s
    r"\s?(?P<mark>°|deg(?:rees?)?(?![A-Za-z])|d(?=\d))[.]?"
    rf"(?:\s?(?P<minutes>{_SIXTY})\s?(?:'(?!')|min(?:utes?)?(?![A-Za-z])|m(?=\d))"
    rf"(?:\s?(?P<seconds>{_SIXTY})\s?(?:\"|''|sec(?:onds?)?(?![A-Za-z])|s(?![A-Za-z])))?)?"
    r"(?:\s?(?P<low>[nsew])(?![A-Za-z0-9]))?"
    # 48:51:30 N, 48 51 30 N: a compass letter must say that these are no list
    rf"|(?:(?P<sep>[: -])(?P<minutes2>{_SIXTY})(?P=sep)(?P<seconds2>{_SIXTY})|:(?P<minutes3>{_SIXTY}))"
    rf"(?={_AFTER}|(?(before)(?=[\s,;)]|$)|(?!)))"
    r")?"
    rf"(?:(?P<after>{_AFTER})|\s?\(\s?(?P<told>[NSEW]|(?i:{_WORDS}))\s?(?:\)|$))?"
    rf"(?:\s?±\s?{_NUMBER}\s?(?:°|km|m|deg(?:rees?)?)?(?:{_AFTER})?)?",
    re.ASCII,
)
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
        return check(-self.degrees if self.letter in ("S", "W") else self.degrees, axis)


def check(degrees: float, axis: Axis) -> float | str:
    """The coordinate itself if it is on Earth, else the reason."""
    if not math.isfinite(degrees):
        return "not_finite"
    return degrees if abs(degrees) <= LIMIT[axis] else f"{axis}_out_of_range"


def angles(text: str) -> Iterator[Angle]:
    """Every number of a plain text that could be a coordinate, left to right; measures such as `5 km` are left out."""
    doubtful = -1  # where the second half of a range starts
    for match in _ANGLE.finditer(text):
        found, second = _angle(text, match)
        if found is None:
            continue
        if found.start <= doubtful < found.end:
            found = _with(found, "ambiguous")
        yield found
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
    minutes = float(match["minutes"] or match["minutes2"] or match["minutes3"] or 0)
    seconds = float(match["seconds"] or match["seconds2"] or 0)
    letters = [(match[name] or "").strip() for name in ("before", "low", "after")]
    said = [_compass(letter) for letter in letters if letter]
    told = _compass(match["told"]) if match["told"] else ""
    if told and not (sign == "-" and told in "SW"):  # "-33.9 (South)" explains its sign
        said.append(told)
    wrong = "not_a_number" if match["extra"] or minutes >= 60 or seconds >= 60 else None
    if len(said) > 1:
        wrong = "conflicting_hemisphere"
    ranged = _RANGE.match(text, end)
    if ranged is not None and said and said[0] in "NS" and _EASTING.match(text, ranged.end()):
        ranged = None  # 48.85° N - 2.29° E
    if ranged is not None:
        wrong = "ambiguous"
    if match["sign"] and len(match["sign"]) > 1:  # a dash and a space: a sign, or what parts a name from its place
        if _DASH.search(text[max(0, match.start("sign") - 3) : match.start("sign")]):
            if said:
                sign = ""
            else:
                wrong = wrong or "ambiguous"
        elif "\n" in text[:start][-2:]:
            wrong = wrong or "ambiguous"  # a bullet, or a sign
    size = float(number) + minutes / 60 + seconds / 3600
    found = Angle(
        start,
        end,
        -size if sign == "-" else size,
        said[0] if said else "",
        len(number.partition(".")[2].split("e")[0].split("E")[0]),
        bool(said or match["mark"]),
        wrong,
    )
    return found, (ranged.end() - 1 if ranged is not None else -1)


def _compass(word: str) -> str:
    """N, S, E or W of a letter or a word; `oeste` and `ouest` are west, `ost` is east."""
    lower = word.casefold()
    if len(lower) == 1:
        return lower.upper()
    if lower in ("oeste", "ouest", "west"):
        return "W"
    if lower in ("este", "leste", "ost", "east"):
        return "E"
    return "N" if lower.startswith("n") else "S"


def _with(angle: Angle, wrong: str) -> Angle:
    return Angle(angle.start, angle.end, angle.degrees, angle.letter, angle.decimals, angle.marked, wrong)
