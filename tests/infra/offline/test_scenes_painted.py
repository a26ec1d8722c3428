"""What the scenes show: one ground in every overlap, clouds that the classes mark, the swath's edge, real towns."""

import threading

import numpy as np
import pytest

from infra.offline.maps.view import View
from infra.offline.scenes.clouds import weather
from infra.offline.scenes.coast import shore_distance_m
from infra.offline.scenes.cog import ASSETS, BLOCK, Painter, layout_of
from infra.offline.scenes.ground import paint_ground
from infra.offline.scenes.orbit import FIRST_DAY, SWATH_KM, across_km, footprint, orbits_over, scene_with_id, scenes_of
from infra.offline.scenes.paint import cloud_percent, paint_classes, paint_window
from infra.offline.scenes.projection import to_geographic, to_utm
from infra.offline.scenes.tiles import SIZE_M, tile_named
from infra.offline.scenes.window import Window

SEED = 7
CLOUDS = (8, 9, 10)


def whole(scene, size=183):
    tile = scene.tile
    return paint_window(SEED, scene, Window(tile.zone, tile.south, tile.left_m, tile.top_m, SIZE_M / size, size, size))


def patch(scene, lat, lon, size=128, step=10):
    tile = scene.tile
    x, y = (float(v[0]) for v in to_utm(np.array([lat]), np.array([lon]), tile.zone, tile.south))
    left, top = x // 20 * 20 - size * step // 2, y // 20 * 20 + size * step // 2
    return paint_window(SEED, scene, Window(tile.zone, tile.south, left, top, step, size, size))


def clear(name, most=1.0):
    scenes = [s for s in scenes_of(tile_named(name)) if s.coverage > 0.98 and s.at.month in (5, 6, 7, 8, 9)]
    return next(s for s in scenes if cloud_percent(SEED, s) <= most)


def test_projection_there_and_back():
    rng = np.random.default_rng(1)
    lat, lon = rng.uniform(-79, 83, 500), rng.uniform(5, 13, 500)
    x, y = to_utm(lat, lon, 32, False)
    back = to_geographic(x, y, 32, False)
    assert np.abs(back[0] - lat).max() < 1e-9 and np.abs(back[1] - lon).max() < 1e-9
    pyproj = pytest.importorskip("pyproj")
    other = pyproj.Transformer.from_crs(4326, 32632, always_xy=True).transform(lon, lat)
    assert (
        np.abs(other[0] - x).max() < 4e-3
    )  # each tile has its own sun and np.abs(other[1] - y).max() < 4e-3  # each tile has its own sun


