"""Stored messages as token ids, labels and patches: what the model computes with.

The text goes through the chat template and the tokenizer with one mark for each picture; the mark is then repeated as
often as the picture has tokens. Ids, labels and patches are those of the processor called on the whole conversation.

Qwen3-VL's template (`tasks/agent/render.py`) has a twin that marks what the assistant says. A model with another
template is encoded turn by turn: what it is prompted with, then what it says, as in a rollout.
"""

import functools
import importlib.util
import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from jinja2 import TemplateError
from numpy.typing import NDArray
from PIL import Image

from schemas.errors import GeofixError
from schemas.messages import image_reference, image_references, parts_of, texts_of
from tasks.agent.render import chat_template, render_text, turns_with_tools
from tasks.imaging.images import model_view
from tasks.train.plain import PlainModel, as_pixels
from tasks.train.token_samples import IGNORED, Grid, Sample
from tasks.train.trainable import TrainableModel

if TYPE_CHECKING:
    from tasks.lake.image_store import ImageStore

CACHE_BYTES = 256 * 1024 * 1024
TURN, TURNS = "<|im_start|>", 1024  # the mark that begins a turn; turns that are kept as tokens
Out = TypeVar("Out")


class Pictures:
    """Opens the pictures that messages name, within a pixel budget; small ones are kept in memory."""

    def __init__(self, store: "ImageStore", min_pixels: int, max_pixels: int) -> None:
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
                yield [future.result() for future in queue.pop(0)]
        for waiting in queue:
            yield [future.result() for future in waiting]

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

    def __init__(self, processor: Any, pictures: Pictures | None) -> None:
        """Without `pictures`, a conversation's are given opened."""
        self._pictures, self._processor = pictures, processor
        self._tokenizer: Any = processor.tokenizer
        self._image_processor: Any = processor.image_processor
        self._has_twin = processor.chat_template.strip() == chat_template().strip()
        self._training_template = training_template()
        self._lock = threading.Lock()  # a fast tokenizer changes its own settings while it works
        self._marks_turns = TURN in self._tokenizer.added_tokens_encoder
        # A conversation's first turns come again with each of its requests, and the system's with every one.
        self._ids_of = functools.lru_cache(maxsize=TURNS)(self._tokens)
        self._open()

    def _open(self) -> None:
        self.image_token: int = self._tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.merge: int = self._image_processor.merge_size

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

    def responses(self, messages: Messages, pictures: Sequence[Any]) -> Sample:
        """What tools answered, as the template writes it after a reply's end mark, and the next reply's beginning."""
        if self._has_twin:
            head: list[dict[str, Any]] = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
            text = render_text([*head, *messages], add_generation_prompt=True).removeprefix(render_text(head))
            return self.tail("\n" + text, pictures)
        marker = "<tool_call>"
        opening = [{"role": "user", "content": "?"}, {"role": "assistant", "content": marker}]
        _, _, text = self._rendered(turns_with_tools([*opening, *messages]), True).partition(marker)
        end = next((mark for mark in self._end_marks if text.startswith(mark)), "")
        return self.tail(text.removeprefix(end), pictures)

    def tail(self, text: str, pictures: Sequence[Any], is_first: bool = False) -> Sample:
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

    @property
    def _end_marks(self) -> list[str]:
        return [self._tokenizer.decode([token]) for token in self.end_tokens]

    def _shown(self, messages: Messages) -> list[Any]:
        """The pictures that messages name."""
        opened = self._pictures
        return [] if opened is None else [opened.open(*reference) for reference in image_references(list(messages))]

    def _rendered(self, messages: Messages, add_generation_prompt: bool) -> str:
        """The model's own rendering; a template without a system's turn is given its words in the user's."""

        def fill(messages: Messages) -> str:
            plain = [plain_message(message) for message in messages]
            return str(
                self._processor.apply_chat_template(plain, tokenize=False, add_generation_prompt=add_generation_prompt)
            )

        try:
            return fill(messages)
        except TemplateError as error:
            first, *rest = messages
            if first["role"] != "system" or not rest:
                raise GeofixError(f"the base's chat template refuses a conversation: {error}") from error
            content = [*parts_of(first["content"]), {"type": "text", "text": "\n\n"}, *parts_of(rest[0]["content"])]
            return fill([{**rest[0], "content": content}, *rest[1:]])

    def _by_turns(self, messages: Messages, pictures: Sequence[Any]) -> Sample:
        """Each prompt and each of the assistant's turns by themselves, one after another."""
        whole = self._rendered(messages, False)
        shown = iter(pictures)
        parts: list[Sample] = []
        done = start = 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = self._rendered(messages[:number], True), self._rendered(messages[: number + 1], False)
            if not (whole.startswith(before) and whole.startswith(after) and after.startswith(before)):
                raise GeofixError(
                    "the base's chat template writes a turn otherwise once others follow it, so it cannot be trained "
                    "turn by turn: give the folder another chat_template.jinja"
                )
            count = sum(
                len(parts_of(message["content"])) - len(texts_of(message)) for message in messages[start:number]
            )
            parts.append(self.tail(whole[done : len(before)], [next(shown) for _ in range(count)], is_first=not parts))
            turn_text = after[len(before) :]
            end = max(turn_text.rfind(mark) + len(mark) if mark in turn_text else 0 for mark in self._end_marks)
            turn_text = turn_text[:end] if end else turn_text.rstrip()
            done, start = len(before) + len(turn_text), number + 1
            spoken = self.tail(turn_text if end else turn_text + self._end_marks[0], ())
            parts.append(Sample(spoken.ids, spoken.ids))
        if done < len(whole):
            parts.append(self.tail(whole[done:], list(shown)))
        pixels = [part.pixels for part in parts if part.pixels is not None]
        return Sample(
            [token for part in parts for token in part.ids], [label for part in parts for label in part.labels],
            torch.cat(pixels) if pixels else None, tuple(grid for part in parts for grid in part.grids),
        )  # fmt: skip

    def _encode(
        self,
        messages: Messages,
        is_whole: bool,
        tools: list[dict[str, Any]] | None = None,
        pictures: Sequence[Any] | None = None,
    ) -> Sample:
        shown = pictures or self._shown(messages)
        if not self._has_twin:
            if is_whole:
                return self._by_turns(messages, shown)
            return self.tail(self._rendered(turns_with_tools(messages, tools), True), shown, is_first=True)
        pixels, grids = self.patches(shown)
        plain = [plain_message(message) for message in messages]
        if not is_whole:
            text = self._tokenizer.apply_chat_template(
                plain,
                tools=tools,
                chat_template=self._processor.chat_template,
                tokenize=False,
                add_generation_prompt=True,
            )
            ids = [token for turn in self._turns(text) for token in self._ids_of(turn)]
            return self._expanded(ids, [0] * len(ids), pixels, grids)
        with self._lock:
            encoded = self._tokenizer.apply_chat_template(
                plain,
                tools=tools,
                chat_template=self._training_template,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        return self._expanded(encoded["input_ids"], encoded["assistant_masks"], pixels, grids)

    def _turns(self, text: str) -> list[str]:
        """Rendered text, cut where a turn begins if that mark is a token of its own: no other token reaches over it."""
        return re.split(f"(?={re.escape(TURN)})", text) if self._marks_turns else [text]

    def _tokens(self, text: str) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def patches(self, pictures: Sequence[Any]) -> tuple[torch.Tensor | None, tuple[Grid, ...]]:
        """Patches and grids of pictures."""
        if not pictures:
            return None, ()
        processed = self._image_processor(images=list(pictures), return_tensors="pt")
        return processed["pixel_values"], tuple(
            (int(t), int(h), int(w)) for t, h, w in processed["image_grid_thw"].tolist()
        )

    def pictures(self, sample: Sample) -> list[NDArray[np.uint8]]:
        """The pictures that a sample's patches were cut of, as rows x columns x colours."""
        if sample.pixels is None:
            return []
        processor, merge = self._image_processor, self.merge
        side = processor.patch_size
        sizes = [frames * rows * columns for frames, rows, columns in sample.grids]
        decoded = []
        for patches, (_, rows, columns) in zip(sample.pixels.split(sizes), sample.grids, strict=True):
            shape = (rows // merge, columns // merge, merge, merge, 3, processor.temporal_patch_size, side, side)
            still = patches.float().view(shape)[:, :, :, :, :, 0]  # a still picture fills its frames with copies
            scale, shift = (
                torch.tensor(values, device=still.device) for values in (processor.image_std, processor.image_mean)
            )
            colours = still.permute(0, 2, 5, 1, 3, 6, 4) * scale + shift
            whole = (colours * 255).round().clamp(0, 255).to(torch.uint8)
            decoded.append(whole.reshape(rows * side, columns * side, 3).cpu().numpy())
        return decoded

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


class PlainEncoder(Encoder):
    """For models of the plain path: the processor writes each picture's tokens, and the pictures stay as they are."""

    def __init__(self, processor: Any, pictures: Pictures | None, ends: Iterable[int] = ()) -> None:
        """`ends` are tokens that end a reply beside the tokenizer's own."""
        super().__init__(processor, pictures)
        self._has_twin = False
        self._ends = sorted({int(self._tokenizer.eos_token_id), *ends})

    def _open(self) -> None:
        self._bos: str | None = self._tokenizer.bos_token

    @property
    def end_tokens(self) -> list[int]:
        return self._ends

    def tail(self, text: str, pictures: Sequence[Any], is_first: bool = False) -> Sample:
        pixels, grids = self.patches(pictures)
        # A tokenizer puts its first token before a conversation, unless the template has written it already.
        adds = is_first and not (self._bos and text.startswith(self._bos))
        with self._lock:
            if pictures:
                encoded = self._processor(text=[text], images=[list(pictures)], add_special_tokens=adds)
                [ids] = encoded["input_ids"]
            else:
                ids = self._tokenizer(text, add_special_tokens=adds)["input_ids"]
        return Sample(list(ids), [IGNORED] * len(ids), pixels, grids)

    def patches(self, pictures: Sequence[Any]) -> tuple[torch.Tensor | None, tuple[Grid, ...]]:
        return as_pixels(pictures)


def open_encoder(fast: TrainableModel, processor: Any, pictures: Pictures) -> Encoder:
    """The encoder of a model of the packed or the plain path."""
    if not isinstance(fast, PlainModel):
        return Encoder(processor, pictures)
    return PlainEncoder(processor, pictures, fast.end_tokens)


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the chat template reads it: pictures as bare marks."""
    content = [{"type": "image"} if image_reference(part) else part for part in parts_of(message["content"])]
    return {**message, "content": content}
