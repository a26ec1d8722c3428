"""Panoramas: columns keep their direction at every size, the seam stays closed, what is not whole is refused."""

import io
import math

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tasks.imaging.decode import Encoded
from tasks.imaging.images import BadImage, equirectangular, inspect
from tasks.imaging.panorama import bordered
from tasks.imaging.resample import low_pass, shrink


def waves(width: int, height: int, turns: int = 12) -> NDArray[np.uint8]:
    """Colours that follow from the direction alone and go on over the seam; red and green tell left from right."""
    lon = (np.arange(width) + 0.5) / width * 2 * np.pi
    lat = (np.arange(height) + 0.5) / height
    red = 127 + 100 * np.cos(turns * lon)
    green = 127 + 100 * np.sin(turns * lon)
    blue = np.repeat((40 + 160 * lat)[:, None], width, axis=1)
    return np.dstack([np.tile(red, (height, 1)), np.tile(green, (height, 1)), blue]).round().astype(np.uint8)


def encoded(pixels: NDArray[np.uint8], kind: str = "JPEG", mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    options = {"quality": 97, "subsampling": 0, **options} if kind == "JPEG" else options
    Image.fromarray(pixels).convert(mode).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    "size",
    [
        (1440, 720),
        (1600, 800),
        (1024, 512),
        (1025, 512),
        (1999, 1000),
        (800, 400),
        (640, 320),
        (4200, 2100),
        (520, 262),
    ],
)
def test_columns_keep_their_direction(size: tuple[int, int]) -> None:
    """Shrunk, enlarged or left alone: every column, the outermost too, shows what its direction shows."""
    data = equirectangular(encoded(waves(*size)), 1024, 512, min_pixels=1000)
    assert (inspect(data).width, inspect(data).height) == (1024, 512)
    error = np.abs(Encoded.open(data).pixels().astype(int) - waves(1024, 512))
    # Half a pixel off would be 3.7 levels on average; chroma is stored at half the size.
    assert error.mean() < 1.5
    assert error[:, :4].mean() < 2.5 and error[:, -4:].mean() < 2.5


@pytest.mark.parametrize("kind", ["PNG", "progressive", "grey", "CMYK", "turned"])
def test_odd_inputs_come_out_alike(kind: str) -> None:
    pixels = waves(1440, 720)
    if kind == "PNG":
        data = encoded(pixels, "PNG")
    elif kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 8  # stored a quarter turn clockwise
        data = encoded(np.ascontiguousarray(np.rot90(pixels, -1)), exif=exif)
    else:
        options = {"progressive": {"progressive": True}, "grey": {"mode": "L"}, "CMYK": {"mode": "CMYK"}}[kind]
        data = encoded(pixels, **options)
    expected = waves(1024, 512)
    if kind == "grey":
        expected = np.array(Image.fromarray(expected).convert("L").convert("RGB"))
    shown = Encoded.open(equirectangular(data, 1024, 512, min_pixels=1000)).pixels()
    assert np.abs(shown.astype(int) - expected).mean() < 2.0


def test_the_default_is_4096_by_2048_and_the_same_bytes_each_time() -> None:
    data = encoded(waves(2880, 1440), quality=80)
    made = equirectangular(data)
    assert (inspect(made).width, inspect(made).height) == (4096, 2048)
    threads = cv2.getNumThreads()
    for number in (1, 3):  # on as many cores as a worker has
        cv2.setNumThreads(number)
        assert equirectangular(data) == made
    cv2.setNumThreads(threads)
    assert Image.open(io.BytesIO(made)).info.keys() <= {"jfif", "jfif_version", "jfif_unit", "jfif_density", "dpi"}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 4}])
def test_truncated_never_becomes_grey_bars(share: float, options: dict[str, object]) -> None:
    data = encoded(waves(1440, 720), **options)
    with pytest.raises(BadImage) as caught:
        equirectangular(data[: int(len(data) * share)], 1024, 512, min_pixels=1000)
    assert caught.value.kind == "truncated"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 31), st.integers(0, 1000))
