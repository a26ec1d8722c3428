"""What one place of the world is like: everything a person could localize it by."""

import bisect
import math
import random
import unicodedata
from dataclasses import dataclass
from typing import Any

from infra.offline.country_map import country_map
from infra.offline.facts import CountryFacts, area_code, countries
from infra.offline.gazetteer import City
from infra.offline.seeded_random import draws
from infra.offline.words import WORDS, SignWords, proper_name

_FRENCH_REGIONS = {
    "CA": {"Quebec"},
    "BE": {"Wallonia"},
    "CH": {"Geneva", "Vaud", "Neuchâtel", "Jura", "Fribourg"},
}
NAMED_AFTER_TOWN = 0.5  # share of shops


@dataclass(frozen=True)
class Sign:
    """One sign of a place: what it says, biggest line first."""

    kind: str  # one of sign_words.KINDS, or "street" or "direction"
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """One place that has imagery."""

    index: int
    city: City
    country: str
    lat: float
    lon: float
    bearing_deg: float
    language: str
    local_name: str  # the city's name as its signs write it
    street: str
    region: str  # the first-level division, else the country, as the boards over the road write it
    shops: tuple[Sign, ...]
    towns_ahead: tuple[tuple[str, int], ...]  # (name as painted, km) on the direction sign; empty when there is none
    setting: str  # "centre" | "suburb" | "rural"
    climate: str  # "arid" | "tropical" | "mediterranean" | "temperate" | "boreal" | "polar"
    building_style: str
    sun_height_deg: float
    sun_azimuth_deg: float
    image_count: int
    paint_seed: int  # of all painted details

    @property
    def facts(self) -> CountryFacts:
        """Public facts of the country the place lies in."""
        return countries()[self.country]


def climate_of(lat: float, facts: CountryFacts) -> str:
    """A coarse climate from latitude and the country's dryness; enough to choose trees and soil."""
    north = abs(lat)
    if facts.arid:
        return "arid"
    if facts.continent == "AS" and north < 31.0:  # the monsoon reaches past the tropic
        return "tropical"
    for limit, climate in ((23.5, "tropical"), (43.0, "mediterranean"), (57.0, "temperate"), (67.0, "boreal")):
        if north < limit:
            return climate
    return "polar"


def language_of(city: City, facts: CountryFacts, share: float) -> str:
    """The language of a place's signs: by region where a country is divided, else mostly the most usual one."""
    languages = facts.languages
    if city.country in _FRENCH_REGIONS:
        if city.admin1 in _FRENCH_REGIONS[city.country]:
            return "fr"
        return "it" if city.admin1 == "Ticino" else languages[0]
    if city.country == "ES":
        return "ca" if city.admin1 == "Catalonia" else "es"
    if len(languages) > 1 and share < 0.12:
        return languages[1]
    return languages[0]


def painted_name(city: City, language: str) -> str:
    """The city's name in the script of its signs, or its romanised name where no drawable local name is listed."""
    if language in ("ja", "zh", "zh-TW"):
        drawable = [name for name in city.alternate_names if _is_han(name)]
        if drawable:
            return min(drawable, key=lambda name: (len(name), name))
    # The OCR weights do not know Vietnamese tone letters; signs there often leave them out too.
    return _without_tones(city.name) if language == "vi" else city.name


def painted_region(city: City, facts: CountryFacts) -> str:
    """The division a city lies in, in plain letters; the country where GeoNames has no divisions."""
    return _without_tones(city.admin1 or facts.name).replace(",", "")


def _is_han(name: str) -> bool:
    if not 2 <= len(name) <= 5 or not all("\u4e00" <= ch <= "\u9fff" for ch in name):
        return False
    try:  # the packaged font covers JIS X 0208
        name.encode("shift_jis")
    except UnicodeEncodeError:
        return False
    return True


def _without_tones(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.replace("Đ", "D").replace("đ", "d"))
    return "".join(ch for ch in plain if not unicodedata.combining(ch))


def phone_number(city: City, facts: CountryFacts, rng: random.Random) -> str:
    """A phone number whose area digits are shared by the whole first-level division."""
    area = area_code(city.country, city.admin1)
    a, b, c = (rng.randrange(100, 999) for _ in range(3))
    if facts.phone_prefix and rng.random() < 0.65:
        return f"{facts.phone_prefix} {area} {a} {b % 90 + 10} {c % 90 + 10}"
    return f"Tel. 0{area} {a} {b % 90 + 10} {c % 90 + 10}"


def shop_text(words: SignWords, kind: str, name: str) -> str:
    """The first line of a shop sign: word and name in the order of the language."""
    if words.language in ("ja", "zh", "zh-TW"):
        return f"{name}{words.word(kind)}"
    if words.language in ("en", "zu", "tr", "kk", "mn", "hu", "fi", "ko", "hi", "si"):
        return f"{name} {words.word(kind)}"
    return f"{words.word(kind)} {name}"


