"""The plain path: any vision-language model that transformers opens, computed by its own forward pass.

It is slower than the packed path: one conversation a pass, a group's prompt computed again for each of its rollouts.
A sample's pictures are kept as they are, one patch a pixel (`Sample.pixels` holds bytes), and go through the model's
own processor here, because every model wants other tensors of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from PIL import Image

from tasks.train.token_samples import IGNORED, Grid, Group, Sample
from tasks.train.trainable import TrainableModel

TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")  # inputs of some models: 1 where a token is a picture's
OF_TEXT = ("input_ids", "attention_mask", *TOKEN_TYPES)
NO_TOKEN = -1  # of a model whose configuration names no token for pictures
KEPT_PICTURES = 16  # sets of pictures whose tensors are kept: rollouts of a group ask for the same


@dataclass(frozen=True)
class PlainBatch:
    """What one call computes, conversation by conversation."""

    samples: tuple[Sample, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(sample.ids) for sample in self.samples)


class PlainModel(TrainableModel):
    """Conversations through a model's own forward pass."""

    pixel_type = None

    def __init__(self, model: Any, processor: Any, use_adapters: bool = True) -> None:
        self.model, self.processor, self.use_adapters = model, processor, use_adapters
        self.device = model.device
        self.vision = model.get_encoder("image")
        self.image_token: int = getattr(model.config, "image_token_id", None) or NO_TOKEN
        self._tensors = lru_cache(maxsize=KEPT_PICTURES)(self._picture_tensors)

    @property
    def end_tokens(self) -> list[int]:
        """Tokens that end a reply, as the checkpoint's generation settings name them."""
        end_ids = self.model.generation_config.eos_token_id
        return end_ids if isinstance(end_ids, list) else [] if end_ids is None else [end_ids]

    def pack(self, samples: Sequence[Sample], length: int | None = None) -> PlainBatch:
        return PlainBatch(tuple(samples))

    def pack_groups(self, groups: Sequence[Group]) -> PlainBatch:
        return PlainBatch(tuple(conversation for group in groups for conversation in conversations(group)))

    def loss(self, batch: PlainBatch, divisor: float | None = None) -> torch.Tensor:
        total, count = torch.zeros((), device=self.device, requires_grad=torch.is_grad_enabled()), 0
        for logits, targets in self._predicted(batch):
            total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            count += len(targets)
        return total / (max(1, count) if divisor is None else divisor)

    def log_probs(self, batch: PlainBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        picked = [torch.zeros(0, device=self.device, requires_grad=torch.is_grad_enabled())]
        entropies = [torch.zeros(0, device=self.device)]
        for logits, targets in self._predicted(batch):
            chances = (logits / temperature).log_softmax(-1)
            picked.append(chances.gather(1, targets[:, None])[:, 0])
            entropies.append(-(chances.detach().exp() * chances.detach()).sum(-1))
        return torch.cat(picked), torch.cat(entropies)

    def blank_sample(self) -> Sample:
        return Sample([0, 0], [IGNORED] * 2)

    def alike(self, model: Any, use_adapters: bool = True) -> PlainModel:
        return PlainModel(model, self.processor, use_adapters)

    def _predicted(self, batch: PlainBatch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of each conversation the logits that predict its trained tokens (float32), and those tokens."""
        for sample in batch.samples:
            labels = torch.tensor(sample.labels[1:])
            at = (labels != IGNORED).nonzero()[:, 0]
            if not len(at):
                continue
            with self.adapters_as_asked():
                logits = self.model(**self.inputs(sample), use_cache=False).logits[0]
            yield logits[at.to(self.device)].float(), labels[at].to(self.device)

    @contextlib.contextmanager
    def adapters_as_asked(self) -> Iterator[None]:
        """Without the adapters where this is the model before them."""
        layers = [] if self.use_adapters else [module for module in self.model.modules() if hasattr(module, "lora_A")]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def inputs(self, sample: Sample, copies: int = 1) -> dict[str, torch.Tensor]:
        """What the model's forward takes for a conversation, `copies` of it side by side."""
        ids = torch.tensor([list(sample.ids)] * copies, device=self.device)
        model_inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name in self.processor.model_input_names:
            if name in TOKEN_TYPES:
                model_inputs[name] = (ids == self.image_token).long()
        if sample.pixels is not None:
            pixels: bytes = sample.pixels.numpy().tobytes()
            model_inputs |= self._tensors(pixels, sample.grids, copies)
        return model_inputs

    def _picture_tensors(self, pixels: bytes, grids: tuple[Grid, ...], copies: int) -> dict[str, torch.Tensor]:
        """The pictures through the processor, which wants a text that names them: the model's own template has one."""
        shown = pictures_of(pixels, grids)
        messages = [{"role": "user", "content": [{"type": "image"}] * len(shown)}]
        text = self.processor.apply_chat_template(messages, tokenize=False)
        made = self.processor(text=[text] * copies, images=[shown] * copies, return_tensors="pt", padding=True)
        kind = self.model.dtype
        return {
            name: value.to(self.device, kind if value.is_floating_point() else None)
            for name, value in made.items()
            if name not in OF_TEXT
        }


def conversations(group: Group) -> Iterator[Sample]:
    """Prompt and completion together, of each completion; labels are what the policy wrote."""
    prompt = group.prompt
    for completion in group.completions:
        labels = [
            token if is_policy else IGNORED
            for token, is_policy in zip(completion.ids, completion.is_policy, strict=True)
        ]
        pixels = [part for part in (prompt.pixels, completion.pixels) if part is not None]
        yield Sample(
            [*prompt.ids, *completion.ids], [IGNORED] * len(prompt.ids) + labels, torch.cat(pixels) if pixels else None,
            (*prompt.grids, *completion.grids),
        )  # fmt: skip


def as_pixels(pictures: Sequence[Image.Image]) -> tuple[torch.Tensor | None, tuple[Grid, ...]]:
    """Pictures as rows of bytes, one for each pixel, and their sizes."""
    if not pictures:
        return None, ()
    rgb = [picture.convert("RGB") for picture in pictures]
    rows = [torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(-1, 3) for picture in rgb]
    return torch.cat(rows), tuple((1, picture.height, picture.width) for picture in rgb)


def pictures_of(pixels: bytes, grids: Sequence[Grid]) -> list[Image.Image]:
    """The pictures that `as_pixels` wrote."""
    pictures, start = [], 0
    for _, height, width in grids:
        size = 3 * height * width
        pictures.append(Image.frombytes("RGB", (width, height), pixels[start : start + size]))
        start += size
    return pictures
