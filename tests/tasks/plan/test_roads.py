"""Road length by country from files of lines and rasters of densities, and the quotas that follow."""

import itertools
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import polars as pl
import pytest
import rasterio
from rasterio.transform import from_origin
from shapely.geometry import LineString, MultiLineString, Point

from schemas.errors import InputError
from schemas.settings.plan import PlanSettings
from tasks.geo.distance import distance_km
from tasks.plan.population import raster_people
from tasks.plan.quota import country_quotas, country_table
from tasks.plan.roads import road_lengths, roads_digest
from tasks.plan.stage import plan_identity

FRANCE = [(2.0, 47.0), (2.5, 47.2), (3.0, 47.0)]
GERMANY = [(10.0, 50.0), (10.4, 50.0)]
SEA = [(-30.0, 40.0), (-30.0, 41.0)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "geofix"


def length_km(points: list[tuple[float, float]]) -> float:
    return sum(distance_km(a[1], a[0], b[1], b[0]) for a, b in itertools.pairwise(points))


def roads(path: Path, crs: str = "EPSG:4326", **options: Any) -> Path:
    shapes = [LineString(FRANCE), MultiLineString([GERMANY, SEA]), Point(2, 47), None]
    frame = geopandas.GeoDataFrame({"highway": ["primary"] * len(shapes)}, geometry=shapes, crs="EPSG:4326")
    frame.to_crs(crs).to_file(path, **options)
    return path


@pytest.mark.parametrize(
    ("name", "crs"), [("r.gpkg", "EPSG:4326"), ("r.geojson", "EPSG:4326"), ("r.gpkg", "EPSG:3857")]
)
def test_lines_count_for_the_country_they_lie_in(tmp_path: Path, name: str, crs: str, own_cache: Path) -> None:
    path = roads(tmp_path / name, crs)
    lengths = road_lengths(str(path))
    assert set(lengths) == {"FR", "DE"}, "what lies at sea is nobody's"
    assert lengths["FR"] == pytest.approx(length_km(FRANCE), rel=1e-6)
    assert lengths["DE"] == pytest.approx(length_km(GERMANY), rel=1e-6)
    [kept] = own_cache.glob("roads-*.json")
    kept.write_text('{"FR": 7.0}')
    from tasks.plan.roads import _lengths

    _lengths.cache_clear()
    assert road_lengths(str(path)) == {"FR": 7.0}, "read from the cache"


def test_a_raster_of_densities(tmp_path: Path) -> None:
    path = tmp_path / "grip.tif"
    density = np.zeros((1, 4, 4), dtype=np.float32)
    density[0, 1, 1] = 500.0  # metres per square km
    with rasterio.open(
        path, "w", driver="GTiff", width=4, height=4, count=1, dtype="float32", crs="EPSG:4326",
        transform=from_origin(2.0, 48.0, 0.1, 0.1),
    ) as file:  # fmt: skip
        file.write(density)
    area = distance_km(47.8, 2.15, 47.9, 2.15) * distance_km(47.85, 2.1, 47.85, 2.2)
    assert road_lengths(str(path)) == {"FR": pytest.approx(0.5 * area, rel=1e-3)}
    assert raster_people(str(path)) == {"FR": 500.0}


def test_quotas_and_identity_follow_the_file(tmp_path: Path) -> None:
    settings = PlanSettings(countries=("FR", "DE"), places=100, weights={"roads": 1, "people": 0, "land": 0})
    path = roads(tmp_path / "roads.gpkg")
    with_roads = settings.model_copy(update={"roads": str(path)})
    quotas = country_quotas(country_table(with_roads), with_roads)
    share = length_km(FRANCE) / (length_km(FRANCE) + length_km(GERMANY))
    assert quotas == {"FR": round(100 * share), "DE": 100 - round(100 * share)}
    assert quotas != country_quotas(country_table(settings), settings)
    assert plan_identity(with_roads)["roads"] == roads_digest(str(path)) and "roads" not in plan_identity(settings)
    other = country_table(with_roads).filter(pl.col("iso2") == "IT")["road_km"].item()
    assert other == country_table(settings).filter(pl.col("iso2") == "IT")["road_km"].item()


def test_files_that_are_no_roads(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plan.roads: .*No such file"):
        road_lengths(str(tmp_path / "none.gpkg"))
    (tmp_path / "text.gpkg").write_text("hello")
    with pytest.raises(InputError, match="cannot be read as lines"):
        road_lengths(str(tmp_path / "text.gpkg"))
    frame = geopandas.GeoDataFrame(geometry=[Point(2, 47)], crs="EPSG:4326")
    frame.to_file(tmp_path / "points.gpkg")
    with pytest.raises(InputError, match="has no road on any land"):
        road_lengths(str(tmp_path / "points.gpkg"))
