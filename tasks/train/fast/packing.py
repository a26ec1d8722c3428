"""Samples packed one after another into sequences of a fixed length, without padding between them.

TRL refuses packing for vision data. Here each sample keeps its own positions (time, height and width, as Qwen2.5-VL
counts them), attention stays inside it, and a fixed total length keeps compiled code from being compiled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.errors import GeofixError
from tasks.train.fast.layout import sent
from tasks.train.token_samples import IGNORED, Grid, Sample


@dataclass(frozen=True)
class Packed:
    """Samples of one forward pass."""

    ids: torch.Tensor  # tokens
    positions: torch.Tensor  # 3 x tokens
    lengths: tuple[int, ...]  # of the samples, the padding at the end counted as one
    picture_at: torch.Tensor  # places of the pictures' tokens
    grids: tuple[Grid, ...]
    pixels: torch.Tensor | None
    predict_at: torch.Tensor  # places whose next token is trained
    targets: torch.Tensor  # those next tokens
    # Where a prompt is shared (grouped.py): the places of each segment's keys, its prompt's first, and their numbers.
    keys_at: torch.Tensor | None = None
    key_lengths: tuple[int, ...] | None = None

    def to(self, device: torch.device | str) -> Packed:
        def move(tensor: torch.Tensor) -> torch.Tensor:
            return sent(tensor, torch.device(device))

        return Packed(
            move(self.ids),
            move(self.positions),
            self.lengths,
            move(self.picture_at),
            self.grids,
            None if self.pixels is None else move(self.pixels),
            move(self.predict_at),
            move(self.targets),
            None if self.keys_at is None else move(self.keys_at),
            self.key_lengths,
        )


def positions_of(ids: Sequence[int], grids: Sequence[Grid], image_token: int, merge: int) -> NDArray[np.int64]:
    """Time, height and width position of every token (3 x tokens), as Qwen2.5-VL's `get_rope_index` counts them.

    A picture's tokens share their time and go by row and column; the text after it goes on at its larger side.
    """
    tokens = np.asarray(ids)
    parts, place, current = [], 0, 0
    waiting = list(grids)
    is_picture = tokens == image_token
    while place < len(tokens):
        if not is_picture[place]:
            after = np.flatnonzero(is_picture[place:])
            length = int(after[0]) if len(after) else len(tokens) - place
            parts.append(np.broadcast_to(np.arange(length) + current, (3, length)))
            place, current = place + length, current + length
            continue
        if not waiting:
            raise GeofixError("a sample has picture tokens for more pictures than it holds")
        frames, rows, columns = waiting.pop(0)
        tall, wide = rows // merge, columns // merge
        length = frames * tall * wide
        if place + length > len(tokens) or not is_picture[place : place + length].all():
            raise GeofixError(f"a picture of {rows} x {columns} patches needs {length} picture tokens in a row")
        grid = np.stack(np.meshgrid(np.arange(frames), np.arange(tall), np.arange(wide), indexing="ij"))
        parts.append(grid.reshape(3, -1) + current)
        place, current = place + length, current + max(tall, wide)
    if waiting:
        raise GeofixError(f"a sample holds {len(waiting)} pictures more than it has picture tokens for")
    return np.concatenate(parts, axis=1) if parts else np.zeros((3, 0), np.int64)


def pack(samples: Sequence[Sample], image_token: int, merge: int, length: int | None = None, pad: int = 0) -> Packed:
    """The samples as one sequence, filled up with `pad` to `length`."""
    ids = [np.asarray(sample.ids, dtype=np.int64) for sample in samples]
    positions = [positions_of(sample.ids, sample.grids, image_token, merge) for sample in samples]
    lengths = [len(sample_ids) for sample_ids in ids]
    total = sum(lengths)
    if length is not None and total > length:
        raise GeofixError(f"{len(samples)} samples hold {total} tokens, more than the packed length of {length}")
    missing = 0 if length is None else length - total
    if missing:
        ids.append(np.full(missing, pad, dtype=np.int64))
        positions.append(np.broadcast_to(np.arange(missing), (3, missing)))
        lengths.append(missing)
    predict_at, targets, start = [], [], 0
    for sample in samples:
        labels = np.asarray(sample.labels, dtype=np.int64)
        if len(labels) != len(sample.ids):
            raise GeofixError(f"a sample has {len(sample.ids)} tokens and {len(labels)} labels")
        trained = np.flatnonzero(labels[1:] != IGNORED)  # the first token of a sample is predicted by none
        predict_at.append(trained + start)
        targets.append(labels[1:][trained])
        start += len(labels)
    together = np.concatenate(ids)
    pixels = [sample.pixels for sample in samples if sample.pixels is not None]
    return Packed(
        ids=torch.from_numpy(together),
        positions=torch.from_numpy(np.ascontiguousarray(np.concatenate(positions, axis=1))),
        lengths=tuple(lengths),
        picture_at=torch.from_numpy(np.flatnonzero(together[:total] == image_token)),
        grids=tuple(grid for sample in samples for grid in sample.grids),
        pixels=torch.cat(pixels) if pixels else None,
        predict_at=torch.from_numpy(np.concatenate(predict_at)),
        targets=torch.from_numpy(np.concatenate(targets)),
    )


class PackLimit:
    """The packed length of a phase's passes, and what was made of it last."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._longest = 0  # tokens of a pass that holds more than one sample

    def note(self, tokens: int, members: int) -> None:
        """A pass of so many samples."""
        if members > 1:
            self._longest = max(self._longest, tokens)

    def halve(self) -> bool:
        """Passes of half the length from now on; False where each holds one sample already."""
        if self._longest < 2:
            return False
        self.tokens, self._longest = min(self.tokens, self._longest) // 2, 0
        return True


@dataclass
class _Bin:
    free: int
    members: list[int] = field(default_factory=list)


def bins(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of samples for each packed sequence: first fit, longest first; inside a bin in the given order."""
    filled: list[_Bin] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[index] > capacity:
            raise GeofixError(f"a sample of {lengths[index]} tokens is longer than the packed length of {capacity}")
        target = next((open_bin for open_bin in filled if open_bin.free >= lengths[index]), None)
        if target is None:
            target = _Bin(capacity)
            filled.append(target)
        target.free -= lengths[index]
        target.members.append(index)
    return [sorted(full_bin.members) for full_bin in filled]
