"""Colours: the baseline's offset, balance between scenes, and the fixed stretch to 8 bits."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tasks.services.sentinel.tone import from_bands, from_visual, gains, is_subtracted_twice, jpeg, scaled, shown

RNG = np.random.default_rng(3)


def test_the_offset_is_taken_off_and_no_data_stays() -> None:
    stored = np.array([[0, 1, 999, 1000, 1001, 1500, 65_535]], dtype=np.uint16)
    with_offset = from_bands([stored] * 3, 1000)[0, :, 0].tolist()
    assert with_offset == [0, 1, 1, 1, 1, 500, 64_535]  # what lies below the offset is dark ground, not a hole
    assert from_bands([stored] * 3, 0)[0, :, 0].tolist() == [0, 1, 999, 1000, 1001, 1500, 65_535]


def test_pixels_tell_that_the_offset_is_gone_already() -> None:
    ground = RNG.integers(200, 2500, (100, 100)).astype(np.uint16)  # reflectance of fields and water
    ground[:30] = 0  # no data
    sea = np.clip(RNG.normal(1020, 40, (100, 100)), 1, None).astype(np.uint16)  # dark, with the offset still in it
    assert is_subtracted_twice([ground] * 3, 1000) and not is_subtracted_twice([ground] * 3, 0)
    assert not is_subtracted_twice([np.where(ground, ground + 1000, 0).astype(np.uint16)] * 3, 1000)
    assert not is_subtracted_twice([sea] * 3, 1000)
    assert not is_subtracted_twice([np.zeros((4, 4), np.uint16)] * 3, 1000)


def test_a_pixel_that_lacks_a_colour_is_none() -> None:
    whole, hole = np.full((2, 2), 1500, np.uint16), np.array([[1500, 0], [1500, 1500]], np.uint16)
    found = from_bands([whole, hole, whole], 1000)
    assert (found[0, 1] == 0).all() and (found[0, 0] == 500).all()


def test_the_provider_s_picture_is_linear() -> None:
    picture = np.array([[[0, 0, 0], [255, 255, 255], [0, 51, 102]]], dtype=np.uint8)
    found = from_visual(picture)
    assert found[0, 0].tolist() == [0, 0, 0]
    assert found[0, 1].tolist() == [3558, 3558, 3558]
    assert found[0, 2].tolist() == [14, 712, 1423]  # a dark colour beside others is no hole


@given(st.floats(0.75, 1.3), st.floats(0.75, 1.3), st.floats(0.75, 1.3))
def test_scenes_that_differ_by_a_factor_are_brought_together(red: float, green: float, blue: float) -> None:
    truth = RNG.integers(400, 2500, (120, 120, 3)).astype(float)
    factors = np.array([red, green, blue])
    one, other = truth.astype(np.uint16), np.rint(truth * factors).astype(np.uint16)
    one[:, 80:], other[:, :40] = 0, 0
    clear = [one[..., 0] > 0, other[..., 0] > 0]
    found = gains([one, other], clear, 1.5)
    assert found[0].tolist() == [1, 1, 1]
    assert found[1] == pytest.approx(1 / factors, rel=0.02)
    both = (slice(None), slice(40, 80))
    balanced = scaled(other, found[1])[both].astype(float).mean(axis=(0, 1))
    assert balanced == pytest.approx(one[both].astype(float).mean(axis=(0, 1)), rel=0.02)


def test_a_chain_of_scenes_is_balanced_through_its_middle() -> None:
    truth = RNG.integers(400, 2500, (90, 180, 3)).astype(float)
    layers, clear = [], []
    for factor, (start, end) in zip((1.0, 1.2, 0.85), ((0, 80), (60, 140), (120, 180)), strict=True):
        layer = np.zeros((90, 180, 3), np.uint16)
        layer[:, start:end] = np.rint(truth[:, start:end] * factor)
        layers.append(layer)
        clear.append(layer[..., 0] > 0)
    found = gains(layers, clear, 1.5)
    assert found[:, 0] == pytest.approx([1, 1 / 1.2, 1 / 0.85], rel=0.03)


def test_gains_have_a_limit_and_need_an_overlap() -> None:
    dark, light = np.full((60, 60, 3), 300, np.uint16), np.full((60, 60, 3), 3000, np.uint16)
    everywhere = np.ones((60, 60), dtype=bool)
    assert gains([dark, light], [everywhere, everywhere], 1.5)[1] == pytest.approx([1 / 1.5] * 3)
    assert (gains([dark, light], [everywhere, ~everywhere], 1.5) == 1).all()
    assert (gains([dark], [everywhere], 1.5) == 1).all()
    assert scaled(dark, np.array([1.1, 1.0, 0.9]))[0, 0].tolist() == [330, 300, 270]


def test_the_stretch_is_the_documented_formula() -> None:
    values = np.array([[[0, 1, 750], [1500, 3000, 9000]]], dtype=np.uint16)
    linear = shown(values, 0.3, 1.0)
    assert linear.tolist() == [[[0, 1, 64], [128, 255, 255]]]
    lighter = shown(values, 0.3, 2.0)
    assert lighter[0, 0].tolist() == [0, 5, round(255 * 0.25**0.5)]
    assert lighter[0, 1].tolist() == [round(255 * 0.5**0.5), 255, 255]


@given(st.floats(0.05, 1.0), st.floats(1.0, 3.0))
def test_lighter_ground_is_never_shown_darker(white: float, gamma: float) -> None:
    ramp = np.arange(0, 12_000, 7, dtype=np.uint16).reshape(1, -1, 1).repeat(3, axis=2)
    found = shown(ramp, white, gamma)[0, :, 0].astype(int)
    assert (np.diff(found) >= 0).all() and found[0] == 0 and found[1:].min() >= 1


def test_the_jpeg_has_the_size_the_colours_and_nothing_else() -> None:
    pixels = np.zeros((90, 90, 3), np.uint8)
    pixels[:, :45] = (200, 40, 40)
    data = jpeg(pixels, 95)
    picture = Image.open(io.BytesIO(data))
    assert picture.size == (90, 90) and not picture.getexif()
    assert np.abs(np.asarray(picture)[45, 20].astype(int) - (200, 40, 40)).max() < 6
    assert data == jpeg(pixels, 95)
