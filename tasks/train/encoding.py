"""Stored messages as token ids, labels and patches: what the model computes with.

The text goes through the chat template and the tokenizer with one mark for each picture; the mark is then repeated as
often as the picture has tokens. Ids, labels and patches are those of the processor called on the whole conversation.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from schemas.messages import image_reference, parts_of, texts_of
from tasks.imaging.images import model_view
from tasks.imaging.processor import ImageOnlyProcessor
from tasks.lake.image_store import ImageStore
from tasks.train.fast.layout import Grid
from tasks.train.fast.packing import IGNORED, Sample

CACHE_BYTES = 256 * 1024 * 1024
Out = TypeVar("Out")


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


def conversation_texts(messages_json: str) -> list[str]:
    """Every piece of text in stored messages, for a tokenizer to learn from."""
    return [text for message in json.loads(messages_json) for text in texts_of(message)]


class Ahead(Generic[Out]):
    """What `make` gives for batches of keys: threads make the next batches while the caller works on one."""

    def __init__(self, make: Callable[[int], Out], threads: int, keep: int = 0) -> None:
        self._make = functools.lru_cache(maxsize=keep)(make) if keep else make
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="samples") if threads else None

    def batches(self, batches: Iterable[Sequence[int]], ahead: int = 2) -> Iterator[list[Out]]:
        """The batches in order; an error of `make` is raised where its batch is due."""
        if self._pool is None:
            for batch in batches:
                yield [self._make(key) for key in batch]
            return
        queue: list[list[Future[Out]]] = []
        for batch in batches:
            queue.append([self._pool.submit(self._make, key) for key in batch])
            if len(queue) > ahead:
                yield [one.result() for one in queue.pop(0)]
        for waiting in queue:
            yield [one.result() for one in waiting]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


Messages = Sequence[dict[str, Any]]


def training_template() -> str:
    """The chat template (`tasks/agent/render.py`) with marks around what the assistant says, as TRL ships it."""
    spec = importlib.util.find_spec("trl")  # found, not imported: TRL's import looks through every installed package
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return (folder / "chat_templates" / "qwen3_vl_training.jinja").read_text(encoding="utf-8")


class Encoder:
    """Encodes conversations of one processor; may be called from several threads."""

    def __init__(self, processor: ImageOnlyProcessor, pictures: Pictures) -> None:
        self._pictures, self._processor = pictures, processor
        self._tokenizer: Any = processor.tokenizer
        self._image_processor: Any = processor.image_processor
        self.image_token: int = self._tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.merge: int = self._image_processor.merge_size
        self._training_template = training_template()
        self._lock = threading.Lock()  # a fast tokenizer changes its own settings while it works

    def conversation(self, messages_json: str) -> Sample:
        """A whole conversation; labels are the assistant's tokens, each turn with its end mark."""
        return self._encode(json.loads(messages_json), is_whole=True)

    def with_pictures(self, messages: Messages, pictures: Sequence[Any]) -> Sample:
        """A whole conversation whose pictures are opened already."""
        return self._encode(messages, True, None, pictures)

    def prompt(
        self,
        messages: str | Messages,
        tools: list[dict[str, Any]] | None = None,
        pictures: Sequence[Any] | None = None,
    ) -> Sample:
        """A conversation that the assistant is to continue; no token is labelled. Pictures may be given opened."""
        return self._encode(json.loads(messages) if isinstance(messages, str) else messages, False, tools, pictures)

    def tail(self, text: str, pictures: Sequence[Any]) -> Sample:
        """Rendered text that goes on a conversation, one mark for each picture; no token is labelled."""
        pixels, grids = self.patches(pictures)
        with self._lock:
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._expanded(ids, [0] * len(ids), pixels, grids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion, without its end mark."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @property
    def end_tokens(self) -> list[int]:
        return [int(self._tokenizer.eos_token_id)]

    def _encode(
        self,
        messages: Messages,
        is_whole: bool,
        tools: list[dict[str, Any]] | None = None,
        pictures: Sequence[Any] | None = None,
    ) -> Sample:
        shown = pictures or [
            self._pictures.open(*reference)
            for message in messages
            for part in parts_of(message["content"])
            if (reference := image_reference(part)) is not None
        ]
        pixels, grids = self.patches(shown)
        with self._lock:
            found = self._tokenizer.apply_chat_template(
                [plain_message(message) for message in messages],
                tools=tools,
                chat_template=self._training_template if is_whole else self._processor.chat_template,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=is_whole,
                add_generation_prompt=not is_whole,
            )
        ids = found["input_ids"]
        spoken = found["assistant_masks"] if is_whole else [0] * len(ids)
        return self._expanded(ids, spoken, pixels, grids)

    def patches(self, pictures: Sequence[Any]) -> tuple[torch.Tensor | None, tuple[Grid, ...]]:
        """Patches and grids of pictures."""
        if not pictures:
            return None, ()
        found = self._image_processor(images=list(pictures), return_tensors="pt")
        return found["pixel_values"], tuple((int(t), int(h), int(w)) for t, h, w in found["image_grid_thw"].tolist())

    def pictures(self, sample: Sample) -> list[NDArray[np.uint8]]:
        """The pictures that a sample's patches were cut of, as rows x columns x colours."""
        if sample.pixels is None:
            return []
        processor, merge = self._image_processor, self.merge
        side = processor.patch_size
        sizes = [frames * rows * columns for frames, rows, columns in sample.grids]
        found = []
        for patches, (_, rows, columns) in zip(sample.pixels.split(sizes), sample.grids, strict=True):
            shape = (rows // merge, columns // merge, merge, merge, 3, processor.temporal_patch_size, side, side)
            one = patches.float().view(shape)[:, :, :, :, :, 0]  # a still picture fills its frames with copies
            scale, shift = (
                torch.tensor(values, device=one.device) for values in (processor.image_std, processor.image_mean)
            )
            colours = one.permute(0, 2, 5, 1, 3, 6, 4) * scale + shift
            whole = (colours * 255).round().clamp(0, 255).to(torch.uint8)
            found.append(whole.reshape(rows * side, columns * side, 3).cpu().numpy())
        return found

    def marked(self, sample: Sample) -> list[int]:
        """A sample's ids with one mark for each picture."""
        out: list[int] = []
        waiting = iter(sample.grids)
        at = 0
        while at < len(sample.ids):
            token = sample.ids[at]
            out.append(token)
            frames, rows, columns = next(waiting) if token == self.image_token else (1, 1, self.merge**2)
            at += frames * rows * columns // self.merge**2
        return out

    def save_processor(self, folder: Path) -> None:
        """Tokenizer, image processor and chat template, as a checkpoint has them."""
        self._processor.save_pretrained(folder)

    def _expanded(
        self, ids: Sequence[int], spoken: Sequence[int], pixels: torch.Tensor | None, grids: tuple[Grid, ...]
    ) -> Sample:
        """Every picture's mark repeated as often as the picture has tokens."""
        out: list[int] = []
        labels: list[int] = []
        waiting = iter(grids)
        for token, is_spoken in zip(ids, spoken, strict=True):
            if token == self.image_token and not is_spoken:
                frames, rows, columns = next(waiting)
                count = frames * rows * columns // self.merge**2
                out += [token] * count
                labels += [IGNORED] * count
            else:
                out.append(token)
                labels.append(token if is_spoken else IGNORED)
        return Sample(out, labels, pixels, grids)


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the chat template reads it: pictures as bare marks."""
    content = [{"type": "image"} if image_reference(part) else part for part in parts_of(message["content"])]
    return {**message, "content": content}
