"""The rules by which the atlas was derived, and what was committed."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import shapely

from infra.derive.outlines import country_shapes, features
from infra.derive.plan import FACTBOOK_EDITION, GEONAMES_EDITION, country_of_region, estimate_roads
from infra.derive.topology import read_topology
from tasks.geo.atlas import DATA, countries, gazetteer, outlines


def region(**given: str) -> dict[str, str]:
    return {"admin": "France", "name": "Ain", "iso_3166_2": "FR-01", "iso_a2": "FR"} | given


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "FR"),
        ({"iso_3166_2": "FR-RE"}, "RE"),
        ({"iso_3166_2": "UA-43", "iso_a2": "RU", "admin": "Russia"}, "UA"),
        ({"iso_3166_2": "-99-X11~", "iso_a2": "-1", "admin": "Somaliland"}, "SO"),
        ({"iso_3166_2": "-99-X14~", "iso_a2": "-1", "name": "Christmas Island", "admin": "Indian Ocean"}, "CX"),
        ({"iso_3166_2": "-99-X08~", "iso_a2": "-1", "admin": "Spratly Is."}, None),
    ],
)
def test_regions_get_their_iso_code(given: dict[str, str], code: str | None) -> None:
    assert country_of_region(region(**given)) == code


def test_a_region_without_code_and_rule_stops_the_derivation() -> None:
    with pytest.raises(ValueError, match="add a rule"):
        country_of_region(region(iso_3166_2="-99", iso_a2="-1", admin="Atlantis"))


def test_roads_are_estimated_by_the_law_of_the_known() -> None:
    """Figures that follow a power law exactly give that law back."""
    known = [(3 * p**0.4 * a**0.5, p, a) for p, a in [(1e3, 10.0), (1e6, 1e3), (5e7, 4e5), (2e4, 9e4)]]
    constant, by_people, by_land = estimate_roads(known)
    assert np.allclose([math.exp(constant), by_people, by_land], [3, 0.4, 0.5])


def test_topology_arcs_are_joined_forwards_and_backwards(tmp_path: Path) -> None:
    """Two squares that share a side; the second walks the shared arc backwards."""
    file = tmp_path / "two.json"
    shared, left, right = [[1, 0], [0, 1]], [[1, 1], [-1, 0], [0, -1], [1, 0]], [[1, 0], [1, 0], [0, 1], [-1, 0]]
    squares = [
        {"type": "Polygon", "id": "1", "arcs": [[0, 1]]},
        {"type": "MultiPolygon", "id": "2", "arcs": [[[2, -1]]]},
    ]
    topology = {
        "transform": {"scale": [10, 10], "translate": [100, 0]},
        "arcs": [shared, left, right],
        "objects": {"countries": {"geometries": squares}},
    }
    file.write_text(json.dumps(topology))
    found = dict(read_topology(file, "countries"))
    assert found["1"].bounds == (100, 0, 110, 10) and found["1"].area == 100
    assert found["2"].bounds == (110, 0, 120, 10) and found["2"].area == 100


def test_the_country_table_is_complete() -> None:
    table = countries()
    assert table.height == 250 and table["iso2"].is_unique().all()
    assert {"NA", "GP", "MQ", "GF", "RE", "YT", "AX", "BQ", "XK"} <= set(table["iso2"])
    figures = table.select("road_km", "population", "land_km2")
    assert figures.null_count().sum_horizontal()[0] == 0 and (figures.min_horizontal() >= 0).all()
    assert (table["land_km2"] > 0).all()
    assert set(table["continent"]) == {"AF", "AN", "AS", "EU", "NA", "OC", "SA"}
    assert set(table.filter(pl.col("road_source") == "estimate")["iso2"]) >= {"EH", "GL", "GF"}
    assert table.select("figures_source", "figures_edition", "road_source").null_count().sum_horizontal()[0] == 0


def test_what_has_no_year_is_as_documented() -> None:
    """The README of the data says for which countries the sources give no year of their own."""
    table = countries()
    counted = table.filter(pl.col("road_source") == "CIA World Factbook")
    undated = set(counted.filter(pl.col("road_year").is_null())["iso2"])
    assert undated == {"BL", "CW", "MC", "MS", "PA", "PN", "SX", "TT", "VC"}
    factbook = pl.col("figures_source").str.starts_with("CIA World Factbook")
    assert set(table.filter(factbook & pl.col("population_year").is_null())["iso2"]) == {
        "BV", "EH", "GS", "HM", "IO", "TF"
    }  # fmt: skip
    assert dict(table.group_by(factbook.alias("is")).agg(pl.col("figures_edition").unique().first()).iter_rows()) == {
        True: FACTBOOK_EDITION,
        False: GEONAMES_EDITION,
    }
    described = DATA.joinpath("README.md").read_text()
    assert all(
        f"`{column}`" in described for column in table.columns if column not in ("iso2", "iso3", "name", "continent")
    )


def test_the_atlas_is_the_one_described() -> None:
    assert len(outlines().name) == 4598 and gazetteer().height == 234_908
    assert all(outlines().name) and (np.abs(outlines().lat) <= 90).all() and (np.abs(outlines().lon) <= 180).all()


def test_the_map_of_the_report_follows_iso_3166() -> None:
    script = Path(__file__).parents[3] / "tasks" / "review" / "site" / "assets" / "world.js"
    first, second = script.read_text("utf-8").splitlines()
    assert "public domain" in first and "ISC" in first and "ISO 3166" in first
    world = json.loads(second.removeprefix('geofix.push("world",').removesuffix(");"))
    shapes = {one["properties"]["code"]: shapely.from_geojson(json.dumps(one)) for one in world["features"]}

    def ring(lat: float, lon: float) -> list[str]:
        return [code for code, one in shapes.items() if shapely.contains_xy(one, lon, lat)]

    crimea, ukraine, russia = ring(45.3, 34.3), ring(47.0, 33.5), ring(55.5, 37.0)
    assert crimea == ukraine != russia and len(russia) == 1
    assert ring(9.5, 44.0) == ring(2.8, 44.5), "Somaliland is Somalia's"
    assert ring(35.3, 33.3) == ring(34.9, 33.0), "Cyprus is one"
    sahara, morocco = ring(26.0, -12.5), ring(31.0, -7.0)
    assert sahara != morocco and len(sahara) == len(morocco) == 1
    assert ring(4.0, -53.0) and ring(78.5, 16.0) and not ring(30.0, -40.0)


def test_outlines_are_simplified_with_their_neighbours() -> None:
    """Iberia: two countries, one border, few corners."""
    shapes = {code: shape for code, shape in country_shapes(outlines()).items() if code in ("ES", "PT")}
    found = {one["properties"]["code"]: one["geometry"]["coordinates"] for one in features(shapes)}
    spain, portugal = ({tuple(corner) for corner in found[code][0][0]} for code in ("ES", "PT"))
    assert len(spain) < 600 and len(portugal) < 200
    assert len(spain & portugal) > 10, "corners of the common border"
