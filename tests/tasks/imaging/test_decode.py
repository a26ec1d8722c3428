"""Decoding: the same pixels as Pillow for every kind of picture, and no damaged one passes."""

import io
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tasks.imaging.decode import BadImage, Encoded, inspect


def picture(width: int = 200, height: int = 120, seed: int = 0) -> Image.Image:
    small = Image.frombytes("RGB", (20, 12), random.Random(seed).randbytes(20 * 12 * 3))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    return np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


JPEGS = {
    "420": {},
    "422": {"subsampling": 1},
    "444": {"subsampling": 0},
    "progressive": {"progressive": True},
    "restart": {"restart_marker_rows": 1},
    "quality 100": {"quality": 100},
}


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_the_pixels_are_pillows(options: dict[str, object], mode: str) -> None:
    data = encoded(picture().convert(mode), **options)
    assert (Encoded.open(data).pixels() == by_pillow(data)).all()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_the_pixels_of_png_are_pillows(mode: str) -> None:
    data = encoded(picture().convert(mode), "PNG")
    assert (Encoded.open(data).pixels() == by_pillow(data)).all()


def test_sixteen_bits_are_scaled_not_cut_off() -> None:
    ramp = np.linspace(0, 65535, 200).astype(np.uint16)[None].repeat(50, axis=0)
    shown = Encoded.open(encoded(Image.fromarray(ramp), "PNG")).pixels()
    assert (shown == (ramp >> 8)[..., None]).all()


def test_a_phones_second_picture_is_not_looked_at() -> None:
    data = encoded(picture(), "MPO", save_all=True, append_images=[picture(seed=1)])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert inspect(data).format == "JPEG"
    assert (Encoded.open(data).pixels() == by_pillow(data)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_every_orientation_is_turned_upright(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), kind, exif=exif)
    opened = Encoded.open(data)
    assert (opened.pixels() == by_pillow(data)).all()
    assert opened.pixels().shape[:2] == (opened.facts.height, opened.facts.width)


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_that_means_nothing_is_none(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), exif=exif)
    assert (inspect(data).width, inspect(data).height) == (200, 120)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_hole_in_the_middle_is_refused(options: dict[str, object], mode: str) -> None:
    """Bytes lost on the way, the end still there: Pillow shows grey or shifted parts, and says nothing."""
    whole = encoded(picture(400, 300).convert(mode), quality=95, **options)
    holed = whole[: len(whole) // 2] + whole[len(whole) // 2 + len(whole) // 10 :]
    Image.open(io.BytesIO(holed)).load()
    for use in (inspect, lambda data: Encoded.open(data).pixels()):
        if mode == "CMYK" and use is not inspect:
            continue  # decoded by Pillow; whatever is stored was inspected before
        with pytest.raises(BadImage) as caught:
            use(holed)
        assert caught.value.kind == "truncated"


@pytest.mark.parametrize("cut", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_the_end_may_not_be_missing(cut: int, options: dict[str, object]) -> None:
    data = encoded(picture(), **options)[:-cut]
    with pytest.raises(BadImage) as caught:
        inspect(data)
    assert caught.value.kind == "truncated"


def test_bytes_before_the_end_that_mean_nothing_are_no_damage() -> None:
    data = encoded(picture())
    padded = data[:-2] + b"\0" * 100 + data[-2:]
    assert inspect(padded).width == 200
    assert (Encoded.open(padded).pixels() == Encoded.open(data).pixels()).all()


@pytest.mark.parametrize(("least", "size"), [((100, 60), (100, 60)), ((101, 60), (200, 120)), ((20, 12), (25, 15))])
def test_smaller_decoding_keeps_the_least_size(least: tuple[int, int], size: tuple[int, int]) -> None:
    data = encoded(picture())
    assert Encoded.open(data).pixels(least).shape == (size[1], size[0], 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Encoded.open(encoded(picture(), exif=exif)).pixels((least[1], least[0]))
    assert turned.shape == (size[0], size[1], 3)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about broken EXIF
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["JPEG", "PNG"]), st.booleans())
def test_any_changed_byte_gives_a_picture_or_a_reason(at: int, value: int, kind: str, with_exif: bool) -> None:
    exif = Image.Exif()
    if with_exif:
        exif[0x0112] = 6
        exif.get_ifd(0x8825)[2] = (1.0, 2.0, 3.0)
    data = bytearray(encoded(picture(64, 48), kind, exif=exif))
    data[at % len(data)] = value
    try:
        facts = inspect(bytes(data))
        pixels = Encoded.open(bytes(data)).pixels()
    except BadImage as error:
        assert error.kind in str(error)
    else:
        assert pixels.shape == (facts.height, facts.width, 3)


def test_lies_about_the_size_are_refused() -> None:
    data = bytearray(encoded(picture()))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 40_000, 40_000)
    with pytest.raises(BadImage) as caught:
        inspect(bytes(data))
    assert caught.value.kind == "too_large"
