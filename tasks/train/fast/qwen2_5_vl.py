"""Qwen2.5-VL: a vision tower that attends inside windows, and over whole pictures in a few of its blocks."""

from typing import Any

import torch
import torch.nn.functional as F

from schemas.errors import GeofixError
from tasks.train.fast.attention import attend, attend_windows, rotate_vision
from tasks.train.fast.layout import VisionLayout, VisionShape, vision_layout
from tasks.train.fast.model import FastModel, Pictures, Weights, rms_norm
from tasks.train.token_samples import Grid

NORM_EPSILON = 1e-6


def vision_before(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    norm, qkv, bias = weights
    return F.linear(rms_norm(x, norm, NORM_EPSILON), qkv, bias)


def vision_after(x: torch.Tensor, attended: torch.Tensor, weights: Weights) -> torch.Tensor:
    out, out_bias, norm, gate, gate_bias, up, up_bias, down, down_bias = weights
    x = x + F.linear(attended, out, out_bias)
    y = rms_norm(x, norm, NORM_EPSILON)
    return x + F.linear(F.silu(F.linear(y, gate, gate_bias)) * F.linear(y, up, up_bias), down, down_bias)


class Qwen25VL(FastModel):
    """Qwen2.5-VL over packed samples."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        if self.text.config.use_sliding_window:
            raise GeofixError("fast training knows no sliding-window attention; set use_sliding_window to false")
        if any(abs(block.norm1.variance_epsilon - NORM_EPSILON) > 1e-12 for block in self.vision.blocks):
            raise GeofixError(f"fast training expects the vision tower's norms to use epsilon {NORM_EPSILON}")
        self.full_blocks = frozenset(self.vision.config.fullatt_block_indexes)

    def vision_shape(self) -> VisionShape:
        vision = self.vision.config
        window = vision.window_size // self.merge // vision.patch_size
        return VisionShape(self.merge, window, vision.hidden_size // vision.num_heads)

    def rotary_axis(self, sections: list[int]) -> torch.Tensor:
        return torch.repeat_interleave(torch.arange(len(sections)) % 3, torch.tensor(sections))

    def pictures(self, pixels: torch.Tensor, grids: tuple[Grid, ...]) -> Pictures:
        """The pictures' tokens in window order."""
        layout = vision_layout(grids, self.shape, self.device)
        unit = self.merge**2
        kernel = self.vision.patch_embed.proj.weight
        patches = pixels.view(-1, unit, pixels.shape[1])[layout.order].view(pixels.shape).to(kernel.dtype)
        x = F.linear(patches, kernel.flatten(1))  # the convolution's stride is its size: a matrix product
        if self.wide:
            x = x.float()
        for _, after in self.through_blocks(x, layout):
            x = after
        merger = self.vision.merger
        y = rms_norm(x, merger.ln_q.weight, NORM_EPSILON).view(-1, unit * x.shape[1])
        return Pictures(merger.mlp(y), layout.order)

    def vision_block(self, x: torch.Tensor, number: int, layout: VisionLayout) -> torch.Tensor:
        block = self.vision.blocks[number]
        attention, mlp = block.attn, block.mlp
        gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        qkv = self.run(vision_before, x, (block.norm1.weight, attention.qkv.weight, attention.qkv.bias))
        if number in self.full_blocks:
            q, k, v = self.run(rotate_vision, qkv, layout.cos, layout.sin, self.heads)
            attended = attend(q, k, v, layout.pictures, causal=False).flatten(1)
        else:
            attended = attend_windows(qkv, layout, self.heads)
        weights = (attention.proj.weight, attention.proj.bias, block.norm2.weight, gate.weight, gate.bias, up.weight,
                   up.bias, down.weight, down.bias)  # fmt: skip
        result: torch.Tensor = self.run(vision_after, x, attended, weights)
        return result
