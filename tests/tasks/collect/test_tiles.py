"""Vector tiles: the same grid as mercantile's, the same images as the library's decoder, nothing of broken bytes."""

import math

import mercantile
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapbox_vector_tile import decode, encode

from infra.offline.services.image_host import ImageHost
from infra.offline.services.mapillary import Limits, Mapillary, MapillaryTiles
from infra.offline.world import World
from tasks.collect.boxes import Box, boxes_around
from tasks.collect.providers.mapillary.streets import LAYER
from tasks.collect.tiles import UNKNOWN_TIME, BadTile, TileName, in_tile_order, read_tile, tiles_of
from tasks.geo.distance import distance_km

NAME = TileName(8529, 5975, 14)


@given(st.floats(-85, 85), st.floats(-180, 180), st.floats(10, 6000))
def test_the_tiles_of_a_box_are_mercantiles(lat: float, lon: float, half_size_m: float) -> None:
    for box in boxes_around(lat, lon, half_size_m, 0.01):
        theirs = {(t.x, t.y) for t in mercantile.tiles(box.west, box.south, box.east, box.north, 14)}
        ours = {(t.x, t.y) for t in tiles_of(box, 14)}
        # Mercantile shaves 1e-11 degrees off the eastern and southern edge; a tile that is only touched may differ.
        assert theirs <= ours
        for x, y in ours - theirs:
            edge = mercantile.bounds(x, y, 14)
            assert min(abs(edge.west - box.east), abs(edge.north - box.south), abs(edge.south - box.north)) < 1e-9


@given(st.integers(0, 2**14 - 1), st.integers(0, 2**14 - 1))
def test_a_tile_covers_what_mercantile_says(x: int, y: int) -> None:
    theirs, ours = mercantile.bounds(x, y, 14), TileName(x, y, 14).box
    assert (ours.south, ours.west, ours.north, ours.east) == pytest.approx(
        (theirs.south, theirs.west, theirs.north, theirs.east), abs=1e-9
    )


@given(st.lists(st.tuples(st.floats(-85, 85), st.floats(-180, 180)), min_size=2, max_size=20))
def test_points_of_a_tile_stand_together_in_the_order(points: list[tuple[float, float]]) -> None:
    lat, lon = (pl.Series([point[axis] for point in points]) for axis in (0, 1))
    order = in_tile_order(lat, lon).to_list()
    tiles = [tiles_of(Box(y, x, y, x), 14)[0] for y, x in points]
    for i, one in enumerate(tiles):
        for k, other in enumerate(tiles):
            assert (order[i] == order[k]) == (one == other)


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=300, pano_width=1024)


def test_images_are_those_of_the_librarys_decoder(world: World) -> None:
    host = MapillaryTiles(world, Mapillary(world, ImageHost(world, 3600), Limits()))
    shapes, images = set(), 0
    for index in range(25):
        place = world.place(index)
        name = tiles_of(Box(place.lat, place.lon, place.lat, place.lon), 14)[0]
        data = host.tile(name.x, name.y)
        whole = decode(data, default_options={"y_coord_down": True})
        shapes |= {feature["geometry"]["type"] for feature in whole["sequence"]["features"]}
        theirs = {feature["properties"]["id"]: feature for feature in whole["image"]["features"]}
        ours = read_tile(data, name, LAYER)
        assert ours.ids.tolist() == list(theirs)
        images += len(ours)
        for k, image_id in enumerate(ours.ids.tolist()):
            said, true = theirs[image_id]["properties"], world.image(str(image_id))
            assert true is not None
            assert bool(ours.is_pano[k]) == said["is_pano"] == true.is_pano
            assert int(ours.captured_at_ms[k]) == said["captured_at"] == true.captured_at_ms
            # A unit is 2446 m / 4096 at the equator; its middle is at most half its diagonal away.
            assert distance_km(float(ours.lat[k]), float(ours.lon[k]), true.lat, true.lon) * 1000 < 0.43
    assert images > 100 and shapes >= {"LineString", "MultiLineString"}


def tile(properties: dict[str, object], point: tuple[int, int] = (5, 5), **layer: object) -> bytes:
    feature = {"geometry": {"type": "Point", "coordinates": point}, "properties": properties}
    return bytes(encode([{"name": "image", "features": [feature], **layer}], default_options={"y_coord_down": True}))


def test_what_a_tile_does_not_say_is_unknown() -> None:
    images = read_tile(tile({"id": 2**62 + 1}), NAME, LAYER)
    assert images.ids.tolist() == [2**62 + 1]  # not one digit lost
    assert images.captured_at_ms.tolist() == [UNKNOWN_TIME] and images.is_pano.tolist() == [-1]
    assert read_tile(tile({"id": "42", "is_pano": True}), NAME, LAYER).ids.tolist() == [42]


def test_empty_tiles_and_tiles_without_images_have_none() -> None:
    line = {"geometry": {"type": "LineString", "coordinates": [(1, 1), (9, 9)]}, "properties": {"id": "s"}}
    for data in (b"", bytes(encode([{"name": "sequence", "features": [line]}]))):
        assert len(read_tile(data, NAME, LAYER)) == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<html>no tile</html>", "not a vector tile"),
        (tile({"id": 7})[:-3], "not a vector tile"),
        (tile({"id": 1e15}), "without an id"),  # a float has lost digits
        (tile({"id": "x7"}), "without an id"),
        (tile({"name": "x"}), "without an id"),
        (tile({"id": -7}), "out of range"),
    ],
)
def test_bytes_that_are_no_tile_of_images_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(BadTile, match=said):
        read_tile(data, NAME, LAYER)


def test_an_image_drawn_as_a_line_is_where_it_begins() -> None:
    line = {"geometry": {"type": "LineString", "coordinates": [(1, 1), (9, 9)]}, "properties": {"id": 7}}
    images = read_tile(bytes(encode([{"name": "image", "features": [line]}])), NAME, LAYER)
    assert images.ids.tolist() == [7]


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 60))
def test_damaged_tiles_give_images_or_a_bad_tile_and_nothing_else(junk: bytes, at: int) -> None:
    whole = tile({"id": 7, "captured_at": 1_600_000_000_000, "is_pano": True})
    try:
        images = read_tile(whole[:at] + junk + whole[at:], NAME, LAYER)
    except BadTile:
        return
    assert len(images.ids) == len(images.lat) == len(images.is_pano)
    assert all(math.isfinite(value) for value in np.concatenate([images.lat, images.lon]))


def test_a_tile_with_absurdly_many_bytes_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.collect.tiles.MAX_TILE_BYTES", 20)
    with pytest.raises(BadTile, match="at most 20"):
        read_tile(tile({"id": 7}), NAME, LAYER)
    monkeypatch.setattr("tasks.collect.tiles.MAX_TILE_BYTES", 10_000)
    monkeypatch.setattr("tasks.collect.tiles.MAX_TILE_IMAGES", 0)
    with pytest.raises(BadTile, match="at most 0"):
        read_tile(tile({"id": 7}), NAME, LAYER)
