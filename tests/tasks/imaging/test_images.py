"""Pictures: what is refused, what budgets hold, where a box on the view lands on the original."""

import base64
import io
import math
import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tasks.imaging.images import (
    BadImage,
    RecentPictures,
    box_on_original,
    equirectangular,
    inspect,
    model_view,
    region_view,
    thumbnail,
    to_data_uri,
    view_scale,
)
from tasks.imaging.metadata import cleaned


def strip_exif(data: bytes) -> bytes:
    return cleaned(data)[0]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise blown up from a small grid: compresses, but every part differs from every other."""
    rng = random.Random(seed)
    small = Image.frombytes("RGB", (16, 8), rng.randbytes(16 * 8 * 3))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def oriented(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "SecretCamera"
    exif.get_ifd(0x8825)[1] = "N"
    return encoded(image, exif=exif, comment=b"SecretComment", quality=95)


def test_facts_of_sound_pictures() -> None:
    facts = inspect(encoded(picture(64, 48)))
    assert (facts.width, facts.height, facts.format, facts.extension) == (64, 48, "JPEG", "jpg")
    facts = inspect(encoded(picture(64, 48), "PNG"))
    assert (facts.format, facts.extension) == ("PNG", "png")


def test_facts_are_of_the_upright_picture() -> None:
    facts = inspect(oriented(picture(64, 48), 6))
    assert (facts.width, facts.height) == (48, 64)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_truncated_is_refused(kind: str, share: float) -> None:
    data = encoded(picture(400, 300), kind)
    with pytest.raises(BadImage) as caught:
        inspect(data[: int(len(data) * share)])
    assert caught.value.kind in ("truncated", "not_an_image")


@pytest.mark.parametrize("data", [b"", b"\xff", b"<html>not found</html>", b"\xff\xd8\xff", bytes(1000), b"GIF89a"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        inspect(data)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    for side in (15_000, 60_000):  # above our limit; above Pillow's own
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        bomb = (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", zlib.compress(bytes(9)))
            + chunk(b"IEND", b"")
        )
        with pytest.raises(BadImage) as caught:
            inspect(bomb)
        assert caught.value.kind == "too_large"


def test_animated_and_unsupported_are_refused() -> None:
    frames = [picture(20, 20, seed) for seed in range(3)]
    for kind in ("GIF", "PNG", "WEBP"):
        animated = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        with pytest.raises(BadImage) as caught:
            inspect(animated)
        assert caught.value.kind == "animated", kind
    with pytest.raises(BadImage) as caught:
        inspect(encoded(frames[0], "GIF"))
    assert caught.value.kind == "unsupported_format"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_flipped_bytes_never_crash_otherwise(noise: bytes, at: int) -> None:
    data = bytearray(encoded(picture(32, 32)))
    data[at : at + len(noise)] = noise
    try:
        inspect(bytes(data))
    except BadImage as error:
        assert error.kind in str(error)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_the_view_keeps_its_budget(width: int, height: int) -> None:
    scale = view_scale(width, height)
    pixels = (width * scale) * (height * scale)
    assert pixels <= 2_000_000 * (1 + 1e-9)
    assert pixels >= 40_000 * (1 - 1e-9)
    if 40_000 <= width * height <= 2_000_000:
        assert scale == 1.0


@pytest.mark.parametrize("size", [(2400, 1200), (3000, 1000), (120, 80), (640, 480)])
def test_model_view_sizes_and_determinism(size: tuple[int, int]) -> None:
    data = encoded(picture(*size))
    view, scale = model_view(data)
    facts = inspect(view)
    assert 40_000 <= facts.width * facts.height <= 2_000_000
    assert abs(facts.width - size[0] * scale) <= 1
    assert abs(facts.height - size[1] * scale) <= 1
    assert model_view(data) == (view, scale)


def test_model_view_is_upright_and_anonymous() -> None:
    image = Image.new("RGB", (400, 300), "blue")
    image.paste("red", (0, 0, 400, 60))  # red on top as stored; orientation 6 turns it to the right
    view, _ = model_view(oriented(image, 6))
    assert b"SecretCamera" not in view
    assert b"SecretComment" not in view
    assert not Image.open(io.BytesIO(view)).getexif()
    shown = Image.open(io.BytesIO(view))
    assert shown.size == (300, 400)
    red, _, blue = shown.getpixel((290, 200))
    assert red > 200 > blue


def test_transparency_and_other_modes_become_rgb() -> None:
    clear = Image.new("RGBA", (300, 300), (0, 0, 0, 0))
    view, _ = model_view(encoded(clear, "PNG"))
    assert Image.open(io.BytesIO(view)).getpixel((5, 5)) == (255, 255, 255)
    for mode in ("L", "CMYK"):
        assert inspect(model_view(encoded(picture(300, 300).convert(mode)))[0]).format == "JPEG"
    assert inspect(model_view(encoded(picture(300, 300).convert("P"), "PNG"))[0]).width == 300


box_edges = st.floats(0, 1, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 9000), box_edges, box_edges, box_edges, box_edges)
def test_a_box_maps_back_onto_the_pixels_it_covers(
    width: int, height: int, a: float, b: float, c: float, d: float
) -> None:
    """For any box on any view: inside the original, covering the mapped box, at most a pixel larger on each side."""
    scale = view_scale(width, height)
    x1, x2 = sorted((a * width, c * width))
    y1, y2 = sorted((b * height, d * height))
    if x1 > width - 1e-6 or y1 > height - 1e-6 or x2 < 1e-6 or y2 < 1e-6:  # outside, or a rounding away from it
        return
    left, top, right, bottom = box_on_original((x1 * scale, y1 * scale, x2 * scale, y2 * scale), scale, width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert left <= x1 + 1e-5 and right >= x2 - 1e-5
    assert x1 - left <= 1 + 1e-5 and right - x2 <= 1 + 1e-5
    assert top <= y1 + 1e-5 and bottom >= y2 - 1e-5
    assert y1 - top <= 1 + 1e-5 and bottom - y2 <= 1 + 1e-5
    swapped = (x2 * scale, y2 * scale, x1 * scale, y1 * scale)
    assert box_on_original(swapped, scale, width, height) == (left, top, right, bottom)


@pytest.mark.parametrize("box", [(-10, -10, 0, 0), (5000, 0, 6000, 10), (0, 0, math.nan, 5), (0, 0, math.inf, 5)])
def test_a_box_that_means_nothing_is_refused(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="box"):
        box_on_original(box, 1.0, 100, 100)


def test_crop_comes_from_the_original_at_full_resolution() -> None:
    image = Image.new("RGB", (4000, 2000), "black")
    image.paste("white", (3000, 1000, 3200, 1100))
    data = encoded(image, quality=95)
    _, scale = model_view(data)
    cut = region_view(data, (3000 * scale, 1000 * scale, 3200 * scale, 1100 * scale), scale, min_pixels=1)
    facts = inspect(cut)
    assert (facts.width, facts.height) == (200, 100)
    assert Image.open(io.BytesIO(cut)).convert("L").getextrema()[0] > 200  # nothing but the white patch


def test_crop_is_clamped() -> None:
    data = encoded(picture(100, 80))
    facts = inspect(region_view(data, (-50, -50, 1e9, 1e9), 1.0, 10**9, 1))
    assert (facts.width, facts.height) == (100, 80)


def test_regions_are_the_same_whether_or_not_their_picture_was_just_decoded() -> None:
    one, other = encoded(picture(300, 200)), encoded(picture(200, 300))
    boxes = [(0, 0, 300, 200), (10, 20, 190, 180), (10, 20, 190, 180), (0, 0, 300, 200)]
    views = []
    for is_kept in (True, False):
        kept = RecentPictures()
        for box in boxes:
            recent = kept if is_kept else RecentPictures()
            views.append([region_view(data, box, 1.0, 5_000, 1, recent) for data in (one, other)])
    assert views[:4] == views[4:]
    assert views[0][0] != views[0][1]


def test_equirectangular_is_exact_or_refused() -> None:
    facts = inspect(equirectangular(encoded(picture(1600, 800)), 2048, 1024))
    assert (facts.width, facts.height) == (2048, 1024)
    with pytest.raises(BadImage) as caught:
        equirectangular(encoded(picture(1000, 500)))
    assert caught.value.kind == "too_small"
    with pytest.raises(BadImage) as caught:
        equirectangular(encoded(picture(1600, 1200)))
    assert caught.value.kind == "not_equirectangular"


def test_strip_exif_leaves_pixels_and_nothing_else() -> None:
    image = picture(200, 100)
    for progressive in (False, True):
        exif = Image.Exif()
        exif[0x010F] = "SecretCamera"
        data = encoded(image, exif=exif, comment=b"SecretComment", progressive=progressive)
        data += b"\xff\xd8 a second picture"
        stripped = strip_exif(data)
        assert b"Secret" not in stripped and b"second" not in stripped
        assert Image.open(io.BytesIO(stripped)).tobytes() == Image.open(io.BytesIO(data)).tobytes()
        assert strip_exif(stripped) == stripped
    turned = strip_exif(oriented(image, 3))
    assert b"Secret" not in turned
    assert inspect(turned).width == 200


def test_strip_exif_of_png() -> None:
    from PIL.PngImagePlugin import PngInfo

    notes = PngInfo()
    notes.add_text("Author", "SecretName")
    data = encoded(picture(50, 40), "PNG", pnginfo=notes)
    stripped = strip_exif(data)
    assert b"Secret" not in stripped
    assert Image.open(io.BytesIO(stripped)).tobytes() == Image.open(io.BytesIO(data)).tobytes()


def test_thumbnail_and_data_uri() -> None:
    small = thumbnail(encoded(picture(1600, 800)), 200)
    facts = inspect(small)
    assert (facts.width, facts.height) == (200, 100)
    uri = to_data_uri(small)
    assert base64.b64decode(uri.removeprefix("data:image/jpeg;base64,")) == small
