"""When two rows mean the same, however they are written: `./a.jpg` is `a.jpg`, 48.80 is 48.8, and é has two codes."""

import math
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from tasks.ingest.times import read_time

Fields = Mapping[str, str | None]  # by the layout's names
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("benchmark", "test", "testing", "eval"), "benchmark"),
}
KINDS = {
    **dict.fromkeys(("photo", "perspective"), "photo"),
    **dict.fromkeys(("panorama", "pano", "equirectangular", "360", "spherical"), "panorama"),
}
_TEXTS = ("url", "licence", "creator", "attribution", "sequence")


def plain_text(text: str) -> str:
    """Text in Unicode's composed form; files made on a Mac often have the other one."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def plain_path(path: str, folder: Path) -> str:
    """A path without detours, relative to the picture folder where it lies in it."""
    path = plain_text(path).replace("\\", "/")
    if "/" not in path:
        return path
    path = os.path.normpath(path)
    root = f"{os.path.normpath(folder)}/"
    return path.removeprefix(root)


def row_id(fields: Fields, has_ids: bool, folder: Path) -> str | None:
    """The row's own id; its path where the table has no ids."""
    text = fields.get("id") if has_ids else fields.get("path")
    if text is None:
        return None
    return plain_text(text) if has_ids else plain_path(text, folder)


def row_content(fields: Fields, folder: Path) -> str:
    """What rows of one id must agree in: all that is stored of them. `country` is not, it only helps to check."""
    path = fields.get("path")
    moment = read_time(fields.get("captured_at") or "")
    parts = (
        *(_degrees(fields.get(name)) for name in ("lat", "lon", "compass_angle")),
        plain_path(path, folder) if path else "",
        *(_meant(fields.get(name), known) for name, known in (("split", SPLITS), ("kind", KINDS))),
        moment.isoformat() if moment else fields.get("captured_at") or "",
        *(plain_text(fields.get(name) or "") for name in _TEXTS),
    )
    return "\0".join(parts)


def read_degrees(text: str) -> float | None:
    """A finite number, or None. Underscores, which Python takes, are no part of a number here."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def _meant(text: str | None, known: Mapping[str, str]) -> str:
    return known.get(text.casefold(), text) if text else ""


def _degrees(text: str | None) -> str:
    value = read_degrees(text or "")
    return text or "" if value is None else repr(value + 0.0)  # -0.0 is 0.0
