"""Read one coordinate, or a pair of them, from text: decimal degrees, degrees-minutes-seconds, N/S/E/W.

Every pattern has bounded repetition and a fixed left edge, so reading is linear in the text whatever it holds.
"""

import math
import re
from typing import Literal

Axis = Literal["lat", "lon"]
LIMIT = {"lat": 90.0, "lon": 180.0}

# One spelling for the signs that models write in many ways. Length is kept, but for markdown, which goes.
_PLAIN = str.maketrans(
    "０１２３４５６７８９．，；：－−–‐‑′’‘″”“º\u00a0\u2009\u202f\u3000",
    "0123456789.,;:-----'''\"\"\"°    ",
    "*`\u200b\ufeff",
)

_ANGLE = (
    r"(?:(?P<{0}before>[NSEW])\s?)?"
    r"(?P<{0}degrees>[-+]?(?:\d{{1,20}}(?:[.]\d{{0,40}})?|[.]\d{{1,40}})(?:[eE][-+]?\d{{1,4}})?)(?!\d)"
    r"(?:\s?(?P<{0}mark>°|deg(?:rees?)?\b)"
    r"(?:\s?(?P<{0}minutes>\d{{1,2}}(?:[.]\d{{0,20}})?)\s?'"
    r"(?:\s?(?P<{0}seconds>\d{{1,2}}(?:[.]\d{{0,20}})?)\s?(?:\"|''))?)?)?"
    r"(?:\s?(?P<{0}after>[NSEW]|[Nn]orth|[Ss]outh|[Ee]ast|[Ww]est)(?![A-Za-z]))?"
)
_ONE = re.compile(_ANGLE.format(""), re.ASCII)
_DECIMAL_COMMA = re.compile(r"([-+]?\d{1,3}),(\d{1,20})(?!\d)")
_PAIR = re.compile(
    r"(?<![A-Za-z0-9.,_+-])" + _ANGLE.format("first_") + r"\s{0,3}[,;/ ]\s{0,3}" + _ANGLE.format("second_"), re.ASCII
)


def plain(text: str) -> str:
    """The text with one spelling of digits, signs, quotes and spaces, and without markdown emphasis."""
    return text.translate(_PLAIN)


def read_coordinate(value: object, axis: Axis) -> float | str:
    """The coordinate in degrees, or why the value is none: a number, or text that starts with one."""
    if isinstance(value, bool) or value is None:
        return f"missing_{axis}" if value is None else "not_a_number"
    if isinstance(value, int | float):
        return check(float(value), axis)
    if not isinstance(value, str):
        return "not_a_number"
    text = plain(value[:200]).strip(" \t\r\n\"'([{<}])>,;")
    if not text or text.casefold() in ("null", "none", "n/a", "unknown", "latitude", "longitude"):
        return f"missing_{axis}"
    if re.match(r"[-+]?(?:nan|inf)", text, re.IGNORECASE):
        return "not_finite"
    comma = _DECIMAL_COMMA.match(text)
    if comma is not None:  # under its own label a comma can only be the decimal comma
        return check(float(f"{comma[1]}.{comma[2]}"), axis)
    match = _ONE.match(text)
    return "not_a_number" if match is None else _degrees(match, "", axis)


def check(degrees: float, axis: Axis) -> float | str:
    """The coordinate itself if it is on Earth, else the reason."""
    if not math.isfinite(degrees):
        return "not_finite"
    return degrees if abs(degrees) <= LIMIT[axis] else f"{axis}_out_of_range"


def read_pairs(text: str, whole: bool) -> list[tuple[float, float] | str]:
    """Every `lat, lon` pair in plain text, each as a point or as the reason why it is none.

    With `whole` the text must be one pair and nothing else. Otherwise both numbers need a decimal point, a degree
    sign or a compass letter, so that house numbers and years are not taken for places.
    """
    if whole:
        match = _PAIR.fullmatch(text.strip(" \t\r\n()[]{}<>.\"'"))
        return [] if match is None else [_point(match)]
    return [_point(match) for match in _PAIR.finditer(text) if _precise(match, "first_") and _precise(match, "second_")]


def _precise(match: re.Match[str], side: str) -> bool:
    return "." in match[f"{side}degrees"] or any(match[f"{side}{part}"] for part in ("before", "mark", "after"))


def _point(match: re.Match[str]) -> tuple[float, float] | str:
    first, second = (_letter(match, side) for side in ("first_", "second_"))
    swapped = first in ("E", "W") and second in ("N", "S", "")
    lat = _degrees(match, "second_" if swapped else "first_", "lat")
    lon = _degrees(match, "first_" if swapped else "second_", "lon")
    if isinstance(lat, str):
        return lat
    return lon if isinstance(lon, str) else (lat, lon)


def _letter(match: re.Match[str], side: str) -> str:
    return (match[f"{side}before"] or match[f"{side}after"] or "")[:1].upper()


def _degrees(match: re.Match[str], side: str, axis: Axis) -> float | str:
    number = match[f"{side}degrees"]
    minutes, seconds = (float(match[f"{side}{part}"] or 0) for part in ("minutes", "seconds"))
    if minutes >= 60 or seconds >= 60:
        return "not_a_number"
    size = abs(float(number)) + minutes / 60 + seconds / 3600
    letter = _letter(match, side)
    both = match[f"{side}before"] and match[f"{side}after"]
    # "-33.9 S" may mean either hemisphere, and "48 E" is no latitude: no guess.
    if both or (letter and (number.startswith("-") or letter not in ("NS" if axis == "lat" else "EW"))):
        return "conflicting_hemisphere"
    return check(-size if number.startswith("-") or letter in ("S", "W") else size, axis)
