"""Exact to half a pixel: scenes whose numbers are positions, made by other formulas than the ones tested."""

import io
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infra.offline.scenes.projection import to_utm
from schemas.settings.satellite import SatelliteSettings
from tasks.collect.satellite.choice import choose
from tasks.collect.satellite.cover import candidates
from tasks.collect.satellite.mosaic import Mosaic, make_mosaic
from tasks.collect.satellite.picture import WorkerContext, make_picture
from tasks.lake import Lake
from tasks.services.sentinel.grid import Grid, grid_around, transformer
from tasks.services.sentinel.raster import on_grid
from tasks.services.sentinel.scenes import BANDS, CLASSES, UnusableScene, read_scene
from tasks.services.sentinel.search import find_scenes

SIZE = 240
UNIT = 20  # of stored reflectance for one pixel


def settings(**changed: Any) -> SatelliteSettings:
    return SatelliteSettings(size_px=SIZE, max_gain=1.0, **changed)


def positions(ground: Any, grid: Grid) -> dict[str, Any]:
    """Red tells the column of the grid a pixel's middle lies in, green the row; both from its outer corner."""
    lat, lon = ground.degrees()
    x, y = to_utm(lat, lon, grid.epsg % 100, grid.epsg // 100 == 327)
    columns, rows = (x - grid.left_m) / grid.step_m, (grid.top_m - y) / grid.step_m
    # Outside the grid nothing is looked at; 500 keeps numbers positive.
    return {"red": (columns * UNIT + 500) / 10_000, "green": (rows * UNIT + 500) / 10_000, "blue": 0.05}


async def mosaic_of(archive: Any, grid: Grid, wanted: SatelliteSettings) -> Mosaic:
    stac = archive.client()
    scenes, _, unusable = await find_scenes(stac, grid, wanted)
    assert not unusable
    choice = await choose(stac, scenes, grid, wanted)
    return await make_mosaic(stac, choice.layers, grid, wanted)


def errors_px(mosaic: Mosaic, size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """How far each pixel is from where it should be."""
    middle = np.arange(size) + 0.5
    columns = (mosaic.pixels[..., 0].astype(float) - 500) / UNIT
    rows = (mosaic.pixels[..., 1].astype(float) - 500) / UNIT
    return columns - middle[None], rows - middle[:, None]


ROUNDING = 0.5 / UNIT + 1e-3  # stored numbers are whole


def frame_around(grid: Grid, ground: Any, epsg: int, east: float = 0.0, north: float = 0.0, size: int = 512) -> Any:
    """A scene's frame in a zone, its middle at the grid's middle shifted by so many metres, on multiples of 60 m."""
    half = grid.size * grid.step_m / 2
    x, y = transformer(grid.epsg, epsg).transform(grid.left_m + half + east, grid.top_m - half + north)
    side = size * 10
    return ground(epsg, round((x - side / 2) / 60) * 60, round((y + side / 2) / 60) * 60, size)


@pytest.mark.parametrize(("lat", "lon"), [(52.5, 13.4), (-33.45, -70.66), (0.001, 32.5), (-17.7, 178.1)])
async def test_the_same_zone_is_copied_without_change(archive: Any, ground: Any, lat: float, lon: float) -> None:
    grid = grid_around(lat, lon, 10.0, SIZE)
    frame = frame_around(grid, ground, grid.epsg)
    archive.put("one", frame, **positions(frame, grid))
    mosaic = await mosaic_of(archive, grid, settings())
    across, down = errors_px(mosaic)
    assert mosaic.no_data_share == 0
    assert np.abs(across).max() <= ROUNDING and np.abs(down).max() <= ROUNDING
    # Copied: the very numbers of the file, at whole-pixel distance.
    left, top = round((grid.left_m - frame.left_m) / 10), round((frame.top_m - grid.top_m) / 10)
    stored = np.rint(positions(frame, grid)["red"] * 10_000)[top : top + SIZE, left : left + SIZE]
    assert np.array_equal(mosaic.pixels[..., 0], stored)


async def test_four_scenes_at_a_corner(archive: Any, ground: Any) -> None:
    grid = grid_around(52.5, 13.4, 10.0, SIZE)
    for number, (east, north) in enumerate(((-2200, 2200), (2200, 2200), (-2200, -2200), (2200, -2200))):
        frame = frame_around(grid, ground, grid.epsg, east, north, 480)
        archive.put(f"scene{number}", frame, **positions(frame, grid))
    mosaic = await mosaic_of(archive, grid, settings())
    assert len(mosaic.parts) == 4 and mosaic.no_data_share == 0
    across, down = errors_px(mosaic)
    assert np.abs(across).max() <= ROUNDING and np.abs(down).max() <= ROUNDING


@pytest.mark.parametrize(
    ("lat", "lon", "own", "other"),
    [
        (48.5, 12.01, 32633, 32632),  # where zones 32 and 33 meet
        (-41.3, 173.99, 32759, 32760),
        (66.0, -23.99, 32627, 32626),
        (-17.0, 179.999, 32760, 32701),  # the date line: zones 60 and 1
        (65.5, -179.99, 32601, 32660),
        (0.0, 18.005, 32634, 32633),
    ],
)
async def test_across_zones(archive: Any, ground: Any, lat: float, lon: float, own: int, other: int) -> None:
    grid = grid_around(lat, lon, 10.0, SIZE)
    assert grid.epsg == own
    west = -1 if (other % 100) % 60 < (own % 100) % 60 or (other, own) == (32660, 32601) else 1
    same = frame_around(grid, ground, own, -west * 2000, 0, 400)
    far = frame_around(grid, ground, other, west * 1500, 0, 400)
    archive.put("same", same, **positions(same, grid))
    archive.put("far", far, **positions(far, grid), cloud=1.0)
    mosaic = await mosaic_of(archive, grid, settings())
    assert {part.scene.id for part in mosaic.parts} == {"same", "far"}
    assert min(part.share for part in mosaic.parts) > 0.2
    assert mosaic.no_data_share == 0
    across, down = errors_px(mosaic)
    assert np.abs(across).max() < 0.06 and np.abs(down).max() < 0.06


@pytest.mark.parametrize(("lat", "own", "other"), [(0.0003, 32636, 32736), (-0.0003, 32736, 32636)])
async def test_across_the_equator_the_zone_goes_on(archive: Any, ground: Any, lat: float, own: int, other: int) -> None:
    """Pixels of the other side are copied too, and cost nothing extra: only their northing is counted otherwise."""
    grid = grid_around(lat, 33.3, 10.0, SIZE)
    assert grid.epsg == own
    beyond = -1 if other == 32736 else 1
    near = frame_around(grid, ground, own, 0, -beyond * 1500, 400)
    far = frame_around(grid, ground, other, 0, beyond * 2000, 400)
    archive.put("near", near, **positions(near, grid))
    archive.put("far", far, **positions(far, grid))
    scenes, _, _ = await find_scenes(archive.client(), grid, settings())
    assert [one.other_zone for one in candidates(scenes, grid)] == [False, False]
    mosaic = await mosaic_of(archive, grid, settings())
    assert {part.scene.id for part in mosaic.parts} == {"near", "far"} and mosaic.no_data_share == 0
    across, down = errors_px(mosaic)
    assert np.abs(across).max() <= ROUNDING and np.abs(down).max() <= ROUNDING
    read = partial(archive.client().read, next(one.hrefs["B04"] for one in scenes if one.id == "far"))
    assert (await on_grid(read, grid, other)).shift is not None


@pytest.mark.parametrize(("step_m", "copied"), [(10, True), (20, True), (30, False), (60, False)])
async def test_which_sizes_are_copied(archive: Any, ground: Any, step_m: float, copied: bool) -> None:
    grid = grid_around(52.5, 13.4, float(step_m), 64)
    frame = frame_around(grid, ground, grid.epsg)
    archive.put("one", frame, **positions(frame, grid))
    scenes, _, _ = await find_scenes(archive.client(), grid, settings())
    file = await on_grid(partial(archive.client().read, scenes[0].hrefs["B04"]), grid, grid.epsg)
    assert (file.shift is not None) is copied


async def test_over_the_date_line_both_sides_are_searched(archive: Any, ground: Any) -> None:
    grid = grid_around(-17.0, 180.0, 10.0, SIZE)
    frame = frame_around(grid, ground, grid.epsg)
    ring = [[(lon + 180) % 360 - 180, lat] for lon, lat in frame.outline()]
    cut = {"type": "MultiPolygon", "coordinates": [[_side(ring, 180.0)], [_side(ring, -180.0)]]}
    archive.put("one", frame, **positions(frame, grid), geometry=cut)
    archive.items[0].pop("bbox", None)
    mosaic = await mosaic_of(archive, grid, settings())
    assert len(archive.searches) == 2
    west, east = (body["bbox"] for body in archive.searches)
    assert west[2] == 180.0 and east[0] == -180.0 and west[0] > 179.9 and east[2] < -179.9
    across, down = errors_px(mosaic)
    assert mosaic.no_data_share == 0 and np.abs(across).max() <= ROUNDING and np.abs(down).max() <= ROUNDING


def _side(ring: list[list[float]], line: float) -> list[list[float]]:
    """The part of a footprint on one side of the date line, roughly."""
    return [[lon if lon * line > 0 else line, lat] for lon, lat in ring]


@pytest.mark.parametrize("step_m", [20.0, 15.0, 7.0])
async def test_other_resolutions(archive: Any, ground: Any, step_m: float) -> None:
    grid = grid_around(52.5, 13.4, step_m, SIZE)
    frame = frame_around(grid, ground, grid.epsg)
    archive.put("one", frame, **positions(frame, grid))
    across, down = errors_px(await mosaic_of(archive, grid, settings()))
    assert np.abs(across).max() < 0.1 and np.abs(down).max() < 0.1


async def test_known_places_in_the_stored_picture(archive: Any, ground: Any, tmp_path: Any) -> None:
    """Bright squares at known coordinates are where the row's corners say, in the JPEG itself."""
    grid = grid_around(48.5, 12.01, 10.0, SIZE)
    near, far = frame_around(grid, ground, 32633, 1600, 0, 400), frame_around(grid, ground, 32632, -1500, 0, 400)
    spots = [grid.degrees(np.array([column]), np.array([row])) for column, row in ((40, 60), (180, 50), (60, 190))]
    for name, frame in (("near", near), ("far", far)):
        lat, lon = frame.degrees()
        colour = np.full(lat.shape, 0.02)
        for spot_lat, spot_lon in spots:
            metres = np.hypot((lat - spot_lat) * 111_200, (lon - spot_lon) * 111_320 * np.cos(np.radians(48.5)))
            colour = np.maximum(colour, np.clip((70 - metres) / 20, 0, 1) * 0.3)
        archive.put(name, frame, colour, colour, colour, cloud=0.0 if name == "near" else 1.0)
    lake = Lake(tmp_path / "lake")
    item = {"id": "p:centre", "place_id": "p", "viewport": "centre", "lat": 48.5, "lon": 12.01,
            "metres_per_pixel": 10.0, "size_px": SIZE, "east": 0.0, "north": 0.0}  # fmt: skip
    outcome = await make_picture(
        item, WorkerContext(archive.client(), lake, settings(white=0.3, gamma=1.0, jpeg_quality=100))
    )
    row = outcome.rows["images"][0]
    picture = np.asarray(Image.open(io.BytesIO(lake.images.read(row["sha256"], "jpg"))).convert("L"), dtype=float)
    corners = json.loads(row["metadata_json"])["corners"]
    for spot_lat, spot_lon in spots:
        expected = _by_corners(corners, float(spot_lat[0]), float(spot_lon[0]))
        column, row_at = (round(value) for value in expected)
        part = np.clip(picture[row_at - 12 : row_at + 12, column - 12 : column + 12] - 30, 0, None)
        v, u = np.mgrid[row_at - 12 : row_at + 12, column - 12 : column + 12] + 0.5
        found = float((u * part).sum() / part.sum()), float((v * part).sum() / part.sum())
        assert abs(found[0] - expected[0]) < 0.5 and abs(found[1] - expected[1]) < 0.5


def _by_corners(corners: dict[str, dict[str, float]], lat: float, lon: float) -> tuple[float, float]:
    """Column and row of a point, from the four corners alone: good to a hundredth of a pixel over 2.4 km."""
    corner = [(corners[k]["lat"], corners[k]["lon"]) for k in ("north_west", "north_east", "south_west")]
    across, down = np.subtract(corner[1], corner[0]) / SIZE, np.subtract(corner[2], corner[0]) / SIZE
    column, row = np.linalg.solve(np.stack([across, down], axis=1), np.array([lat, lon]) - corner[0])
    return float(column), float(row)


def test_scenes_read_the_same_by_either_name_of_their_projection() -> None:
    item = {"id": "x", "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]},
            "properties": {"datetime": "2023-07-01T00:00:00Z", "eo:cloud_cover": 1}}  # fmt: skip
    item["assets"] = {name: {"href": "https://x.example/y"} for name in (CLASSES, *BANDS)}
    for named in ({"proj:epsg": 32633}, {"proj:code": "EPSG:32633"}):
        one = {**item, "properties": {**item["properties"], **named}}  # type: ignore[dict-item]
        assert read_scene(one, (CLASSES, *BANDS)).epsg == 32633


POLYGON = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}
COG = "image/tiff; application=geotiff; profile=cloud-optimized"


def earth_search_item(**properties: Any) -> dict[str, Any]:
    """An item in the shape of Earth Search v1: assets by common name, each band as JPEG 2000 besides."""
    assets = {}
    for name in ("red", "green", "blue", "scl", "visual"):
        bands = [{"name": name, "common_name": name}] * (3 if name == "visual" else 1)
        assets[f"{name}-jp2"] = {"href": f"https://x.example/{name}.jp2", "type": "image/jp2", "eo:bands": bands}
        assets[name] = {"href": f"https://x.example/{name}.tif", "type": COG, "eo:bands": bands}
    facts = {
        "datetime": "2023-07-01T00:00:00Z",
        "eo:cloud_cover": 1,
        "grid:code": "MGRS-33UVU",
        "proj:code": "EPSG:32633",
    }
    return {"id": "x", "geometry": POLYGON, "properties": {**facts, **properties}, "assets": assets}


def test_an_item_of_earth_search_is_read() -> None:
    scene = read_scene(earth_search_item(), (CLASSES, *BANDS, "visual"))
    assert scene.hrefs == {
        "SCL": "https://x.example/scl.tif", "B04": "https://x.example/red.tif", "B03": "https://x.example/green.tif",
        "B02": "https://x.example/blue.tif", "visual": "https://x.example/visual.tif",
    }  # fmt: skip
    assert scene.tile == "33UVU" and scene.epsg == 32633


def test_assets_of_any_name_are_known_by_their_band() -> None:
    item = earth_search_item()
    item["assets"] = {
        "scl": {"href": "https://x.example/scl"},
        **{f"R10m-{name}": {"href": f"https://x.example/{name}.tif", "bands": [{"eo:common_name": name}]}
           for name in ("blue", "green", "red")},
    }  # fmt: skip
    assert read_scene(item, (CLASSES, *BANDS)).hrefs["B04"] == "https://x.example/red.tif"
    item["assets"]["R10m-red"]["href"] = "https://x.example/red.jp2"
    with pytest.raises(UnusableScene, match="no asset B04"):
        read_scene(item, (CLASSES, *BANDS))


@pytest.mark.parametrize(
    ("properties", "offset"),
    [
        ({"s2:processing_baseline": "05.09"}, 1000),
        ({"s2:processing_baseline": "05.09", "earthsearch:boa_offset_applied": True}, 0),
        ({"s2:processing_baseline": "05.09", "earthsearch:boa_offset_applied": False}, 1000),
        ({"sentinel:processing_baseline": "04.00", "sentinel:boa_offset_applied": True}, 0),
        ({"sentinel:processing_baseline": "03.01"}, 0),
        ({"sentinel:processing_baseline": "04.00"}, 1000),
        ({}, 1000),  # by its date
    ],
)
def test_the_offset_is_subtracted_once(properties: dict[str, Any], offset: int) -> None:
    assert read_scene(earth_search_item(**properties), (CLASSES, *BANDS)).offset == offset
