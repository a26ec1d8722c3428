"""Modes of the world: sizes, crowds and grades that the quick default does not have."""

import io
import math
from collections import Counter

import numpy as np
from PIL import Image

from infra.offline.render import render_jpeg
from infra.offline.world import PANO_SIZES, Modes, World


def test_panoramas_of_every_size_are_painted_as_they_are_listed():
    world = World(seed=7, size=300, modes=Modes(mixed_sizes=True))
    firsts = [world.images(index)[0] for index in range(world.size)]
    sizes = {(record.width, record.height) for record in firsts if record.is_pano}
    assert sizes == set(PANO_SIZES)
    small = next(record for record in firsts if record.is_pano and record.width == 2048)
    odd = next(record for record in firsts if (record.width, record.height) == (4096, 2044))
    for record in (small, odd):
        assert Image.open(io.BytesIO(render_jpeg(world, record))).size == (record.width, record.height)


def test_a_dense_world_has_thousands_of_images_on_its_fullest_tile():
    world = World(seed=7, size=40_000, pano_width=1024, modes=Modes(dense=True))
    place = world.place(0)
    near = world.places_of_town(place.city.index)
    assert len(near) == 2_000 and len({world.place(index).street for index in near[:200]}) > 150
    side = 360 / 2**14  # of a tile at zoom 14, in degrees of longitude

    def tile(lat: float, lon: float) -> tuple[int, int]:
        up = math.degrees(math.asinh(math.tan(math.radians(lat))))
        return math.floor(lon / side), math.floor(up / side)

    crowd = [record for index in near for record in world.images(index)]
    assert len({record.image_id for record in crowd}) == len(crowd)
    assert Counter(tile(record.lat, record.lon) for record in crowd).most_common(1)[0][1] > 2_000  # 54 in the default


def test_a_graded_world_has_every_grade_and_the_default_only_the_ends():
    plain, graded = World(7, 200, 1024), World(7, 200, 1024, Modes(graded=True))
    ends = {(r.blur > 0, r.light < 1) for index in range(200) for r in plain.images(index) if r.condition == "clear"}
    assert ends == {(False, False)}
    dusk = np.array([1 - r.light for index in range(200) for r in graded.images(index) if r.condition == "clear"])
    assert 0.4 < np.mean(dusk < 0.1) < 0.9 and dusk.max() > 0.6 and len(np.unique(dusk)) > 100