def test_turning_before_or_after_shrinking_is_the_same(steps: int, seed: int) -> None:
    """45 columns become 32, so turning by such steps and shrinking may be swapped: no column is at an edge."""
    pixels = np.random.default_rng(seed).integers(0, 256, (180, 45 * 32, 3), dtype=np.uint8)
    turned = np.roll(pixels, 45 * steps, axis=1)
    one = np.roll(shrink(pixels.copy(), (1024, 128), around=True), 32 * steps, axis=1)
    other = shrink(turned, (1024, 128), around=True)
    assert np.abs(one.astype(int) - other).max() <= 1


def test_beyond_the_pole_lies_the_other_side() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (6, 12, 3), dtype=np.uint8)
    wide = bordered(pixels, 2)
    assert wide.shape == (10, 16, 3)
    assert (wide[2:-2, 2:-2] == pixels).all()
    assert (wide[1, 2:-2] == np.roll(pixels[0], 6, axis=0)).all()
    assert (wide[0, 2:-2] == np.roll(pixels[1], 6, axis=0)).all()
    assert (wide[-1, 2:-2] == np.roll(pixels[-2], 6, axis=0)).all()
    assert (wide[:, :2] == wide[:, 12:14]).all() and (wide[:, -2:] == wide[:, 2:4]).all()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.05, 1), st.floats(0.05, 1), st.booleans())
@example(1, 2, 1.0, 0.5, True)
@example(2, 1, 0.5, 1.0, True)
@example(300, 300, 0.05, 1.0, True)
def test_any_size_can_be_shrunk(width: int, height: int, x: float, y: float, around: bool) -> None:
    size = max(1, round(width * x)), max(1, round(height * y))
    flat = np.full((height, width, 3), (200, 100, 7), np.uint8)
    small = shrink(flat, size, around)
    assert small.shape == (size[1], size[0], 3)
    assert np.abs(small.astype(int) - (200, 100, 7)).max() <= 1


@pytest.mark.parametrize("scale", [1.1, 1.25, 1.406, 1.5, 2.0, 2.4, 2.9, 3.9])
def test_the_filter_passes_light_and_stops_what_is_too_fine(scale: float) -> None:
    taps = low_pass(scale)
    assert taps.sum() == pytest.approx(1, abs=1e-6)
    assert (taps == taps[::-1]).all()
    # Stripes finer than the small picture can show: what is left of them is false, and far less than without filter.
    columns = np.arange(1200) * 2 * np.pi
    for stripe in (0.55 / scale, 0.65 / scale, 0.75 / scale):
        pixels = np.tile((127 + 100 * np.cos(columns * stripe))[None, :, None], (40, 1, 3)).astype(np.uint8)
        size = int(1200 / scale), int(40 / scale)
        false = shrink(pixels.copy(), size)[:, 20:-20].std()
        unfiltered = cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC)[:, 20:-20].std()
        assert false <= unfiltered
        if scale > 1.4 and stripe > 0.6 / scale:
            assert false < 0.8 * unfiltered


def test_shrinking_is_near_lanczos() -> None:
    """Nearer to Pillow's Lanczos than OpenCV's own averages are, at the ratios of panoramas and of model views."""
    rng = np.random.default_rng(3)
    fy, fx = np.fft.fftfreq(720)[:, None], np.fft.fftfreq(1440)[None]
    amplitude = 1 / np.maximum(np.hypot(fy, fx), 1 / 1440)  # falls off as in photographs
    layers = [np.fft.ifft2(np.fft.fft2(rng.standard_normal((720, 1440))) * amplitude).real for _ in range(3)]
    picture = np.dstack([127 + 40 * layer / layer.std() for layer in layers]).clip(0, 255).astype(np.uint8)
    for size in ((1024, 512), (700, 350)):
        lanczos = np.array(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS)).astype(float)
        ours = math.sqrt(((shrink(picture.copy(), size) - lanczos) ** 2).mean())
        area = math.sqrt(((cv2.resize(picture, size, interpolation=cv2.INTER_AREA) - lanczos) ** 2).mean())
        assert ours < area, size