def make_place(
    seed: int,
    index: int,
    city: City,
    copy: int,
    neighbours: list[tuple[City, float]] | None,
    crowded: bool = False,
) -> Place:
    """The place at an index of a world; depends on the seed and the gazetteer only.

    The index over all sign texts passes no neighbours: only the direction sign depends on them. It does without the
    search for dry ground too, on which no sign depends. A crowded city's places lie around its centre, not all over it.
    """
    rng = draws(seed, "place", city.geoname_id, copy)
    facts = countries()[city.country]
    reach_km = 0.4 + min(3.2, math.sqrt(max(city.population, 1000)) / 450) + 0.8 * min(copy, 4)
    share, angle = rng.random(), rng.random() * 2 * math.pi
    radius_km = reach_km * (share**2 if crowded else math.sqrt(share))
    lat, lon, radius_km = point_in_town(city, radius_km, angle, anywhere=neighbours is None)
    language = language_of(city, facts, rng.random())
    words = WORDS[language]
    local_name = painted_name(city, language)
    setting = ("centre", "suburb", "rural")[bisect.bisect([0.5, 0.82], rng.random())]
    return Place(
        index=index,
        city=city,
        country=city.country,
        lat=lat,
        lon=lon,
        bearing_deg=round(rng.random() * 360.0, 2),
        language=language,
        local_name=local_name,
        street=words.street.format(proper_name(language, city.country, facts.continent, rng)),
        region=painted_region(city, facts),
        shops=_shops(city, facts, words, local_name, setting, rng, draws(seed, "named after", city.geoname_id, copy)),
        towns_ahead=_towns(
            neighbours or [], language, local_name, radius_km, setting, draws(seed, "towns", city.geoname_id, copy)
        ),
        setting=setting,
        climate=climate_of(city.lat, facts),
        building_style=facts.building_style,
        sun_height_deg=round(max(6.0, (90.0 - abs(city.lat) * 0.9) * (0.55 + 0.45 * rng.random())), 2),
        # The midday sun stands in the south of the northern half and in the north of the southern.
        sun_azimuth_deg=round((180.0 if city.lat >= 0 else 0.0) + rng.gauss(0, 35), 2) % 360.0,
        image_count=rng.randrange(3, 9),
        paint_seed=rng.getrandbits(62),
    )


def point_in_town(city: City, radius_km: float, angle: float, anywhere: bool = False) -> tuple[float, float, float]:
    """(lat, lon, km from the centre) of a point in a direction from a town's centre.

    Unless it may lie anywhere, it is drawn in until it is neither in the water nor over the border.
    """
    for _ in range(4):
        lat = city.lat + radius_km / 111.195 * math.cos(angle)
        lon = city.lon + radius_km / (111.195 * max(0.05, math.cos(math.radians(city.lat)))) * math.sin(angle)
        if anywhere or is_inland(lat, lon, city.country):
            break
        radius_km /= 2.5
    return round(lat, 7), round((lon + 180.0) % 360.0 - 180.0, 7), radius_km


def point_along(lat: float, lon: float, bearing_deg: float, ahead_m: Any, right_m: float = 0.0) -> tuple[Any, Any]:
    """(lat, lon) of the point that lies `ahead_m` along a bearing and `right_m` beside it; metres may be an array."""
    bearing = math.radians(bearing_deg)
    north_m = ahead_m * math.cos(bearing) - right_m * math.sin(bearing)
    east_m = ahead_m * math.sin(bearing) + right_m * math.cos(bearing)
    return lat + north_m / 111_195.0, lon + east_m / (111_195.0 * max(0.05, math.cos(math.radians(lat))))


def is_inland(lat: float, lon: float, iso2: str) -> bool:
    """Whether a point lies in a country, and not within about a kilometre of its coast or border."""
    land = country_map()
    return all(
        land.at(lat + north, lon + east) == iso2
        for north, east in ((0.0, 0.0), (0.008, 0.0), (-0.008, 0.0), (0.0, 0.01), (0.0, -0.01))
    )


def _shops(
    city: City,
    facts: CountryFacts,
    words: SignWords,
    local_name: str,
    setting: str,
    rng: random.Random,
    naming: random.Random,
) -> tuple[Sign, ...]:
    count = {"centre": 3, "suburb": 2, "rural": 1}[setting]
    kinds = rng.sample(["bakery", "pharmacy", "market", "restaurant"], count)
    signs = []
    for kind in kinds:
        # Shops call themselves after their owner, or after the town.
        name = proper_name(words.language, city.country, facts.continent, rng)
        name = local_name if naming.random() < NAMED_AFTER_TOWN else name
        phone = phone_number(city, facts, rng)
        signs.append(Sign(kind, (shop_text(words, kind, name), phone)))
    if rng.random() < {"centre": 0.5, "suburb": 0.4, "rural": 0.3}[setting]:
        kind = "town_hall" if rng.random() < 0.5 else "school"
        signs.append(Sign(kind, (shop_text(words, kind, local_name),)))
    return tuple(signs)


def _towns(
    neighbours: list[tuple[City, float]],
    language: str,
    local_name: str,
    radius_km: float,
    setting: str,
    rng: random.Random,
) -> tuple[tuple[str, int], ...]:
    """Up to two lines of a direction sign: often the place's own town, then a neighbour."""
    if rng.random() > {"centre": 0.35, "suburb": 0.5, "rural": 0.6}[setting]:
        return ()
    lines = []
    if rng.random() < 0.6:
        lines.append((local_name, max(1, round(radius_km))))
    others = [(town, km) for town, km in neighbours if km > 1.5]
    if others:
        town, km = others[rng.randrange(min(3, len(others)))]
        lines.append((painted_name(town, language), max(1, round(km))))
    return tuple(lines)
