"""What the trainers iterate over: samples whose pictures are opened when they are needed."""

import functools
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from PIL import Image

from schemas.messages import image_reference, text_part
from tasks.imaging.images import model_view
from tasks.lake.image_store import ImageStore

CACHE_BYTES = 256 * 1024 * 1024


class Pictures:
    """Opens the pictures that messages name, within a pixel budget; small ones are kept in memory."""

    def __init__(self, store: ImageStore, min_pixels: int, max_pixels: int) -> None:
        self._store = store
        self._min_pixels = min_pixels
        self._max_pixels = max_pixels
        self.open = functools.lru_cache(maxsize=CACHE_BYTES // (3 * max_pixels))(self._open)

    def _open(self, sha256: str, extension: str) -> Image.Image:
        view, _ = model_view(self._store.read(sha256, extension), self._max_pixels, self._min_pixels)
        picture = Image.open(io.BytesIO(view))
        picture.load()
        return picture


def texts_of(messages_json: str) -> list[str]:
    """Every piece of text in stored messages, for a tokenizer to learn from."""
    return [
        part["text"]
        for message in json.loads(messages_json)
        for part in _parts(message["content"])
        if part["type"] == "text"
    ]


def conversations(samples: Sequence[dict[str, Any]], pictures: Pictures) -> Dataset:
    """Whole conversations, for TRL's SFTTrainer."""

    def row(sample: dict[str, Any]) -> dict[str, Any]:
        # The pictures sit in the messages themselves; TRL's collator still wants the column to know a
        # vision dataset by.
        return {"messages": _opened(sample["messages_json"], pictures), "images": []}

    return _lazy(samples, ["messages_json"], row)


def prompts(samples: Sequence[dict[str, Any]], pictures: Pictures) -> Dataset:
    """Prompts with the truth beside them, for TRL's GRPOTrainer and its reward."""

    def row(sample: dict[str, Any]) -> dict[str, Any]:
        messages = _opened(sample["messages_json"], pictures)
        # Here TRL fills the placeholders itself, in order.
        images = [part.pop("image") for message in messages for part in message["content"] if part["type"] == "image"]
        return {"prompt": messages, "images": images, "lat": sample["lat"], "lon": sample["lon"]}

    return _lazy(samples, ["messages_json", "lat", "lon"], row)


def _lazy(
    samples: Sequence[dict[str, Any]], columns: list[str], row: Callable[[dict[str, Any]], dict[str, Any]]
) -> Dataset:
    # A transform, because Arrow would pad the parts of a message with None keys, which TRL counts as pictures.
    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = [row(dict(zip(batch, values, strict=True))) for values in zip(*batch.values(), strict=True)]
        return {name: [one[name] for one in rows] for name in rows[0]}

    dataset = Dataset.from_dict({name: [sample[name] for sample in samples] for name in columns})
    return dataset.with_transform(transform)


def _opened(messages_json: str, pictures: Pictures) -> list[dict[str, Any]]:
    """Stored messages as TRL takes them: every content a list, every picture a PIL image."""
    messages = []
    for message in json.loads(messages_json):
        content: list[dict[str, Any]] = []
        for part in _parts(message["content"]):
            reference = image_reference(part)
            content.append({"type": "image", "image": pictures.open(*reference)} if reference else part)
        messages.append({"role": message["role"], "content": content})
    return messages


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [text_part(content)] if isinstance(content, str) else content
