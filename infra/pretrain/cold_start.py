"""How a small model is tuned: answers at once (SFT), then trajectories (cold start), each after a shared beginning.

All lessons of a kind begin with the same words and tools, so these are computed once for a batch (`fast/grouped.py`).

The vision tower is frozen, so a picture's tokens are computed once and kept. The encoder gives them in place of
patches, and the model takes them as they are: the losses are the same, and on a CPU it saves most of a training step.
"""

from __future__ import annotations

import hashlib
import io
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

from infra.pretrain.teacher import Taught, opened
from infra.pretrain.tokens import IGNORED, Tokens, padded, record, text_batch
from tasks.agent.prompt import answer_lines, direct_messages
from tasks.agent.render import training_messages
from tasks.train.encoding import Encoder
from tasks.train.fast.grouped import Completion, Group, pack_groups
from tasks.train.fast.layout import Grid
from tasks.train.fast.model import FastModel, Pictures
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.fast.packing import Packed, Sample

Say = Callable[[dict[str, float]], None]


def freeze_sight(fast: FastModel) -> Callable[[torch.Tensor, tuple[Grid, ...]], torch.Tensor]:
    """Make the model take tokens of pictures; returns what computes them from patches, in reading order."""
    fast.vision.requires_grad_(False)
    plain = fast.pictures
    width = fast.text.config.hidden_size

    def pictures(given: torch.Tensor, grids: tuple[Grid, ...]) -> Pictures:
        return Pictures(given) if given.shape[1] == width else plain(given, grids)

    fast.pictures = pictures  # type: ignore[method-assign, assignment]

    @torch.no_grad()
    def seen(patches: torch.Tensor, grids: tuple[Grid, ...]) -> torch.Tensor:
        merged, order, _ = plain(patches.to(fast.device), grids)
        return merged if order is None else torch.empty_like(merged).index_copy(0, order, merged)

    return seen


class SeeingEncoder(Encoder):
    """An encoder whose pictures are tokens already, each computed once."""

    def __init__(self, processor: Any, pictures: Any, seen: Callable[..., torch.Tensor], kept: int = 20_000) -> None:
        super().__init__(processor, pictures)
        self._seen, self._most = seen, kept
        self._known: dict[str, tuple[torch.Tensor, tuple[Grid, ...]]] = {}

    def patches(self, pictures: Sequence[Any]) -> tuple[torch.Tensor | None, tuple[Grid, ...]]:
        if not pictures:
            return None, ()
        found = [self._one(picture) for picture in pictures]
        return torch.cat([tokens for tokens, _ in found]), tuple(grid for _, grids in found for grid in grids)

    def _one(self, picture: Any) -> tuple[torch.Tensor, tuple[Grid, ...]]:
        key = hashlib.sha256(picture.tobytes()).hexdigest() + str(picture.size)
        if key not in self._known:
            patches, grids = super().patches([picture])
            assert patches is not None
            if len(self._known) >= self._most:
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._seen(patches, grids), grids
        return self._known[key]


@dataclass(frozen=True)
class Lesson:
    """A trajectory without the words that all of them begin with."""

    shared: tuple[int, ...]
    rest: Completion


def answer_lesson(row: Mapping[str, Any], encoder: SeeingEncoder) -> Lesson:
    """A picture and where it was taken, as SpotSFT asks and answers: at once, without tools."""
    view = opened(row["file"]).view
    picture = {"type": "image_url", "image_url": {"url": "view.jpg"}}
    said = answer_lines(row["country"], row["city"], row["lat"], row["lon"], 1)
    messages = training_messages([*direct_messages(picture), {"role": "assistant", "content": said}])
    return _lesson(encoder.with_pictures(messages, [Image.open(io.BytesIO(view)).convert("RGB")]), encoder)


