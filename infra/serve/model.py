"""A checkpoint that answers: conversations in, texts and token counts out, several at once through one engine."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from cachetools import LRUCache
from jinja2 import TemplateError

from infra.serve.request import Refused
from schemas.errors import GeofixError
from tasks.agent.tagged import NotTaggable
from tasks.train.encoding import Encoder, PlainEncoder
from tasks.train.fast.families import FAMILIES, fast_model
from tasks.train.fast.padding import pad_vision
from tasks.train.loading import load_model, open_processor
from tasks.train.plain import PlainModel
from tasks.train.rollouts.engines import Engines
from tasks.train.rollouts.sampling import Sampling
from tasks.train.token_samples import Grid, Sample
from tasks.train.trainable import TrainableModel

BATCH = 16  # conversations decoded side by side
SMALL, SMALL_BATCH = 10**9, 64  # parameters up to which a GPU has room for more of them
MIN_PIXELS, MAX_PIXELS = 3136, 2_000_000  # of pictures for a model of the plain path, whose processor sizes them itself
PATCH_BYTES = 256 * 1024 * 1024  # of pictures that are kept, cut into patches
ROUND = 64  # answers are decoded in buffers of whole multiples, so that fewer engines are made


@dataclass(frozen=True)
class Answer:
    """What the model wrote, without its end mark."""

    text: str
    finish_reason: str
    prompt_tokens: int
    ids: tuple[int, ...]  # its tokens, the end mark included


@dataclass(frozen=True)
class Question:
    """A conversation as the model reads it, and how many tokens may answer it."""

    prompt: Sample
    limit: int


class RecallingEncoder(Encoder):
    """Cuts a picture into patches once: it comes again with every turn, and with every trial of Pass@K."""

    def __init__(self, processor: Any) -> None:
        super().__init__(processor, None)
        self._kept: LRUCache[bytes, tuple[torch.Tensor, Grid]] = LRUCache(
            PATCH_BYTES, lambda patches: patches[0].nbytes
        )
        self._keeping = threading.Lock()

    def patches(self, pictures: Sequence[Any]) -> tuple[torch.Tensor | None, tuple[Grid, ...]]:
        if not pictures:
            return None, ()
        prepared = [self._patches_of(picture) for picture in pictures]
        return torch.cat([pixels for pixels, _ in prepared]), tuple(grid for _, grid in prepared)

    def _patches_of(self, picture: Any) -> tuple[torch.Tensor, Grid]:
        key = hashlib.sha256(f"{picture.mode} {picture.size} ".encode() + picture.tobytes()).digest()
        with self._keeping:
            known = self._kept.get(key)
        if known is None:
            pixels, [grid] = super().patches([picture])
            assert pixels is not None
            known = (pixels, grid)
            if pixels.nbytes <= PATCH_BYTES:
                with self._keeping:
                    self._kept[key] = known
        return known


class Model:
    """A loaded checkpoint. One batch at a time: `answer` is not for two threads at once."""

    def __init__(self, folder: Path, threads: int, max_context: int) -> None:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        on_gpu = torch.cuda.is_available()
        model = load_model(folder, torch.bfloat16 if on_gpu else torch.float32)
        model = model.to("cuda" if on_gpu else "cpu").eval().requires_grad_(False)
        processor: Any = open_processor(folder)
        context = getattr(model.config.get_text_config(), "max_position_embeddings", max_context)
        self._context = min(max_context, context)
        self._ends = _listed(model.generation_config.eos_token_id)
        self.min_pixels, self.max_pixels = MIN_PIXELS, MAX_PIXELS
        if model.config.model_type in FAMILIES:
            pad_vision(model)
            fast: TrainableModel = fast_model(model)
            size = processor.image_processor.size
            self._encoder: Encoder = RecallingEncoder(processor)
            self.min_pixels, self.max_pixels = int(size["shortest_edge"]), int(size["longest_edge"])
        else:
            fast = PlainModel(model, processor)
            self._encoder = PlainEncoder(processor, None, self._ends)
            self._ends = self._encoder.end_tokens
        is_small = sum(parameter.numel() for parameter in model.parameters()) < SMALL
        self.batch = SMALL_BATCH if on_gpu and is_small else BATCH
        self._engines = Engines(fast, self._ends, self.batch)

    def read(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        token_limit: int | None,
        seed: int | None = None,
    ) -> Question:
        """The conversation as tokens, or Refused where it does not fit. Several threads may ask at once."""
        shown = [part["image"] for message in messages for part in message["content"] if part["type"] == "image"]
        try:
            prompt = self._encoder.prompt(messages, tools, shown)
        except (GeofixError, NotTaggable, TemplateError, TypeError) as error:
            raise Refused(400, f"the messages do not fit the chat template: {error}", "invalid_request") from None
        except StopIteration:
            raise Refused(400, "a text holds the mark that stands for a picture", "invalid_request") from None
        room = self._context - len(prompt.ids)
        if room < 1:
            raise Refused(
                400, f"the prompt has {len(prompt.ids)} tokens, the context {self._context}", "context_length_exceeded"
            )
        # Clients may send any integer; generators take those of 63 bits.
        chosen = None if seed is None else seed % 2**63
        return Question(replace(prompt, seed=chosen), min(room, token_limit or room))

    def answer(self, questions: Sequence[Question], sampling: Sampling) -> list[Answer]:
        """The next turns; one with a seed is the same whatever is answered beside it, but for a GPU's rounding."""
        longest = -(-max(question.limit for question in questions) // ROUND) * ROUND
        # Not inference_mode: tables of positions are kept for a process, and training may be in the same one.
        with torch.no_grad():
            rollouts = self._engines.generate(
                [question.prompt for question in questions], 1, longest, replace(sampling, seeded=True)
            )
        return [self._told(question, rollout.ids) for question, [rollout] in zip(questions, rollouts, strict=True)]

    def _told(self, question: Question, ids: list[int]) -> Answer:
        ids = ids[: question.limit]
        text = self._encoder.decode(ids)
        is_ended = bool(ids) and ids[-1] in self._ends
        return Answer(text, "stop" if is_ended else "length", len(question.prompt.ids), tuple(ids))


def _listed(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
