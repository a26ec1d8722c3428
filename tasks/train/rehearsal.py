"""Conversations of another origin, mixed among those of SFT and cold start: what the base could do is not forgotten.

The file is what TRL reads and `geofix trajectories --as trl` writes: `messages` (role, content of parts or text) and
`images` (bytes of the pictures, in the order in which the parts name them).
"""

import io
from collections.abc import Callable
from typing import Any

import polars as pl
from PIL import Image

from schemas.errors import InputError
from schemas.settings.train import RehearsalSettings
from tasks.train.chain import rehearsal_file
from tasks.train.encoding import Encoder
from tasks.train.token_samples import Sample

COLUMNS = ("messages", "images")


def open_rehearsal(settings: RehearsalSettings, encoder: Encoder) -> tuple[int, Callable[[int], Sample]]:
    """How many conversations the file holds, and each of them encoded."""
    file = rehearsal_file(settings)
    try:
        rows = pl.read_parquet(file, columns=list(COLUMNS)).to_dicts()
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"train.rehearsal.file: {file} is no Parquet file with {' and '.join(COLUMNS)}: {reason}"
        ) from error
    if not rows:
        raise InputError(f"train.rehearsal.file: {file} holds no conversation")
    for number, row in enumerate(rows):
        shown, held = sum(part.get("type") == "image" for part in _parts(row)), len(row["images"] or ())
        if shown != held:
            raise InputError(f"train.rehearsal.file: row {number} of {file} names {shown} pictures and holds {held}")

    def encode(number: int) -> Sample:
        row = rows[number]
        pictures = [Image.open(io.BytesIO(_bytes(image))).convert("RGB") for image in row["images"] or ()]
        return encoder.with_pictures([{**turn, "content": _content(turn)} for turn in row["messages"]], pictures)

    return len(rows), encode


def _content(turn: dict[str, Any]) -> list[dict[str, str]]:
    content = turn["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {"type": "image"} if part["type"] == "image" else {"type": "text", "text": part["text"]} for part in content
    ]


def _parts(row: dict[str, Any]) -> list[dict[str, str]]:
    return [part for turn in row["messages"] for part in _content(turn)]


def _bytes(image: Any) -> bytes:
    return bytes(image["bytes"] if isinstance(image, dict) else image)
