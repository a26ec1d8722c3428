"""When two rows mean the same, however they are written: `./a.jpg` is `a.jpg`, 48.80 is 48.8, and é has two codes."""

import math
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path

Fields = Mapping[str, str | None]  # by the layout's names


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
    """What rows of one id must agree in."""
    path = fields.get("path")
    parts = (_degrees(fields.get("lat")), _degrees(fields.get("lon")), plain_path(path, folder) if path else "")
    return "\0".join((*parts, fields.get("url") or ""))


def read_degrees(text: str) -> float | None:
    """A finite number, or None. Underscores, which Python takes, are no part of a number here."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def _degrees(text: str | None) -> str:
    value = read_degrees(text or "")
    return text or "" if value is None else repr(value + 0.0)  # -0.0 is 0.0
