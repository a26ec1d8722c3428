"""Figures of pixels and marks of near-duplicates."""

import itertools

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.imaging.decode import Encoded, jpeg
from tasks.imaging.hashes import hash_numbers, marks_of, mirrored_embedding
from tasks.imaging.near_hashes import near_pairs
from tasks.imaging.quality import measure


def street(seed: int = 0, size: tuple[int, int] = (800, 600)) -> np.ndarray:
    """Sky above, road below, house fronts with windows between."""
    random = np.random.default_rng(seed)
    picture = np.full((size[1], size[0], 3), (150, 190, 230), np.uint8)
    picture[size[1] * 7 // 10 :] = (95, 95, 98)
    for left in range(0, size[0], 80):
        top = int(random.integers(size[1] // 4, size[1] // 2))
        cv2.rectangle(picture, (left, top), (left + 76, size[1] * 7 // 10), random.integers(40, 220, 3).tolist(), -1)
        for x, y in itertools.product(range(left + 8, left + 70, 20), range(top + 10, size[1] * 7 // 10 - 20, 26)):
            cv2.rectangle(picture, (x, y), (x + 10, y + 14), random.integers(0, 255, 3).tolist(), -1)
    return picture


def figures(pixels: np.ndarray, quality: int = 90) -> object:
    return measure(Encoded.open(jpeg(pixels, quality)))[0]


def test_blur_light_compression_sky_and_road_are_told_apart() -> None:
    sharp = measure(Encoded.open(jpeg(street(), 90)))[0]
    blurred = measure(Encoded.open(jpeg(cv2.GaussianBlur(street(), (0, 0), 7), 90)))[0]
    assert sharp.blur < 0.4 < 0.6 < blurred.blur
    dark = measure(Encoded.open(jpeg((street() * 0.01).astype(np.uint8), 90)))[0]
    assert dark.brightness < 0.02 and dark.dark_share > 0.9
    crushed = measure(Encoded.open(jpeg(street(), 3)))[0]
    assert crushed.blockiness > 2 * sharp.blockiness and crushed.bits_per_pixel < sharp.bits_per_pixel
    assert sharp.sky_share == pytest.approx(0.38, abs=0.1) and sharp.road_share == pytest.approx(0.3, abs=0.05)
    assert (sharp.width, sharp.height) == (800, 600)


def test_near_duplicates_are_near_and_others_are_not() -> None:
    first, other = street(1), street(2)
    smaller = cv2.resize(first[4:-4, 4:-4], None, fx=0.7, fy=0.7, interpolation=cv2.INTER_AREA)
    marks = [marks_of(measure(Encoded.open(jpeg(one, 60)))[1]) for one in (first, smaller, other, first[:, ::-1])]
    bits = np.bitwise_count(hash_numbers([one.phash for one in marks]) ^ hash_numbers([marks[0].phash])[0])
    vectors = np.array([one.embedding for one in marks], np.float32)
    assert bits[1] <= 6 and vectors[0] @ vectors[1] > 0.98
    assert bits[2] > 6 or vectors[0] @ vectors[2] < 0.98
    assert (hash_numbers([marks[3].phash]) ^ hash_numbers([marks[0].phash_mirrored]))[0].bit_count() <= 2
    assert vectors[3] @ mirrored_embedding(vectors[:1])[0] > 0.98
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)


def test_a_picture_of_one_colour_has_figures_too() -> None:
    flat = np.full((300, 400, 3), 255, np.uint8)
    found, pixels = measure(Encoded.open(jpeg(flat, 90)))
    assert found.blur == 1 and found.bright_share == 1 and len(marks_of(pixels).embedding) == 176


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(0, 8), st.integers(0, 2**32))
def test_near_hashes_are_those_of_the_brute_force(base: list[int], distance: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    near = [value ^ int(sum(1 << int(bit) for bit in set(random.integers(0, 64, 6).tolist()))) for value in base[:20]]
    values = base + near + base[:5]
    one, two = near_pairs(np.array(values, dtype=np.uint64), distance)
    wanted = [(i, j) for i, j in itertools.combinations(range(len(values)), 2)
              if (values[i] ^ values[j]).bit_count() <= distance]  # fmt: skip
    assert list(zip(one.tolist(), two.tolist(), strict=True)) == wanted


def test_a_distance_that_blocks_cannot_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 12 bits"):
        near_pairs(np.zeros(2, np.uint64), 13)
