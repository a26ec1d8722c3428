"""Pictures seen once: with the vision tower frozen, a picture's tokens are computed once and kept.

The encoder then gives those tokens in place of patches, and the model takes them as they are. Losses of the language
model's weights are the same as with patches; on a CPU it saves most of a training step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tasks.train.encoding import Encoder, Messages
from tasks.train.fast.layout import Grid, VisionLayout, vision_layout
from tasks.train.fast.model import FastModel
from tasks.train.fast.packing import Sample


def freeze_sight(fast: FastModel) -> Callable[[torch.Tensor, tuple[Grid, ...]], torch.Tensor]:
    """Make the model take tokens of pictures; returns what computes them from patches, in reading order."""
    fast.vision.requires_grad_(False)
    plain = fast.pictures
    width = fast.text.config.hidden_size

    def pictures(given: torch.Tensor, layout: VisionLayout) -> torch.Tensor:
        return given[layout.order] if given.shape[1] == width else plain(given, layout)

    fast.pictures = pictures  # type: ignore[method-assign, assignment]

    @torch.no_grad()
    def seen(patches: torch.Tensor, grids: tuple[Grid, ...]) -> torch.Tensor:
        layout = vision_layout(grids, fast.shape, fast.device)
        merged = plain(patches.to(fast.device), layout)
        return torch.empty_like(merged).index_copy(0, layout.order, merged)

    return seen


class SeeingEncoder(Encoder):
    """An encoder whose pictures are tokens already, each computed once."""

    def __init__(self, processor: Any, pictures: Any, seen: Callable[..., torch.Tensor], kept: int = 20_000) -> None:
        super().__init__(processor, pictures)
        self._seen, self._most = seen, kept
        self._known: dict[str, tuple[torch.Tensor, tuple[Grid, ...]]] = {}

    def whole(self, messages: Messages, pictures: Sequence[Any]) -> Sample:
        """A whole conversation with its pictures opened; labels are the assistant's tokens."""
        return self._encode(messages, True, None, pictures)

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
