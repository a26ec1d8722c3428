"""Population rasters: exact sums, wherever the windows fall, and clear words for files that will not do."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from schemas.errors import InputError
from schemas.settings.plan import PlanSettings
from tasks.geo.boundaries import country_codes, country_of
from tasks.geo.cell_split import cell_number
from tasks.plan import raster_file
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
    monkeypatch.setattr(raster_file, "WINDOW_PIXELS", 10_000)
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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cellsize 50", "beyond the Earth's degrees; correct its corner"),
        ("cellsize 5000", "that looks like metres: reproject it to EPSG:4326"),
        ("", "cannot be read"),
    ],
)
def test_a_header_that_places_people_nowhere_is_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "people.asc"
    path.write_text(f"ncols 3\nnrows 2\nxllcorner 2\nyllcorner 44\n{line + chr(10) if line else ''}1 2 3\n4 5 6\n")
    with pytest.raises(InputError, match=words):
        raster_cells(str(path))


def test_scale_and_offset_are_applied(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "people.tif", np.full((10, 10), 7, dtype=np.int16), 2, 45, 0.1, nodata=-1)
    with rasterio.open(path, "r+") as sink:
        sink.scales, sink.offsets = (0.5,), (2.0,)
    assert raster_cells(path).people.sum() == pytest.approx(100 * (7 * 0.5 + 2))


def test_a_block_is_read_in_parts_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).integers(0, 9, (300, 300)).astype(np.float32)
    path = write_tiff(tmp_path / "strip.tif", values, 2.0, 48.0, 1 / 100, compress="deflate", blockysize=300)
    monkeypatch.setattr(raster_file, "WINDOW_PIXELS", 7_000)
    with rasterio.open(path) as source:
        parts = list(raster_file.windows(source))
        assert source.block_shapes == [(300, 300)]
    assert max(part.width * part.height for part in parts) <= 7_000
    assert sum(part.width * part.height for part in parts) == 90_000
    assert raster_cells(path).people.sum() == values.sum()
    monkeypatch.setattr(raster_file, "LARGEST_BLOCK_MB", 0.3)
    other = write_tiff(tmp_path / "other.tif", values, 2.0, 48.0, 1 / 100, compress="deflate", blockysize=300)
    with pytest.raises(InputError, match=r"blocks of 300 x 300 pixels.*gdal_translate -co TILED=YES"):
        raster_cells(other)
    tiled = write_tiff(tmp_path / "tiled.tif", values, 2.0, 48.0, 1 / 100, tiled=True, blockxsize=64, blockysize=64)
    assert raster_cells(tiled).people.sum() == values.sum()


def test_the_version_of_a_plan_follows_what_the_raster_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        settings = PlanSettings(places=3, countries=("FR",), population_raster=name)
        return str(plan_places(settings)[0]["plan_version"][0])

    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    random = np.random.default_rng(3)
    values = random.integers(1, 99, (60, 60)).astype(np.float32)
    write_tiff(Path("pop.tif"), values, 2.0, 45.0, 1 / 60)
    first = version("pop.tif")
    assert version(str(tmp_path / "pop.tif")) == first and version("sub/../pop.tif") == first
    Path("copy.tif").write_bytes(Path("pop.tif").read_bytes())
    assert version("copy.tif") == first
    write_tiff(Path("pop.tif"), values[::-1].copy() + 1, 2.0, 45.0, 1 / 60)
    assert version("pop.tif") != first


def test_countries_without_people_in_the_raster_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiff(tmp_path / "paris.tif", np.full((10, 10), 9, dtype=np.float32), 2.0, 49.0, 0.05)
    plan_places(PlanSettings(places=30, countries=("FR", "BR", "JP"), population_raster=path))
    assert "has no people in 2 of 3 planned countries (BR, JP)" in caplog.text
    assert "covers 1 of 98 cells of FR: it counts no people in the others, and no place is drawn there" in caplog.text
    caplog.clear()
    whole = write_tiff(tmp_path / "france.tif", np.full((26, 40), 9, dtype=np.float32), -8.0, 53.0, 0.5)
    plan_places(PlanSettings(places=30, countries=("FR",), population_raster=whole))
    assert not caplog.records


def test_a_raster_from_0_to_360_degrees_covers_both_halves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiff(tmp_path / "world.tif", np.full((360, 720), 9, dtype=np.float32), 0.0, 90.0, 0.5)
    plan_places(PlanSettings(places=30, countries=("FR", "BR", "FJ"), population_raster=path))
    assert not caplog.records


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
    ("case", "words"),
    [
        ("missing", "No such file"),
        ("text", "cannot be read"),
        ("no_crs", "no coordinate reference system"),
        ("mercator", "reproject it to EPSG:4326"),
        ("grads", "is in EPSG:4807, whose numbers are not degrees from Greenwich; reproject it to EPSG:4326"),
        ("ferro", "is in EPSG:4805, whose numbers are not degrees from Greenwich"),
        ("mars", "whose numbers are not degrees from Greenwich"),
        ("nan", "holds nan people at 44.9"),
        ("negative", "holds -3 people"),
        ("coarse", "at most 0.5"),
        ("empty", "no people on any land"),
        ("cut", r"cannot be read; it is damaged, cut short or no raster: get it again \(.*IReadBlock failed"),
        ("bands", "has 2 bands"),
        ("complex", "numbers of type complex64"),
        ("wide", "is 540 degrees wide"),
        ("north", "latitude 80 to 95 .*; correct its corner or pixel size"),
        ("metres", "that looks like metres: reproject it"),
        ("south_up", "does not begin in its north-west corner"),
        ("most", r"holds 3\.4e\+38 people"),
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
    elif case in ("grads", "ferro"):
        write_tiff(path, values, 2, 45, 0.1, crs="EPSG:4807" if case == "grads" else "EPSG:4805")
    elif case == "mars":
        write_tiff(path, values, 2, 45, 0.1, crs="+proj=longlat +a=3396190 +b=3376200 +no_defs")
    elif case == "coarse":
        write_tiff(path, values, 2.5, 45, 1.0)
    elif case in ("nan", "negative"):
        values[0, 3] = np.nan if case == "nan" else -3
        write_tiff(path, values, 2, 45, 0.1)
    elif case == "empty":
        write_tiff(path, values * 0, 2, 45, 0.1)
    elif case == "cut":
        write_tiff(path, np.random.default_rng(1).random((200, 200), dtype=np.float32), 2, 45, 0.1, compress="deflate")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif case == "bands":
        with rasterio.open(path, "w", driver="GTiff", height=10, width=10, count=2, dtype="float32") as sink:
            sink.write(np.stack([values, values]))
        with rasterio.open(path, "r+") as sink:
            sink.crs, sink.transform = "EPSG:4326", from_origin(2, 45, 0.1, 0.1)
    elif case == "complex":
        write_tiff(path, values.astype(np.complex64), 2, 45, 0.1, nodata=None)
    elif case == "wide":
        write_tiff(path, np.ones((10, 1080), dtype=np.float32), -180, 45, 0.5)
    elif case == "north":
        write_tiff(path, np.ones((30, 10), dtype=np.float32), 2, 95, 0.5)
    elif case == "metres":
        write_tiff(path, values, 500_000, 4_000_000, 50, crs=None)
    elif case == "south_up":
        write_tiff(path, values, 2, 45, 0.1)
        with rasterio.open(path, "r+") as sink:
            sink.transform = rasterio.Affine(0.1, 0, 2, 0, 0.1, 44)
    elif case == "most":
        write_tiff(path, np.where(values, np.float32(3.4e38), values), 2, 45, 0.1)
    with pytest.raises(InputError, match=words) as caught:
        raster_cells(str(path))
    assert "\n" not in str(caught.value)


def test_a_raster_of_one_degree_is_the_grid_of_cells_itself(tmp_path: Path) -> None:
    """GeoAgent's eq. 12 asks for a 360 x 180 grid; a cell of several countries is shared out by their land in it."""
    people = np.zeros((180, 360), dtype=np.float32)
    people[90 - 49, 180 + 2] = 1000  # the cell north-east of 48, 2: Paris
    people[90 - 47, 180 + 7] = 600  # north-east of 46, 7: Switzerland, Italy and France
    write_tiff(tmp_path / "one.tif", people, -180, 90, 1.0)
    table = raster_cells(str(tmp_path / "one.tif"))
    assert table.people.sum() == pytest.approx(1600)
    assert (table.people > 0).sum() >= 3, "the second cell has several countries"
    paris = table.cell == cell_number(np.array([48.5]), np.array([2.5]))[0]
    assert table.people[paris].sum() == pytest.approx(1000)
