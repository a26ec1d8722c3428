"""The cold start of a small model: trajectories after a shared beginning, on top of the lessons that come before it.

All trajectories begin with the same words and tools, so these are computed once for a batch (`fast/grouped.py`).
Names are spelled as the base reads them, letter by letter, whatever words the tokenizer has.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

from infra.pretrain.quoting import padded, record, repeat, text_batch
from infra.pretrain.sight import SeeingEncoder
from infra.pretrain.teacher import Taught
from infra.pretrain.tokens import IGNORED, Tokens
from tasks.agent.render import training_messages
from tasks.train.fast.grouped import Completion, Group, pack_groups
from tasks.train.fast.model import FastModel
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.fast.packing import Packed, Sample

SPELLED_AFTER = 'address": "'  # the quote before it may be one token with a bracket
Say = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Lesson:
    """A trajectory without the words that all of them begin with."""

    shared: tuple[int, ...]
    rest: Completion


def lesson_of(taught: Taught, encoder: SeeingEncoder, tokens: Tokens) -> Lesson:
    """The trajectory as the trainer sees it: trained are the assistant's tokens alone."""
    shown = [Image.open(_file(jpeg)).convert("RGB") for jpeg in taught.pictures]
    messages = training_messages(taught.messages, taught.tools)
    sample = encoder.whole(messages, shown)
    ids, labels = spelled(list(sample.ids), list(sample.labels), tokens)
    first = ids.index(encoder.image_token)
    rest = Completion(
        ids[first:], [label != IGNORED for label in labels[first:]], sample.pixels, sample.grids
    )  # the picture's opening mark stays with the shared words
    return Lesson(tuple(ids[:first]), rest)


def spelled(ids: list[int], labels: list[int], tokens: Tokens) -> tuple[list[int], list[int]]:
    """The same tokens, with the address the assistant asks for letter by letter."""
    mark = tokens.encode(SPELLED_AFTER)
    out: list[int] = []
    trained: list[int] = []
    inside: list[int] | None = None
    for token, label in zip(ids, labels, strict=True):
        if inside is not None:
            if tokens.decode([token]).startswith('"'):
                letters = tokens.spelled(tokens.decode(inside))
                out += letters
                trained += letters
                inside = None
            else:
                inside.append(token)
                continue
        out.append(token)
        trained.append(label)
        if label != IGNORED and out[-len(mark) :] == mark:
            inside = []
    return out, trained


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


def practise(pupil: Pupil, tokens: Tokens, readings: Callable[[], Packed] | None, seconds: float, say: Say) -> None:
    """Lessons in quoting, from random letters to a geocoder's records, with reading among them against forgetting."""
    began, level, average, said = time.monotonic(), 0, 0.0, 0.0
    while (spent := time.monotonic() - began) < seconds:
        rng = pupil.rng
        if readings is not None and pupil.steps % 3 == 2:
            pupil.learn(readings())
            continue
        count = rng.randrange(6, 24)
        exchanges = (
            [record(tokens, rng) for _ in range(16)] if level else [repeat(tokens, rng, count) for _ in range(48)]
        )
        loss, right = pupil.learn(
            packed_texts(exchanges, tokens.pad, pupil.fast.device), min(1.0, 3 * (1 - spent / seconds))
        )
        average = 0.9 * average + 0.1 * right
        if not level and average > 0.85:
            level, average = 1, 0.0
        if spent - said > 15 or pupil.steps == 1:
            said = spent
            say({"seconds": round(spent, 1), "step": pupil.steps, "level": level, "loss": loss, "right": right})


def cold_start(
    pupil: Pupil, lessons: Sequence[Lesson], tokens: Tokens, seconds: float, batch: int, quotes: bool, say: Say
) -> None:
    """Trajectories in random order for this long; every fourth step is a lesson in quoting where `quotes`."""
    began, said = time.monotonic(), 0.0
    while (spent := time.monotonic() - began) < seconds:
        share = min(1.0, 2 * (1 - spent / seconds))
        if quotes and pupil.steps % 4 == 3:
            exchanges = [record(tokens, pupil.rng) for _ in range(16)]
            pupil.learn(packed_texts(exchanges, tokens.pad, pupil.fast.device), share)
            continue
        chosen = [lessons[pupil.rng.randrange(len(lessons))] for _ in range(batch)]
        loss, right = pupil.learn(packed_lessons(chosen, pupil.fast), share)
        if spent - said > 15 or pupil.steps == 1:
            said = spent
            say({"seconds": round(spent, 1), "step": pupil.steps, "loss": loss, "right": right})


def _file(jpeg: bytes) -> Any:
    import io

    return io.BytesIO(jpeg)


def as_json(taught: Taught) -> str:
    """The text part of a trajectory, to be kept in a file."""
    return json.dumps({"messages": taught.messages, "tools": taught.tools}, ensure_ascii=False)
