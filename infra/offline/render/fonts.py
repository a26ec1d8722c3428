"""Fonts from packages: a fresh machine has none of its own."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont


@lru_cache(maxsize=8)
def _file(package: str, *parts: str) -> Path:
    # find_spec does not import the package: one of the two would pull in a plotting library.
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the package {package} is needed to draw signs; install it with the project's dependencies")
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def is_cjk(text: str) -> bool:
    """Whether a text holds Chinese or Japanese characters, which the Latin font lacks."""
    return any("\u3000" <= ch <= "\u9fff" for ch in text)


@lru_cache(maxsize=512)
def font(size_px: int, cjk: bool) -> ImageFont.FreeTypeFont:
    """The sign font at a size: IPAex Gothic for Chinese and Japanese, Open Sans otherwise."""
    path = (
        _file("matplotlib_fontja", "fonts", "ipaexg.ttf")
        if cjk
        else _file("ttf_opensans", "ttf", "OpenSans-SemiBold.ttf")
    )
    # The basic layout engine ships with every build of Pillow, so bytes do not depend on an optional library.
    return ImageFont.truetype(str(path), size_px, layout_engine=ImageFont.Layout.BASIC)