@pytest.mark.parametrize(
    ("left", "right", "lat", "lon"),
    [
        ("60KZG", "01KAB", -16.80, 180.01),  # Fiji: two zones, and longitudes that differ by a turn
        ("60KZG", "01KAB", -16.75, 180.05),
        ("60WXV", "01WCQ", 67.2, 180.0),  # Chukotka
        ("31UGS", "32ULB", 50.8, 6.0),  # two zones as anywhere else
    ],
)
def test_two_zones_paint_the_same_ground(left, right, lat, lon):
    """Each on its own grid: so points are compared, and those on an edge may fall to either side."""
    rng = np.random.default_rng(3)
    lats, lons = lat + rng.uniform(-0.005, 0.005, 3000), lon + rng.uniform(-0.005, 0.005, 3000)
    seen = []
    for tile in (tile_named(left), tile_named(right)):
        x, y = to_utm(lats, lons, tile.zone, tile.south)
        west, north = x.min() // 20 * 20, y.max() // 20 * 20 + 20
        rows, columns = int((north - y.min()) // 10) + 1, int((x.max() - west) // 10) + 1
        window = Window(tile.zone, tile.south, west, north, 10, columns, rows)
        ground = paint_ground(SEED, tile, window, 190, (55.0, 160.0))
        at = ((north - y) // 10).astype(int), ((x - west) // 10).astype(int)
        seen.append((ground.kind[at], ground.colour[at]))
    (kind, colour), (other_kind, other_colour) = seen
    assert (kind != 6).mean() > 0.5, "at sea there is nothing to compare"
    assert (kind == other_kind).mean() > 0.93
    assert np.median(np.abs(colour - other_colour).max(axis=-1)) < 0.006
    assert np.corrcoef(colour[:, 1], other_colour[:, 1])[0, 1] > 0.8


def test_clouds_go_on_across_180_degrees():
    """The sky of a pass at points of a parallel, from the nodes of either zone."""
    skies = []
    for name in ("60KZG", "01KAB"):
        tile = tile_named(name)
        x, y = to_utm(np.full(200, -16.8), np.linspace(179.95, 180.05, 200), tile.zone, tile.south)
        window = Window(tile.zone, tile.south, x.min() // 20 * 20 - 20, y.max() // 20 * 20 + 20, 10, 1100, 40)
        sky = window.spread(weather(SEED, 72, 5, *window.node_plane))
        skies.append(sky[((window.top_m - y) // 10).astype(int), ((x - window.left_m) // 10).astype(int)])
    assert np.abs(skies[0] - skies[1]).max() < 0.02 < np.ptp(skies[0])


def test_a_street_map_lies_on_the_plane_of_the_ground():
    for lat, lon in ((-16.8, 179.999), (-16.8, -179.999), (50.8, 6.0), (64.0, -170.0)):
        view = View.around(lat, lon, 15, 64, 64)
        zone = int((view.middle[1] + 180.0) // 6) % 60 + 1
        x, y = to_utm(np.array([lat]), np.array([lon]), zone, lat < 0)
        nodes = Window(zone, lat < 0, float(x[0]) - 320, float(y[0]) + 320, 10, 64, 64).plane
        assert abs(nodes[0][32, 32] - view.plane[0][32, 32]) < 40 and abs(nodes[1][32, 32] - view.plane[1][32, 32]) < 40


def test_two_tiles_of_a_pass_show_the_same_where_they_overlap():
    left, right = tile_named("33UUU"), tile_named("33UVU")
    orbit = next(o for o in orbits_over(left) if o in orbits_over(right))
    one = next(s for s in scenes_of(left) if s.orbit == orbit and 5 < cloud_percent(SEED, s) < 60)
    two = next(s for s in scenes_of(right) if s.orbit == orbit and s.number == one.number)
    assert one.at == two.at and right.left_m < left.left_m + SIZE_M
    pixels = [
        paint_window(SEED, scene, Window(33, False, right.left_m + 2_000, left.top_m - 60_000, 10, 200, 200))
        for scene in (one, two)
    ]
    assert np.array_equal(pixels[0].kind, pixels[1].kind)
    assert np.abs(pixels[0].reflectance - pixels[1].reflectance).max() < 4e-3  # each tile has its own sun


def test_a_scene_shows_no_edge_between_the_parts_it_is_painted_in():
    scene = clear("33UUU")
    tile = scene.tile
    frame = (tile.zone, tile.south, tile.left_m + 50_000, tile.top_m - 60_000, 10)
    whole_part = paint_window(SEED, scene, Window(*frame, 96, 96))
    corner = paint_window(SEED, scene, Window(tile.zone, tile.south, frame[2] + 500, frame[3] - 400, 10, 30, 40))
    assert np.array_equal(whole_part.kind[40:80, 50:80], corner.kind)
    assert np.abs(whole_part.reflectance[40:80, 50:80] - corner.reflectance).max() < 1e-3


def test_the_offset_comes_with_baseline_four():
    old, new = (
        next(
            s
            for s in scenes_of(tile_named("33TTG"))
            if s.at.year == year and s.coverage > 0.98 and cloud_percent(SEED, s) < 1
        )
        for year in (2021, 2023)
    )
    assert (old.offset, new.offset) == (0, 1000)
    for scene in (old, new):
        sea = patch(scene, 41.6, 12.2, 32)
        stored = sea.band("B04", scene.offset)
        assert 0 < stored.mean() - scene.offset < 500
        assert np.array_equal(stored - scene.offset, np.rint(sea.reflectance[..., 0] * 10_000))


def test_clouds_are_bright_marked_and_counted():
    scenes = [s for s in scenes_of(tile_named("33UUU")) if s.at.month in (6, 7, 8) and s.coverage > 0.98]
    scene = next(s for s in scenes if 20 < cloud_percent(SEED, s) < 60)
    pixels = whole(scene)
    seen = pixels.kind > 0
    marked = np.isin(pixels.kind, CLOUDS)
    assert abs(100 * marked[seen].mean() - cloud_percent(SEED, scene)) < 3
    light = pixels.reflectance.mean(axis=2)
    assert light[pixels.kind == 9].min() > np.percentile(light[np.isin(pixels.kind, (4, 5))], 90)
    assert light[pixels.kind == 3].mean() < light[np.isin(pixels.kind, (4, 5))].mean()
    covers = np.array([cloud_percent(SEED, s) for s in scenes])
    assert (covers < 10).mean() > 0.1 and (covers > 70).mean() > 0.1


def test_the_class_map_marks_what_the_picture_shows():
    """It is painted by itself, without colours: clouds, shadows, sea and the swath's edge must be the same."""
    scenes = [s for s in scenes_of(tile_named("33TTG")) if s.at.month in (6, 7, 8)]
    cloudy = next(s for s in scenes if 20 < cloud_percent(SEED, s) < 60)
    for left, top in ((0, 0), (60_000, 30_000), (90_000, 90_000)):
        window = Window(33, False, cloudy.tile.left_m + left, cloudy.tile.top_m - top, 20, 256, 256)
        shown, classes = paint_window(SEED, cloudy, window).kind, paint_classes(SEED, cloudy, window)
        for kind in (0, 3, *CLOUDS, 6):
            assert np.array_equal(shown == kind, classes == kind), kind
        ground = np.isin(shown, (4, 5))
        if ground.mean() > 0.05:
            assert (shown == classes)[ground].mean() > 0.6


def test_the_swaths_edge_leaves_a_wedge_as_large_as_the_item_says():
    tile = tile_named("19HCC")
    orbit = next(o for o in orbits_over(tile) if 0.2 < share_seen(tile, o) < 0.8)
    scene = next(s for s in scenes_of(tile) if s.orbit == orbit)
    pixels = whole(scene)
    assert abs((pixels.kind == 0).mean() - (1 - scene.coverage)) < 0.01
    assert (pixels.visual()[pixels.kind == 0] == 0).all()
    lon, lat = np.asarray(footprint(tile, orbit).exterior.coords).T
    assert np.abs(across_km(orbit, lat, lon)).max() < SWATH_KM / 2 + 0.2


def share_seen(tile, orbit):
    lat, lon = tile.points(16)
    return float((np.abs(across_km(orbit, lat, lon)) <= SWATH_KM / 2).mean())


def test_towns_and_coasts_are_where_they_are():
    scene = clear("33TTG")
    city, country = patch(scene, 41.90, 12.49), patch(scene, 42.05, 11.98)
    assert np.abs(np.diff(city.reflectance[..., 0])).mean() > 2 * np.abs(np.diff(country.reflectance[..., 0])).mean()
    assert (patch(scene, 41.6, 12.2).kind == 6).all()
    assert (city.kind == 6).mean() < 0.2
    tile = scene.tile
    shore = shore_distance_m(tile.left_m, tile.top_m, 1600, 60, 60, tile.zone, tile.south)
    assert shore.min() < -5000 and shore.max() > 5000


def test_same_seed_same_bytes_by_any_number_of_hands():
    scene = clear("33TTG")
    jobs = [("visual", 5, 0, 0), ("B02", 0, 17, 15), ("B03", 0, 17, 15), ("SCL", 0, 8, 7)]
    alone = Painter(SEED)
    expected = [alone.tile(scene, *job) for job in jobs]
    crowd, found = Painter(SEED, cache_bytes=1), {}

    def work(k):
        found[k] = crowd.tile(scene, *jobs[k % len(jobs)])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[k] for k in range(len(jobs))] == expected
    assert Painter(SEED + 1).tile(scene, *jobs[1]) != expected[1]


@pytest.mark.parametrize("asset", ASSETS)
def test_layout_has_no_gap_and_no_overlap(asset):
    layout = layout_of(tile_named("33TTG"), asset)
    at = len(layout.header)
    for level in reversed(layout.levels):
        assert level.start == at
        at += level.across**2 * layout.record_bytes
    assert at == layout.length
    assert len(layout.header) <= 16_384  # what GDAL asks for first
    assert layout.levels[0].size * ASSETS[asset] == SIZE_M and layout.levels[-1].size <= BLOCK
    assert layout.tile_at(layout.length - 1)[:3] == (0, layout.levels[0].across - 1, layout.levels[0].across - 1)


def test_every_scene_has_its_own_id():
    scenes = scenes_of(tile_named("33UUU"))
    assert len({s.id for s in scenes}) == len(scenes) > 300
    assert all(scene_with_id(s.id) == s for s in scenes[::17])
    assert scenes[-1].at >= FIRST_DAY
