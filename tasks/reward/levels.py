"""Which administrative levels an answer names rightly, by rule: folded names, aliases, and no contradiction."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from tasks.geo.distance import distance_km
from tasks.geo.names import (
    city_names,
    country_code,
    country_names,
    fold,
    join_initials,
    longer_region_names,
    region_divisions,
    region_names,
    same_city,
    same_country,
    same_region,
    spellings,
)
from tasks.reward.answer import Address, ParsedAnswer, ParseFailure
from tasks.reward.prose import MAX_TEXT, countries_in, fold_text, mentions, names_several_cities, without_denied
from tasks.reward.spelling import plain_spelling

FAR_FROM_CITY_KM = 150.0  # coordinates farther from a picture than that are not in its city
Level = Literal["country", "province_or_state", "city"]
LEVELS: tuple[Level, ...] = ("country", "province_or_state", "city")
Aliases = Mapping[str, tuple[str, ...]]  # a true name -> more names of it
Verifier = Callable[[Level, str, str], bool]  # level, the answer's text, the true name -> right?


@dataclass(frozen=True)
class LevelVerdict:
    """One level's verdicts; `model` is None where no verifier answered."""

    rule: bool
    model: bool | None = None

    @property
    def right(self) -> bool:
        return self.rule or bool(self.model)


def level_names(address: Address) -> dict[Level, str | None]:
    """The address by level, coarse to fine."""
    return {"country": address.country, "province_or_state": address.region, "city": address.city}


def address_line(address: Address) -> str:
    """The address as a geocoder is asked for it, fine to coarse."""
    return ", ".join(name for name in reversed(level_names(address).values()) if name)


def address_lines(address: Address) -> tuple[str, ...]:
    """What to ask a geocoder for, one after another until it knows a place: one unknown word finds nothing.

    The whole address, then without its region, then the parts of its place (`Street, Town`) from the coarse end.
    """
    place = address.city or ""
    parts = [part.strip() for part in place.split(",") if part.strip()]
    coarser = [replace(address, city=part) for part in reversed(parts)] if len(parts) > 1 else []
    tried = [
        address,
        *coarser,
        *(replace(level_address, region=None) for level_address in (address, *coarser) if level_address.city),
    ]
    return tuple(dict.fromkeys(line for line in map(address_line, tried) if line))


def known_names(truth: Address, aliases: Aliases | None = None) -> dict[Level, frozenset[str]]:
    """Every folded name each level of the truth goes by; empty where the truth has no such level."""
    known = dict(zip(LEVELS, _gazetteer_names(truth), strict=True))
    for level, name in level_names(truth).items():
        extra = (aliases or {}).get(name or "", ())
        # Answers are read in the plain spelling, which has no backticks (Slov`yanoserbsk).
        read_as = (plain_spelling(name),) if name and known[level] else ()
        known[level] |= {fold(alias) for alias in (*extra, *read_as)}
    return known


@lru_cache(maxsize=20_000)  # many pictures share a town
def _gazetteer_names(truth: Address) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    none: frozenset[str] = frozenset()
    return (
        country_names(truth.country) if truth.country else none,
        region_names(truth.region, truth.country) if truth.region else none,
        city_names(truth.city, truth.country) if truth.city else none,
    )


def same_name(name: str | None, names: frozenset[str]) -> bool:
    """Whether a name is one of the known ones."""
    if not name:
        return False
    # "Beijing (Dongcheng District)", "Tibet, Tingri": what stands before the detail is the name.
    head = name.partition("(")[0].partition(",")[0]
    return bool((spellings(name) | spellings(head)) & names)


def levels_by_rule(
    answer: ParsedAnswer | ParseFailure,
    truth: Address,
    aliases: Aliases | None = None,
    point: tuple[float, float] | None = None,
) -> dict[Level, bool | None]:
    """Which levels an answer has right; None where the truth has no such level.

    Named fields are compared with the true names, prose is searched for them. A wrong country said aloud spoils the
    finer levels (Paris in Texas is not Paris in France), and so do another region of the country and coordinates far
    from the true `point` with the city (Portland in Maine is not Portland in Oregon). A right finer level makes the
    unsaid coarser ones right (Los Angeles implies California).
    """
    known = known_names(truth, aliases)
    answer_names = level_names(answer.address)
    code = country_code(truth.country) if truth.country else None
    text = "" if answer.address else without_denied(answer.text)
    claim = one_claim(text, known, code)
    prose = fold_text(claim or text)
    searched = _without_other_regions(prose, truth, code)
    right: dict[Level, bool] = {}
    for level, names in known.items():
        name = answer_names[level]
        if level == "country" and code and not name:
            names = names - country_names(truth.country or "")  # found below, longest name first
        if level == "city" and name and names_several_cities(name, known["city"], code):
            right[level] = False
        elif name:
            right[level] = _same(level, name, names, truth)
        else:
            right[level] = mentions(searched, names) and (level != "city" or bool(claim))
    countries = _countries_said(answer, prose, claim or text, known)
    right["country"] |= code is not None and code in countries
    right["province_or_state"] |= _postal_code_in(claim or text, known["province_or_state"])
    if right["city"] and is_namesake(answer, truth, point):
        right["city"] = False
    if not right["country"] and (countries or answer_names["country"]):
        right = dict.fromkeys(LEVELS, False)
    right["province_or_state"] |= right["city"] and not answer_names["province_or_state"]
    right["country"] |= (right["province_or_state"] or right["city"]) and not answer_names["country"]
    return {level: right[level] if known[level] else None for level in LEVELS}


