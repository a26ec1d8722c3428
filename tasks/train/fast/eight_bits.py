"""Tensors in eight bits a number: blocks of 256 with one scale each, finer where numbers are small.

A moment's numbers span many powers of ten inside a block. The first moment is stored as sign and square root of its
share of the block's largest, the second as the fourth root, rounded up: a second moment of zero would make its step
unbounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 256


@dataclass(frozen=True)
class Quantized:
    """Codes and scales of one tensor."""

    codes: torch.Tensor  # int8 (signed) or uint8, blocks x 256, the last block filled up with zeros
    scales: torch.Tensor  # float32, one for each block
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: torch.Tensor, is_signed: bool) -> Quantized:
        flat = values.detach().float().flatten()
        blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(1).clamp_min(1e-38)
        share = blocks / scales[:, None]
        if is_signed:
            codes = (share.abs().sqrt() * 127).round().mul(share.sign()).to(torch.int8)
        else:
            codes = (share.clamp_min(0).sqrt().sqrt() * 255).ceil().clamp(max=255).to(torch.uint8)
        return cls(codes, scales, tuple(values.shape))

    def values(self) -> torch.Tensor:
        numbers = self.codes.float()
        share = (numbers / 127) * (numbers.abs() / 127) if self.codes.dtype == torch.int8 else (numbers / 255) ** 4
        size = 1
        for side in self.shape:
            size *= side
        return (share * self.scales[:, None]).flatten()[:size].view(self.shape)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as an optimizer's state holds them."""
        return {"codes": self.codes, "scales": self.scales, "shape": self.shape}
