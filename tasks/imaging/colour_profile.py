"""ICC colour profiles: applied by LittleCMS and never stored, for their words and tables could hold anything."""

import io
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

_MODES = {b"RGB ": "RGB", b"GRAY": "L"}  # by the profile's colour space
_NO_DIFFERENCE = 2  # levels of 255 that two ways to compute the same colours may lie apart


def as_srgb(pixels: NDArray[np.uint8], profile: bytes | None) -> NDArray[np.uint8]:
    """RGB pixels in the colours that all programs assume where no profile says otherwise.

    The pixels stay as they are where the profile is sRGB, cannot be applied, or is a grey one of a coloured picture.
    """
    change = _to_srgb(profile) if profile else None
    if change is None or not profile:
        return pixels
    if _MODES[profile[16:20]] == "RGB":
        return np.array(ImageCms.applyTransform(Image.fromarray(pixels), change))
    if (pixels != pixels[..., :1]).any():
        return pixels
    return np.array(ImageCms.applyTransform(Image.fromarray(pixels[..., 0]), change))


def changes_colours(profile: bytes | None) -> bool:
    """Whether colours look otherwise without the profile."""
    return bool(profile) and _to_srgb(profile) is not None


def cmyk_as_rgb(picture: Image.Image) -> Image.Image:
    """A print's colours on a screen: by its own profile, else by the plain rule that ink takes light away."""
    profile = picture.info.get("icc_profile")
    if profile and profile[16:20] == b"CMYK":
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            converted = ImageCms.profileToProfile(picture, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
        except (ImageCms.PyCMSError, OSError):
            converted = None
        if converted is not None:
            return converted
    return picture.convert("RGB")


@lru_cache(maxsize=16)
def _to_srgb(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """The way from a profile's colours to sRGB; none if there is nothing to change, or it cannot be applied."""
    mode = _MODES.get(profile[16:20])
    if mode is None:
        return None
    levels = np.linspace(0, 255, 9).round().astype(np.uint8)
    probe = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(27, 27, 3)
    if mode == "L":
        probe = np.repeat(levels[None, :, None], 3, axis=2)
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        change = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
        shown = Image.fromarray(probe if mode == "RGB" else np.ascontiguousarray(probe[..., 0]))
        changed = np.array(ImageCms.applyTransform(shown, change))
    except (ImageCms.PyCMSError, OSError):
        return None
    return change if np.abs(changed.astype(int) - probe).max() > _NO_DIFFERENCE else None