def is_namesake(answer: ParsedAnswer | ParseFailure, truth: Address, point: tuple[float, float] | None = None) -> bool:
    """Whether an answer places its city in another region than the true one, or its point far from the true one.

    Only where region and country are known by the name table: a district or a metropolitan area is no contradiction.
    """
    said_point = (answer.lat, answer.lon) if isinstance(answer, ParsedAnswer) else (None, None)
    if point and said_point[0] is not None and said_point[1] is not None:
        away_km = distance_km(said_point[0], said_point[1], *point)
        if away_km > FAR_FROM_CITY_KM:
            return True
    code = country_code(truth.country) if truth.country else None
    true = region_divisions(truth.region, code) if truth.region and code else set()
    if not true:
        return False
    names = level_names(answer.address)
    # "Portland, Maine" may stand in the field of the city, or in prose.
    tail = (names["city"] or "").partition(",")[2] or (names["city"] or "").partition("(")[2].rstrip(") ")
    for text in (names["province_or_state"], tail):
        named = region_divisions(text, code) if text else set()
        if named:
            return not named & true
    if answer.address:
        return False
    named = _regions_after_city(answer.text, truth, code)
    return bool(named) and not named & true


def _regions_after_city(text: str, truth: Address, code: str | None) -> set[str]:
    """The regions that prose names behind a comma after the true city: `Portland, Maine`, `Portland, ME`."""
    divisions: set[str] = set()
    for name in city_names(truth.city, truth.country) if truth.city else ():
        for behind in re.findall(
            rf"\b{re.escape(name)}\s?,\s{{0,3}}([^,.;\n]{{2,40}})", text[:MAX_TEXT], re.IGNORECASE
        ):
            divisions |= region_divisions(behind.strip(), code)
    return divisions


def verdicts(
    answer: ParsedAnswer | ParseFailure,
    truth: Address,
    verifier: Verifier | None = None,
    aliases: Aliases | None = None,
    point: tuple[float, float] | None = None,
) -> dict[Level, LevelVerdict | None]:
    """Both verdicts a level; the model answers only where the rule says no and there is something to judge.

    A city in another region than the true one is nothing to judge: its name may well be the same.
    """
    names = level_names(truth)
    by_level: dict[Level, LevelVerdict | None] = {}
    for level, rule in levels_by_rule(answer, truth, aliases, point).items():
        name = names[level]
        if rule is None or name is None:
            by_level[level] = None
        elif level == "city" and not rule and is_namesake(answer, truth, point):
            by_level[level] = LevelVerdict(False)
        elif rule or verifier is None or not answer.text.strip():
            by_level[level] = LevelVerdict(rule)
        else:
            by_level[level] = LevelVerdict(rule, verifier(level, answer.text, name))
    return by_level


def _same(level: Level, name: str, names: frozenset[str], truth: Address) -> bool:
    """Whether a named level is the true one: by its folded names, or by the one name table with aliases both ways."""
    true_name = level_names(truth)[level]
    code = country_code(truth.country) if truth.country else None
    if level == "province_or_state" and true_name and region_divisions(name, code):
        return same_region(name, true_name, code)  # "Washington, D.C." is a name of its own
    if same_name(name, names) or true_name is None:
        return same_name(name, names)
    if level == "country":
        return same_country(name, true_name)
    return same_region(name, true_name, code) if level == "province_or_state" else same_city(name, true_name, code)


def one_claim(text: str, known: dict[Level, frozenset[str]], code: str | None) -> str:
    """The prose if it names one city at most, else its first sentence if the others only speak of it, else nothing."""
    text = text[:MAX_TEXT].strip()
    own = frozenset().union(*known.values())
    if not names_several_cities(text, own, code):
        return text
    first, *others = re.split(r"(?<=[.!?])\s+|\n+", text)
    # `Paris. London.` is a list; a sentence that compares Paris with London has more words than names.
    spoken = all(len(other.split()) > 3 for other in others)
    return first if others and spoken and not names_several_cities(first, own, code) else ""


def _without_other_regions(prose: str, truth: Address, code: str | None) -> str:
    """The prose without longer names of other regions that hold the true one's: Washington, D.C. is not Washington."""
    prose = join_initials(prose)
    for other in longer_region_names(truth.region, code) if truth.region and code else ():
        prose = f" {prose} ".replace(f" {other} ", " | ").strip()
    if truth.city and truth.region and fold(truth.city) != fold(truth.region):
        prose = re.sub(rf"\b{re.escape(fold(truth.city))} (?:state|province)\b", "|", prose)
    return prose


def _countries_said(
    answer: ParsedAnswer | ParseFailure, prose: str, raw: str, known: dict[Level, frozenset[str]]
) -> set[str]:
    if answer.address.country:
        code = country_code(answer.address.country)
        return {code} if code else set()
    # The state of Georgia and Mexico City do not mention a country.
    for name in sorted(known["province_or_state"] | known["city"], key=len, reverse=True):
        if len(name) > 3:
            prose = f" {prose} ".replace(f" {name} ", " | ").strip()
    countries = countries_in(prose, raw) if prose else set()
    hedged = len(countries) > 2 or (len(countries) == 2 and re.search(r"\bor\b|/", raw) is not None)
    return {""} if hedged else countries


def _postal_code_in(text: str, names: frozenset[str]) -> bool:
    """Whether the text has a state's code such as `, CA`; after a comma only, since OK and IN are words."""
    return any(code.casefold() in names for code in re.findall(r",\s{0,3}([A-Z]{2})\b", text[:MAX_TEXT]))
