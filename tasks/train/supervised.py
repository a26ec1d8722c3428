"""SFT and cold start: packed conversations, the loss on the assistant's tokens alone."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from schemas.settings.train import TrainSettings, TunerSettings
from tasks.train.checkpoints import Progress
from tasks.train.encoding import CACHE_BYTES, Ahead
from tasks.train.fast.layout import sent
from tasks.train.fast.packing import PackLimit, bins
from tasks.train.loop import Figures, Pending
from tasks.train.ranks import ALONE, Ranks
from tasks.train.schedule import rate_share, steps_of
from tasks.train.token_samples import IGNORED, Sample
from tasks.train.trainable import TrainableModel

logger = logging.getLogger(__name__)
BYTES_A_PIXEL = 24  # of a picture as patches: two frames, three colours, float32
GPU_MULTIPLE = 128  # packed lengths on a GPU: fewer different shapes to compile and plan for


class Supervised:
    """One optimizer step is `batch_size` conversations, packed into as few forward passes as they fit."""

    def __init__(
        self,
        fast: TrainableModel,
        encode: Callable[[int], Sample],
        count: int,
        settings: TrainSettings,
        tuner: TunerSettings,
        ranks: Ranks = ALONE,
        rehearsed: int = 0,
    ) -> None:
        """`encode` gives samples 0 to count - 1, and after them as many conversations to rehearse."""
        self.fast, self.settings, self.tuner, self.count, self.ranks = fast, settings, tuner, count, ranks
        self.rehearsed = rehearsed
        share = settings.rehearsal.share if settings.rehearsal and rehearsed else 0.0
        self._old = min(round(tuner.batch_size * share), tuner.batch_size - 1)  # sequences of a step
        self._new = tuner.batch_size - self._old
        self.steps = steps_of(count, self._new, tuner.epochs, tuner.max_steps)
        self.save_every = settings.save_steps
        self.packs = PackLimit(settings.pack_limit)
        self._ready: dict[int, tuple[list[Any], Figures]] = {}
        self._ahead = Ahead(
            on_device(encode, fast), settings.loader_threads, CACHE_BYTES // (BYTES_A_PIXEL * settings.image_max_pixels)
        )
        self._feed: Iterator[list[Sample]] | None = None
        self._next = -1  # the step that the feed gives next

    def rate(self, step: int) -> float:
        tuner = self.tuner
        return tuner.learning_rate * rate_share(step, self.steps, tuner.warmup_share, tuner.schedule)

    def batch(self, step: int) -> list[int]:
        """The samples of a step on all processes: every epoch is a new order, the same for the same seed."""
        per_epoch = math.ceil(self.count / self._new)
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(self.count)
        start = place * self._new
        chosen = [int(index) for index in order[start : start + self._new]]
        if self._old:
            rng = np.random.default_rng([self.settings.seed, step, 1])
            chosen += [self.count + int(index) for index in rng.integers(0, self.rehearsed, self._old)]
        return chosen

    def gradients(self, step: int, progress: Progress) -> Pending:
        ready = self._ready.get(step)
        packed, figures = self._prepare(step) if ready is None else ready
        self._ready.clear()
        figures = dict(zip(figures, self.ranks.totals(*figures.values()), strict=True))
        total = torch.zeros((), device=self.fast.device)
        for batch in even_out(packed, self.fast, self.ranks):
            loss = self.fast.loss(batch, max(1.0, figures["trained_tokens"]))
            loss.backward()
            total += loss.detach()
        if self.fast.device.type == "cuda" and step + 1 < self.steps:
            self._ready[step + 1] = self._prepare(step + 1)  # while the device works
        if self.ranks.count > 1:
            total = torch.tensor(self.ranks.totals(total.item())[0])
        return {**figures, "loss": total}

    def _prepare(self, step: int) -> tuple[list[Any], Figures]:
        """A step's packed samples on the device."""
        mine = self._samples(step)
        fitting = [sample for sample in mine if len(sample.ids) <= self.tuner.max_tokens]
        left_out = len(mine) - len(fitting)
        if left_out:
            logger.warning("step %d: %d samples are longer than max_tokens %d", step, left_out, self.tuner.max_tokens)
        trained = sum(label != IGNORED for sample in fitting for label in sample.labels[1:])
        packed = []
        for members in self.passes([len(sample.ids) for sample in fitting]):
            chosen = with_picture([fitting[n] for n in members], self.fast, self.ranks)
            length = sum(len(sample.ids) for sample in chosen)
            self.packs.note(length, len(members))
            if self.fast.device.type == "cuda":
                length = -(-length // GPU_MULTIPLE) * GPU_MULTIPLE
            packed.append(self.fast.pack(chosen, length))
        tokens = sum(len(sample.ids) for sample in fitting)
        figures: Figures = {"tokens": tokens, "trained_tokens": trained, "left_out": left_out}
        if self.settings.lora is None and self.settings.freeze == "none":  # weights that rest need less than is counted
            figures["flops"] = self.fast.step_flops(fitting, trained)
        return packed, figures

    def passes(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Samples of each forward pass: within the packed length, or one longer one; no more than micro_batch."""
        limit = self.packs.tokens
        for members in bins([min(length, limit) for length in lengths], limit):
            for start in range(0, len(members), self.tuner.micro_batch):
                yield members[start : start + self.tuner.micro_batch]

    def _samples(self, step: int) -> list[Sample]:
        if self._feed is None or self._next != step:
            self._feed = self._ahead.batches(self.ranks.part(self.batch(n)) for n in range(step, self.steps))
            self._next = step
        self._next += 1
        return next(self._feed)


def with_picture(samples: list[Sample], fast: TrainableModel, ranks: Ranks) -> list[Sample]:
    """The samples, with a blank picture among them where they have none and the vision tower is shared out.

    Every process must ask for the tower's weights in every pass; nothing of the picture bears loss.
    """
    if ranks.count == 1 or any(sample.pixels is not None for sample in samples):
        return samples
    return [*samples, fast.blank_sample()]


def even_out(packed: Sequence[Any], fast: TrainableModel, ranks: Ranks) -> Iterator[Any]:
    """The passes, and as many blank ones as the process with the most has more."""
    missing = ranks.most(len(packed)) - len(packed)  # called before the first pass: all processes are here then
    yield from packed
    for _ in range(missing):
        yield fast.pack([fast.blank_sample()])


def on_device(encode: Callable[[int], Sample], fast: TrainableModel) -> Callable[[int], Sample]:
    """The same samples with their pictures on the model's device, sent there by the thread that decoded them."""
    kind = fast.pixel_type
    if fast.device.type != "cuda" or kind is None:
        return encode

    def with_pixels(number: int) -> Sample:
        sample = encode(number)
        return sample if sample.pixels is None else replace(sample, pixels=sent(sample.pixels.to(kind), fast.device))

    return with_pixels
