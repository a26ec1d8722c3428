"""Qwen3-VL, dense or with experts: whole-picture attention, learned positions, features of several vision layers.

What differs from Qwen2.5-VL: the vision tower's norms have a mean and a bias, its MLP no gate, learned positions are
added to its patches (resampled to each picture's grid), and the states after some blocks are added to the language
model's first layers ("deepstack"). The language model normalizes each head's query and key and interleaves time, height
and width in a head. Layers with experts call transformers' own block for them.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from tasks.train.fast.adapters import linear, weight_of
from tasks.train.fast.attention import attend, rotate_vision
from tasks.train.fast.layout import VisionLayout, VisionShape, picture_layout, sent, vision_layout
from tasks.train.fast.model import FastModel, Pictures, Weights, rms_norm, text_after
from tasks.train.fast.packing import Packed
from tasks.train.token_samples import Grid

NORM_EPSILON = 1e-6
WHOLE_PICTURE = 1 << 20  # a window that no picture exceeds


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """In the weight's type, which may be narrower than x's."""
    return F.layer_norm(x.float(), (x.shape[-1],), weight.float(), bias.float(), NORM_EPSILON).to(weight.dtype)


def vision_before(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    norm, norm_bias, qkv, bias = weights
    return F.linear(layer_norm(x, norm, norm_bias), qkv, bias)


def vision_after(x: torch.Tensor, attended: torch.Tensor, weights: Weights) -> torch.Tensor:
    out, out_bias, norm, norm_bias, first, one_bias, two, two_bias = weights
    x = x + F.linear(attended, out, out_bias)
    y = F.gelu(F.linear(layer_norm(x, norm, norm_bias), first, one_bias), approximate="tanh")
    return x + F.linear(y, two, two_bias)


def merge_patches(x: torch.Tensor, weights: Weights, unit: int, norm_merged: bool) -> torch.Tensor:
    """The text tokens of `unit` patches each."""
    norm, norm_bias, first, one_bias, two, two_bias = weights
    merged = x.view(-1, unit * x.shape[-1])
    y = layer_norm(merged, norm, norm_bias) if norm_merged else layer_norm(x, norm, norm_bias).view(merged.shape)
    return F.linear(F.gelu(F.linear(y, first, one_bias)), two, two_bias)


def before_experts(
    x: torch.Tensor, attended: torch.Tensor, weights: Any, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, norm = weights
    x = x + linear(attended, out)
    return x, rms_norm(x, norm, epsilon)


@lru_cache(maxsize=64)
def learned_positions(
    grids: tuple[Grid, ...], side: int, merge: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each patch the four entries of the square table of positions around it, and their bilinear weights."""
    indices, weights = [], []
    for frames, rows, columns in grids:
        _, patches, _ = picture_layout(rows, columns, merge, WHOLE_PICTURE)
        row, column = torch.from_numpy(patches).unbind(1)
        y, x = torch.linspace(0, side - 1, rows)[row], torch.linspace(0, side - 1, columns)[column]
        top, left = y.long(), x.long()
        down, right = (top + 1).clamp(max=side - 1), (left + 1).clamp(max=side - 1)
        dy, dx = y - top, x - left
        corners = [(top, left), (top, right), (down, left), (down, right)]
        shares = [(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx]
        indices += [torch.stack([a * side + b for a, b in corners], 1)] * frames
        weights += [torch.stack(shares, 1)] * frames
    return sent(torch.cat(indices), device), sent(torch.cat(weights), device)


class Qwen3VL(FastModel):
    """Qwen3-VL over packed samples."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.positions_side = round(self.vision.config.num_position_embeddings**0.5)
        self.deep_blocks: list[int] = list(self.vision.config.deepstack_visual_indexes)

    def vision_shape(self) -> VisionShape:
        vision = self.vision.config
        return VisionShape(self.merge, WHOLE_PICTURE, vision.hidden_size // vision.num_heads)

    def rotary_axis(self, sections: list[int]) -> torch.Tensor:
        pair = torch.arange(self.head_dim // 2)
        axis = torch.zeros_like(pair)
        for section in (1, 2):
            axis[(pair % 3 == section) & (pair < 3 * sections[section])] = section
        return axis

    def laid_out(self, batch: Packed) -> Packed:
        if batch.grids:
            learned_positions(batch.grids, self.positions_side, self.merge, self.device)
        return super().laid_out(batch)

    def pictures(self, pixels: torch.Tensor, grids: tuple[Grid, ...]) -> Pictures:
        """The pictures' tokens, and those of the blocks whose states go to the first layers."""
        layout = vision_layout(grids, self.shape, self.device)
        embed = self.vision.patch_embed.proj
        x = F.linear(pixels.to(embed.weight.dtype), embed.weight.flatten(1), embed.bias)
        index, share = learned_positions(grids, self.positions_side, self.merge, self.device)
        x = x + (self.vision.pos_embed(index) * share[:, :, None]).sum(1).to(x.dtype)
        if self.wide:
            x = x.float()
        deep = []
        for number, after in self.through_blocks(x, layout):
            x = after
            if number in self.deep_blocks:
                merger = self.vision.deepstack_merger_list[self.deep_blocks.index(number)]
                deep.append(self._merge(x, merger, norm_merged=True))
        return Pictures(self._merge(x, self.vision.merger, norm_merged=False), deep=tuple(deep))

    def _merge(self, x: torch.Tensor, merger: Any, norm_merged: bool) -> torch.Tensor:
        norm, first, two = merger.norm, merger.linear_fc1, merger.linear_fc2
        weights = (norm.weight, norm.bias, first.weight, first.bias, two.weight, two.bias)
        result: torch.Tensor = self.run(merge_patches, x, weights, self.merge**2, norm_merged)
        return result

    def vision_block(self, x: torch.Tensor, number: int, layout: VisionLayout) -> torch.Tensor:
        block = self.vision.blocks[number]
        attention, up, two = block.attn, block.mlp.linear_fc1, block.mlp.linear_fc2
        first = (block.norm1.weight, block.norm1.bias, attention.qkv.weight, attention.qkv.bias)
        qkv = self.run(vision_before, x, first)
        q, k, v = self.run(rotate_vision, qkv, layout.cos, layout.sin, self.heads)
        attended = attend(q, k, v, layout.pictures, causal=False).flatten(1)
        weights = (attention.proj.weight, attention.proj.bias, block.norm2.weight, block.norm2.bias, up.weight,
                   up.bias, two.weight, two.bias)  # fmt: skip
        result: torch.Tensor = self.run(vision_after, x, attended, weights)
        return result

    def after_attention(
        self, layer: Any, x: torch.Tensor, attended: torch.Tensor, function: Any = text_after
    ) -> torch.Tensor:
        if not hasattr(layer.mlp, "experts"):
            return super().after_attention(layer, x, attended, function)
        out = weight_of(layer.self_attn.o_proj, self.use_adapters)
        x, y = before_experts(x, attended, (out, layer.post_attention_layernorm.weight), self.epsilon)
        chosen: torch.Tensor = layer.mlp(y[None])[0]
        return x + chosen
