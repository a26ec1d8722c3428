"""Population rasters: exact sums, wherever the windows fall, and clear words for files that will not do."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from schemas.settings.plan import PlanSettings
from tasks.boundaries import country_codes, country_of
from tasks.errors import GeofixError
from tasks.plan import population
from tasks.plan.population import raster_cells
from tasks.plan.stage import plan_places


def write_tiff(path: Path, values: np.ndarray, west: float, north: float, size: float, **options: object) -> str:
    profile = {"crs": "EPSG:4326", "nodata": -9999.0} | options
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        height=values.shape[0],
        width=values.shape[1],
        count=1,
        dtype=str(values.dtype),
        transform=from_origin(west, north, size, size),
        **profile,
    ) as sink:
        sink.write(values, 1)
    return str(path)


@pytest.mark.parametrize("tiled", [False, True])
def test_people_are_summed_by_country_and_cell(tmp_path: Path, tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """France, Belgium, Germany and a piece of the North Sea, against a sum pixel by pixel."""
    random = np.random.default_rng(1)
    values = random.integers(0, 500, (240, 360)).astype(np.float32)
    values[random.random(values.shape) < 0.3] = -9999
    layout = {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"} if tiled else {}
    path = write_tiff(tmp_path / "people.tif", values, 1.0, 53.0, 1 / 60, **layout)
    monkeypatch.setattr(population, "WINDOW_PIXELS", 10_000)
    table = raster_cells(path)
    lat = 53 - (np.arange(240) + 0.5) / 60
    lon = 1 + (np.arange(360) + 0.5) / 60
    lats, lons = (a.ravel() for a in np.meshgrid(lat, lon, indexing="ij"))
    people = np.where(values < 0, 0, values).ravel()
    codes = country_of(lats, lons)
    inland = (np.floor(lats) == 49) & (np.floor(lons) == 5) & (codes == "BE")
    row = (table.country == country_codes().index("BE")) & (table.cell == (49 + 90) * 360 + 5 + 180)
    assert table.people[row].sum() == pytest.approx(people[inland].sum())
    # Nobody is lost: what lies off the coast goes to a country that has land in the same cell.
    cells_with_land = set(table.cell.tolist())
    cell = (np.floor(lats) + 90) * 360 + np.floor(lons) + 180
    expected = people[np.isin(cell, list(cells_with_land))].sum()
    assert table.people.sum() == pytest.approx(expected)


def test_plan_follows_the_raster(tmp_path: Path) -> None:
    """All people of France in one corner: that is where its places are."""
    values = np.zeros((60, 60), dtype=np.float32)
    values[:, :] = 1000
    path = write_tiff(tmp_path / "corner.tif", values, 2.0, 45.0, 1 / 60)
    places, refused = plan_places(PlanSettings(places=30, countries=("FR",), population_raster=path))
    assert set(places["cell"]) == {"N44E002"} and places.height + refused.height == 30


def test_ascii_grids_are_read(tmp_path: Path) -> None:
    path = tmp_path / "people.asc"
    rows = "\n".join(" ".join("7" for _ in range(8)) for _ in range(8))
    path.write_text(f"ncols 8\nnrows 8\nxllcorner 2\nyllcorner 44\ncellsize 0.125\nNODATA_value -9999\n{rows}\n")
    assert raster_cells(str(path)).people.sum() == 8 * 8 * 7


HEADER = "ncols 3\nnrows 2\nxllcorner 2\nyllcorner 44\ncellsize 0.125\nNODATA_value "


@pytest.mark.parametrize(
    ("body", "people"),
    [
        ("-9999\n1 2 3\n4 5 6\n", 21),
        ("-9999\n1 2 3\n4 5 6.75\n", 21.75),  # whole at first: the rest is not cut down
        ("-9999\n1 -9999 3\n4 1e1 +6\n", 24),
        ("nan\n1 nan 3\n4 NaN 6\n", 14),  # nan is this grid's mark for no data
    ],
)
def test_numbers_of_an_ascii_grid_are_read_as_written(tmp_path: Path, body: str, people: float) -> None:
    path = tmp_path / "people.asc"
    path.write_text(HEADER + body)
    assert raster_cells(str(path)).people.sum() == people


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("-9999\n1 2 3\n4 nan 6\n", "holds 'nan' in line 8"),
        ("-9999\n1,5 2 3\n4 5 6\n", "holds '1,5' in line 7"),
        ("-9999\n1 2 3\n4 5 many\n", "holds 'many' in line 8"),
        ("-9999\n1 2 3\n4 inf 6\n", "holds 'inf' in line 8"),
        ("-9999\n1 2 3\n4 -5 6\n", "holds -5 people at 44.062, 2.188"),
    ],
)
def test_words_in_an_ascii_grid_are_refused(tmp_path: Path, body: str, words: str) -> None:
    path = tmp_path / "people.asc"
    path.write_text(HEADER + body)
    with pytest.raises(GeofixError, match=words) as caught:
        raster_cells(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", "No such file"),
        ("text", "cannot be read"),
        ("no_crs", "no coordinate reference system"),
        ("mercator", "reproject it to EPSG:4326"),
        ("nan", "holds nan people at 44.9"),
        ("negative", "holds -3 people"),
        ("coarse", "at most 0.5"),
        ("empty", "no people on any land"),
    ],
)
def test_files_that_will_not_do_are_refused_in_one_line(tmp_path: Path, case: str, words: str) -> None:
    path = tmp_path / f"{case}.tif"
    values = np.full((10, 10), 5, dtype=np.float32)
    if case == "text":
        path.write_text("not a raster")
    elif case == "no_crs":
        write_tiff(path, values, 2, 45, 0.1, crs=None)
    elif case == "mercator":
        write_tiff(path, values, 2, 45, 0.1, crs="EPSG:3857")
    elif case == "coarse":
        write_tiff(path, values, 2, 45, 1.0)
    elif case in ("nan", "negative"):
        values[0, 3] = np.nan if case == "nan" else -3
        write_tiff(path, values, 2, 45, 0.1)
    elif case == "empty":
        write_tiff(path, values * 0, 2, 45, 0.1)
    with pytest.raises(GeofixError, match=words) as caught:
        raster_cells(str(path))
    assert "\n" not in str(caught.value)
