"""Stored pictures are 8-bit RGB or grey, in the colours that are assumed where no profile says otherwise."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from tasks.imaging.colour_profile import as_srgb
from tasks.imaging.decode import Encoded, chunk
from tasks.imaging.images import equirectangular
from tasks.imaging.metadata import cleaned

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def with_red_and_green_exchanged(profile: bytes) -> bytes:
    """The profile of a strange camera: what it calls red is green, and the other way round."""
    made = bytearray(profile)
    count = struct.unpack(">I", profile[128:132])[0]
    at = {profile[132 + 12 * k : 136 + 12 * k]: 132 + 12 * k for k in range(count)}
    red, green = at[b"rXYZ"] + 4, at[b"gXYZ"] + 4
    made[red : red + 8], made[green : green + 8] = profile[green : green + 8], profile[red : red + 8]
    return bytes(made)


STRANGE = with_red_and_green_exchanged(SRGB)


def panorama(profile: bytes | None, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    options = {"icc_profile": profile} if profile else {}
    Image.new("RGB", (1024, 512), (220, 40, 60)).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("profile", "colour"),
    [(None, (220, 40, 60)), (SRGB, (220, 40, 60)), (STRANGE, (40, 220, 60)), (b"x", (220, 40, 60))],
)
def test_a_panorama_keeps_the_colours_it_was_meant_to_have(profile: bytes | None, colour: tuple[int, int, int]) -> None:
    made = equirectangular(panorama(profile), 512, 256, min_pixels=1)
    assert "icc_profile" not in Image.open(io.BytesIO(made)).info
    assert np.abs(Encoded.open(made).pixels().astype(int) - colour).max() <= 4


def test_without_a_change_the_pixels_are_not_touched() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    for profile in (None, SRGB, b"", b"no profile", SRGB[:200]):
        assert as_srgb(pixels, profile) is pixels
    assert np.abs(as_srgb(pixels, STRANGE).astype(int) - pixels[..., [1, 0, 2]]).max() <= 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_photo_is_stored_in_the_colours_it_was_meant_to_have(kind: str) -> None:
    same, other = panorama(SRGB, kind), panorama(STRANGE, kind)
    stored = [cleaned(data)[0] for data in (same, other)]
    assert stored[0] == cleaned(panorama(None, kind))[0], "the coded pixels are the same bytes"
    for data, colour in zip(stored, [(220, 40, 60), (40, 220, 60)], strict=True):
        shown = Image.open(io.BytesIO(data))
        assert "icc_profile" not in shown.info and cleaned(data)[0] == data
        assert np.abs(np.array(shown).astype(int) - colour).max() <= 4


def grey_profile(gamma: float) -> bytes:
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
    white = b"XYZ " + bytes(4) + bytes.fromhex("0000f6d6000100000000d32d")
    table = struct.pack(">I4sII4sII", 2, b"kTRC", 156, 14, b"wtpt", 172, 20)
    header = bytearray(128)
    header[:4], header[8:12], header[12:24] = struct.pack(">I", 192), b"\x02\x10\0\0", b"mntrGRAYXYZ "
    header[36:40], header[68:80] = b"acsp", white[8:]
    return bytes(header) + table + curve + white


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_grey_profile_is_applied_to_grey_pictures_alone(kind: str) -> None:
    bright, out = grey_profile(1.0), io.BytesIO()
    Image.new("L", (40, 30), 60).save(out, kind, icc_profile=bright)
    shown = np.array(Image.open(io.BytesIO(cleaned(out.getvalue())[0])).convert("RGB"))
    assert np.abs(shown.astype(int) - 133).max() <= 2, "a linear level of 60 of 255 in sRGB"
    coloured = np.random.default_rng(1).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    assert as_srgb(coloured, bright) is coloured


def deep_png(colour: tuple[int, int, int], profile: bytes | None = None) -> bytes:
    """16 bits a channel, which Pillow cannot write."""
    row = b"\0" + struct.pack(">3H", *(level * 257 for level in colour)) * 40
    named = chunk(b"iCCP", b"icc\0\0" + zlib.compress(profile)) if profile else b""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 30, 16, 2, 0, 0, 0)) + named
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(row * 30)) + chunk(b"IEND", b"")


def print_profile() -> bytes:
    """A CMYK profile whose table shows every colour as the same light red, as no plain rule would."""
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    ramp = bytes(range(256))
    table += ramp * 4 + bytes([180, 170, 150]) * 16 + ramp * 3
    table += bytes(-len(table) % 4)
    white = b"XYZ " + bytes(4) + bytes.fromhex("0000f6d6000100000000d32d")
    text = b"text" + bytes(4) + b"none\0\0\0\0"
    tags = {b"A2B0": table, b"cprt": text, b"wtpt": white}
    at, entries, bodies = 128 + 4 + 12 * len(tags), b"", b""
    for name, body in tags.items():
        entries += struct.pack(">4sII", name, at + len(bodies), len(body))
        bodies += body
    header = bytearray(128)
    header[:4] = struct.pack(">I", at + len(bodies))
    header[8:12], header[12:24], header[36:40] = b"\x02\x10\0\0", b"prtrCMYKLab ", b"acsp"
    header[68:80] = bytes.fromhex("0000f6d6000100000000d32d")
    return bytes(header) + struct.pack(">I", len(tags)) + entries + bodies


@pytest.mark.parametrize(("profile", "colour"), [(None, (220, 40, 60)), (STRANGE, (40, 220, 60))])
def test_a_png_of_16_bits_is_stored_with_8(profile: bytes | None, colour: tuple[int, int, int]) -> None:
    stored, facts = cleaned(deep_png((220, 40, 60), profile))
    shown = Image.open(io.BytesIO(stored))
    assert (stored[24], shown.mode, shown.size, facts.extension) == (8, "RGB", (40, 30), "png")
    assert np.abs(np.array(shown).astype(int) - colour).max() <= 2
    assert "icc_profile" not in shown.info and cleaned(stored)[0] == stored
    grey = io.BytesIO()
    Image.fromarray(np.full((30, 40), 200 * 257, np.uint16)).save(grey, "PNG")
    assert (np.array(Image.open(io.BytesIO(cleaned(grey.getvalue())[0]))) == 200).all()


@pytest.mark.parametrize("managed", [False, True])
def test_a_cmyk_jpeg_is_stored_as_rgb_by_its_profile(managed: bool) -> None:
    ink, out = Image.new("CMYK", (40, 30), (20, 200, 180, 10)), io.BytesIO()
    ink.save(out, "JPEG", quality=95, **({"icc_profile": print_profile()} if managed else {}))
    stored, facts = cleaned(out.getvalue())
    shown = Image.open(io.BytesIO(stored))
    assert (shown.mode, shown.size, facts.extension) == ("RGB", (40, 30), "jpg")
    assert "icc_profile" not in shown.info and cleaned(stored)[0] == stored
    plain = np.array(ink.convert("RGB")).astype(int)
    away = np.abs(np.array(shown).astype(int) - plain).max()
    assert away > 20 if managed else away <= 4
    if managed:  # lightness 180 of 255, and redder than it is green
        red, green, _ = np.array(shown)[0, 0].tolist()
        assert red - 50 > green > 90
