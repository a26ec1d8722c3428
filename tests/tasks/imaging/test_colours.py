"""Panoramas lose their colour profile, so their colours are brought to what is assumed without one."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from tasks.imaging.colour_profile import as_srgb, plain_profile
from tasks.imaging.decode import Encoded
from tasks.imaging.images import equirectangular

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
    for profile in (None, SRGB, b"", b"no profile", SRGB[:200], plain_profile(SRGB)):
        assert as_srgb(pixels, profile) is pixels
    assert np.abs(as_srgb(pixels, STRANGE).astype(int) - pixels[..., [1, 0, 2]]).max() <= 2
