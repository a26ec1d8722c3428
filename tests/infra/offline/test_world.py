"""The world is the same whoever asks, in whatever order, in whatever process."""

import hashlib
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.offline import ids
from infra.offline.country_map import country_map
from infra.offline.facts import countries
from infra.offline.render import render_jpeg
from infra.offline.render.signs import DIRECTION_COLOURS
from infra.offline.render.things import STYLES
from infra.offline.words import WORDS
from infra.offline.world import World

_FIFTY = World(7, 50, 1024)


@given(st.integers(0, 2**31), st.integers(0, 10**7), st.integers(0, ids.SLOTS - 1))
def test_image_ids_are_read_back(seed, place, slot):
    text = ids.image_id(seed, place, slot)
    assert text.isdigit() and len(text) == 18 and int(text) > 2**53
    assert ids.read_image_id(seed, text) == (place, slot)


@given(st.integers(0, 2**31), st.integers(0, 10**7))
def test_sequence_ids_have_the_length_of_real_ones(seed, place):
    assert len(ids.sequence_id(seed, place)) == 22


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_strange_ids_are_nobody(text):
    assert _FIFTY.image(text) is None


def test_two_worlds_are_equal_in_any_order():
    one, other = World(3, 300, 1024), World(3, 300, 1024)
    forward = {i: (one.place(i), one.images(i)) for i in range(60)}
    backward = {i: (other.place(i), other.images(i)) for i in reversed(range(60))}
    assert forward == backward


def test_a_larger_world_contains_the_smaller():
    small, large = World(3, 100, 1024), World(3, 1000, 1024)
    assert [small.place(i) for i in range(100)] == [large.place(i) for i in range(100)]


def test_another_seed_is_another_world():
    assert World(1, 50).place(0) != World(2, 50).place(0)


@pytest.mark.whole
def test_another_process_sees_the_same(small_world):
    code = (
        "from infra.offline.world import World; from infra.offline.render import render_jpeg; import hashlib\n"
        "w = World(7, 600, 1024); r = w.images(5)[0]\n"
        "print(r.image_id, w.place(5).shops, hashlib.sha256(render_jpeg(w, r)).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    record = small_world.images(5)[0]
    here = hashlib.sha256(render_jpeg(small_world, record)).hexdigest()
    assert there == f"{record.image_id} {small_world.place(5).shops} {here}\n"


def test_places_lie_by_their_city_and_images_follow_each_other(small_world):
    for index in range(200):
        place, images = small_world.place(index), small_world.images(index)
        north_km = (place.lat - place.city.lat) * 111.195
        east_km = (place.lon - place.city.lon) * 111.195 * math.cos(math.radians(place.lat))
        assert math.hypot(north_km, east_km) < 8.0
        assert 3 <= len(images) <= 8
        assert len({image.image_id for image in images}) == len(images)
        for before, after in itertools.pairwise(images):
            step = (
                math.hypot(after.lat - before.lat, (after.lon - before.lon) * math.cos(math.radians(place.lat)))
                * 111_195
            )
            assert step < 20.0
            assert after.captured_at_ms > before.captured_at_ms


def test_conditions_and_kinds_all_occur(small_world):
    images = [image for index in range(300) for image in small_world.images(index)]
    share = {c: sum(i.condition == c for i in images) / len(images) for c in {i.condition for i in images}}
    assert share.keys() == {"clear", "near_duplicate", "exact_duplicate", "blurred", "dark", "no_clue", "landmark"}
    assert share["clear"] > 0.6
    assert 0.4 < sum(i.is_pano for i in images) / len(images) < 0.9


def test_signs_are_in_a_language_of_the_country(small_world):
    for index in range(300):
        place = small_world.place(index)
        assert place.language in (*place.facts.languages, "fr", "it", "ca")
        assert place.shops


def test_facts_hold_what_everybody_knows():
    facts = countries()
    assert {iso2: facts[iso2].drives_on for iso2 in ("GB", "JP", "AU", "FR", "US", "BR")} == {
        "GB": "left", "JP": "left", "AU": "left", "FR": "right", "US": "right", "BR": "right",
    }  # fmt: skip
    assert facts["FR"].phone_prefix == "+33" and facts["BB"].phone_prefix == "+1-246"
    assert facts["US"].centre_line == "yellow" and facts["DE"].centre_line == "white"
    assert all(language in WORDS for fact in facts.values() for language in fact.languages)
    assert {fact.building_style for fact in facts.values()} == set(STYLES)
    assert {fact.direction_sign for fact in facts.values()} == set(DIRECTION_COLOURS)


@pytest.mark.parametrize("options", [{"size": 0}, {"pano_width": 100}, {"pano_width": 1000}, {"pano_width": 8192}])
def test_impossible_worlds_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        World(**options)


def test_the_nearest_towns_are_the_nearest(small_world):
    cities, chance = small_world.gazetteer, np.random.default_rng(2)
    phis = np.radians(cities.lat)
    for _ in range(25):
        lat, lon, count = float(chance.uniform(-89, 89)), float(chance.uniform(-180, 180)), int(chance.integers(1, 9))
        phi = np.radians(lat)
        cosine = np.sin(phi) * np.sin(phis) + np.cos(phi) * np.cos(phis) * np.cos(np.radians(cities.lon - lon))
        away_km = 6371.0 * np.arccos(np.clip(cosine, -1, 1))
        found = [km for _, km in cities.nearest(lat, lon, count)]
        assert found == pytest.approx(np.sort(np.partition(away_km, count)[:count]).tolist(), abs=0.05)


def test_nearly_all_places_lie_in_their_country(small_world):
    places = [small_world.place(i) for i in range(small_world.size)]
    assert sum(country_map().at(p.lat, p.lon) == p.country for p in places) > 0.96 * len(places)
