"""Writing in a picture that gives its place away: coordinates burnt into it, or the name of its country.

What is written is what a judge quotes of it in the reason of its verdict.
"""

import math
import re

from tasks.geo.distance import distance_km
from tasks.geo.names import country_names, fold
from tasks.reward.answer import ParseFailure, parse_point

SAME_KM = 100.0  # written coordinates farther away are of another place
LEAST_NAME = 4  # letters of a country's name: shorter ones are words of other languages
_QUOTED = re.compile(r"'([^'\n]{2,200})'(?!\w)|\"([^\"\n]{2,200})\"|“([^”\n]{2,200})”|«([^»\n]{2,200})»")


def place_written(evidence: str | None, lat: float, lon: float, country_code: str | None) -> str | None:
    """The quoted writing that gives the place away; None where none does."""
    for match in _QUOTED.finditer(evidence or ""):
        text = next(part for part in match.groups() if part is not None)
        point = parse_point(text)
        if isinstance(point, ParseFailure) or point.lat is None or point.lon is None:
            away_km = math.inf
        else:
            away_km = distance_km(point.lat, point.lon, lat, lon)
        if away_km <= SAME_KM:
            return text
        words = f" {fold(text)} "
        names = country_names(country_code) if country_code else ()
        if any(f" {name} " in words for name in names if len(name) >= LEAST_NAME):
            return text
    return None
