"""Where a picture's patches go in Qwen2.5-VL's vision tower: window order, rotary angles, sequence lengths.

transformers computes these in Python for every picture and every step. They depend on the picture's grid alone, so
they are computed once for each grid and once for each combination of grids in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.train.token_samples import Grid


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device. From page-locked memory: any other copy waits until the device has nothing to do."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class VisionShape:
    """The numbers of the vision tower that decide a layout."""

    merge: int  # patches along each side of one text token
    window: int  # text tokens along each side of one attention window
    head_dim: int
    theta: float = 10_000.0


@dataclass(frozen=True)
class Segments:
    """Sequences lying one after another in a packed tensor; attention stays inside each."""

    lengths: tuple[int, ...]
    offsets: torch.Tensor  # int32, one more than there are sequences, on the device
    longest: int

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> Segments:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return cls(lengths, sent(torch.from_numpy(offsets), device), max(lengths, default=0))


@dataclass(frozen=True)
class VisionLayout:
    """A batch of pictures in window order."""

    order: torch.Tensor  # the merged token that stands at each place
    cos: torch.Tensor  # float32, patches x head_dim / 2, in window order
    sin: torch.Tensor
    windows: Segments
    pictures: Segments


@lru_cache(maxsize=4096)
def picture_layout(
    rows: int, columns: int, merge: int, window: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """One frame: merged tokens in window order, their patches' (row, column), and each window's length in patches."""
    tall, wide = rows // merge, columns // merge
    index = np.arange(tall * wide).reshape(tall, wide)
    tiles = [
        index[top : top + window, left : left + window].ravel()
        for top in range(0, tall, window)
        for left in range(0, wide, window)
    ]
    order = np.concatenate(tiles)
    row, column = np.divmod(order, wide)
    within = np.arange(merge)
    patch_rows = np.broadcast_to((row * merge)[:, None, None] + within[None, :, None], (len(order), merge, merge))
    patch_columns = np.broadcast_to((column * merge)[:, None, None] + within[None, None, :], patch_rows.shape)
    positions = np.stack([patch_rows.ravel(), patch_columns.ravel()], axis=1)
    return order, positions, [len(tile) * merge * merge for tile in tiles]


@lru_cache(maxsize=64)
def vision_layout(grids: tuple[Grid, ...], shape: VisionShape, device: torch.device) -> VisionLayout:
    """The layout of these pictures, in this order, on the device."""
    orders, positions, windows, frames, start = [], [], [], [], 0
    for count, rows, columns in grids:
        order, position, lengths = picture_layout(rows, columns, shape.merge, shape.window)
        for _ in range(count):
            orders.append(order + start)
            positions.append(position)
            windows += lengths
            frames.append(rows * columns)
            start += len(order)
    spatial = shape.head_dim // 2
    frequency = 1.0 / shape.theta ** (torch.arange(0, spatial, 2, dtype=torch.float32) / spatial)
    angles = (torch.from_numpy(np.concatenate(positions)).float()[:, :, None] * frequency).flatten(1)
    angles = sent(angles, device)
    return VisionLayout(
        order=sent(torch.from_numpy(np.concatenate(orders)), device),
        cos=angles.cos(),
        sin=angles.sin(),
        windows=Segments.of(tuple(windows), device),
        pictures=Segments.of(tuple(frames), device),
    )
