"""A checkpoint that answers: conversations in, texts and token counts out, several at once through one engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateError

from infra.serve.request import Refused
from schemas.errors import GeofixError
from tasks.train.encoding import PlainEncoder
from tasks.train.fast.families import FAMILIES, fast_model
from tasks.train.fast.packing import IGNORED, Sample
from tasks.train.fast.padding import pad_vision
from tasks.train.loading import load_model, open_processor
from tasks.train.plain import PlainModel
from tasks.train.rollouts.sampling import Sampling
from tasks.train.rollouts.source import Engines
from tasks.train.trainable import TrainableModel

BATCH = 16  # conversations decoded side by side
SMALL, SMALL_BATCH = 10**9, 64  # parameters up to which a GPU has room for more of them
MIN_PIXELS, MAX_PIXELS = 3136, 2_000_000  # of pictures for a model of the plain path, whose processor sizes them itself
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


class Model:
    """A loaded checkpoint. One batch at a time: `answer` is not for two threads at once."""

    def __init__(self, folder: Path, threads: int, max_context: int) -> None:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        on_gpu = torch.cuda.is_available()
        model = load_model(folder, torch.bfloat16 if on_gpu else torch.float32)
        model = model.to("cuda" if on_gpu else "cpu").eval().requires_grad_(False)
        self._processor: Any = open_processor(folder)
        context = getattr(model.config.get_text_config(), "max_position_embeddings", max_context)
        self._context = min(max_context, context)
        self._ends = _listed(model.generation_config.eos_token_id)
        self._plain: PlainEncoder | None = None
        self.min_pixels, self.max_pixels = MIN_PIXELS, MAX_PIXELS
        if model.config.model_type in FAMILIES:
            pad_vision(model)
            fast: TrainableModel = fast_model(model)
            size = self._processor.image_processor.size
            self.min_pixels, self.max_pixels = int(size["shortest_edge"]), int(size["longest_edge"])
        else:
            fast = PlainModel(model, self._processor)
            self._plain = PlainEncoder(self._processor, None, self._ends)
            self._ends = self._plain.end_tokens
        is_small = sum(one.numel() for one in model.parameters()) < SMALL
        self.batch = SMALL_BATCH if on_gpu and is_small else BATCH
        self._engines = Engines(fast, self._ends, self.batch)

    def read(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, token_limit: int | None
    ) -> Question:
        """The conversation as tokens, or Refused where it does not fit."""
        prompt = self._patched(messages, tools) if self._plain is None else self._as_it_is(messages, tools)
        room = self._context - len(prompt.ids)
        if room < 1:
            raise Refused(
                400, f"the prompt has {len(prompt.ids)} tokens, the context {self._context}", "context_length_exceeded"
            )
        return Question(prompt, min(room, token_limit or room))

    def _as_it_is(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Sample:
        """For a model of the plain path, whose own template may know no tools."""
        assert self._plain is not None
        shown = [part["image"] for one in messages for part in one["content"] if part["type"] == "image"]
        try:
            return self._plain.prompt(messages, tools, shown)
        except GeofixError as error:
            raise Refused(400, str(error), "invalid_request") from None

    def _patched(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Sample:
        try:
            inputs = self._processor.apply_chat_template(
                messages,
                tools=tools,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError) as error:
            raise Refused(400, f"the messages do not fit the chat template: {error}", "invalid_request") from None
        ids = inputs["input_ids"][0].tolist()
        grids = inputs["image_grid_thw"].tolist() if "image_grid_thw" in inputs else []
        return Sample(
            ids, [IGNORED] * len(ids), inputs.get("pixel_values"), tuple((int(t), int(h), int(w)) for t, h, w in grids)
        )

    def answer(self, questions: Sequence[Question], sampling: Sampling, seed: int | None) -> list[Answer]:
        """The model's next turns; the same for the same question at temperature 0, or alone with the same seed."""
        longest = -(-max(one.limit for one in questions) // ROUND) * ROUND
        # Not inference_mode: tables of positions are kept for a process, and training may be in the same one.
        with torch.no_grad(), torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
            else:
                torch.seed()
            found = self._engines.generate([one.prompt for one in questions], 1, longest, sampling)
        return [self._told(one, rollout.ids) for one, [rollout] in zip(questions, found, strict=True)]

    def _told(self, question: Question, ids: list[int]) -> Answer:
        ids = ids[: question.limit]
        text = self._processor.tokenizer.decode(ids, skip_special_tokens=True)
        is_ended = bool(ids) and ids[-1] in self._ends
        return Answer(text, "stop" if is_ended else "length", len(question.prompt.ids), tuple(ids))


def _listed(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