def lesson_of(taught: Taught, encoder: SeeingEncoder) -> Lesson:
    """The trajectory as the trainer sees it: trained are the assistant's tokens alone."""
    shown = [Image.open(io.BytesIO(jpeg)).convert("RGB") for jpeg in taught.pictures]
    return _lesson(encoder.with_pictures(training_messages(taught.messages, taught.tools), shown), encoder)


def _lesson(sample: Sample, encoder: SeeingEncoder) -> Lesson:
    first = list(sample.ids).index(encoder.image_token)  # the picture's opening mark stays with the shared words
    rest = Completion(
        list(sample.ids[first:]), [label != IGNORED for label in sample.labels[first:]], sample.pixels, sample.grids
    )
    return Lesson(tuple(sample.ids[:first]), rest)


def packed_lessons(lessons: Sequence[Lesson], fast: FastModel) -> Packed:
    """A batch: the shared words once, the trajectories after them."""
    shared = lessons[0].shared
    if any(one.shared != shared for one in lessons):
        raise ValueError("trajectories of one batch must begin with the same words")
    prompt = Sample(shared, [IGNORED] * len(shared))
    return pack_groups([Group(prompt, tuple(one.rest for one in lessons))], fast.image_token, fast.merge).to(
        fast.device
    )


def packed_texts(exchanges: Sequence[tuple[list[int], list[int]]], pad: int, device: torch.device) -> Packed:
    """Short exchanges without pictures, padded to one length."""
    ids, labels = padded(exchanges, pad)
    return text_batch(torch.tensor(ids), torch.tensor(labels), device)


class Pupil:
    """The model with its optimizer: only the language model learns."""

    def __init__(self, fast: FastModel, rate: float, seed: int) -> None:
        self.fast, self.rate, self.rng = fast, rate, random.Random(seed)
        self.weights = [one for one in fast.model.parameters() if one.requires_grad]
        self.optimizer = StochasticAdamW(
            [{"params": self.weights}], lr=rate, betas=(0.9, 0.98), weight_decay=0.01, max_norm=1.0, seed=seed,
            masters=True,
        )  # fmt: skip
        self.steps = 0

    def learn(self, batch: Packed, share: float = 1.0) -> tuple[float, float]:
        """One step; returns loss and the share of trained tokens that were the most likely ones."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (self.steps + 1) / 30) * share
        x = self.fast.norm(self.fast.hidden(batch)[batch.predict_at])
        logits = (x @ self.fast.model.lm_head.weight.T).float()
        loss = F.cross_entropy(logits, batch.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return float(loss.detach()), float((logits.argmax(-1) == batch.targets).float().mean())


def quotes(tokens: Tokens, device: torch.device, rng: random.Random, count: int = 16) -> Callable[[], Packed]:
    """Batches of records to quote, so that quoting is not forgotten."""
    return lambda: packed_texts([record(tokens, rng) for _ in range(count)], tokens.pad, device)


def study(
    pupil: Pupil,
    lessons: Sequence[Lesson],
    seconds: float,
    batch: int,
    rehearsals: Sequence[Callable[[], Packed]],
    say: Say,
    every: int = 4,
) -> None:
    """Lessons in random order for this long; one step in `every` is a rehearsal of what was learned before."""
    began, said, order = time.monotonic(), -1e9, list[int]()
    while (spent := time.monotonic() - began) < seconds:
        share = min(1.0, 2 * (1 - spent / seconds))
        turn, is_rehearsal = divmod(pupil.steps + 1, every)
        if rehearsals and not is_rehearsal:
            pupil.learn(rehearsals[turn % len(rehearsals)](), share)
            continue
        while len(order) < batch:
            order += pupil.rng.sample(range(len(lessons)), len(lessons))
        chosen = [lessons[order.pop()] for _ in range(batch)]
        loss, right = pupil.learn(packed_lessons(chosen, pupil.fast), share)
        if spent - said > 15:
            said = spent
            say({"seconds": round(spent, 1), "step": pupil.steps, "loss": loss, "right": right})
