"""Qwen2.5-VL's forward pass over packed samples, with the weights of a plain transformers model.

Each layer is two compiled functions with attention between them. They take tensors, so all layers share one compiled
graph. Adapters (LoRA) put other modules in place of the weights read here and are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from schemas.errors import GeofixError
from tasks.train.fast.attention import attend, attend_windows, rotate, rotate_vision
from tasks.train.fast.layout import Segments, VisionLayout, VisionShape, vision_layout
from tasks.train.fast.loss import cross_entropy
from tasks.train.fast.packing import Packed

Weights = tuple[torch.Tensor, ...]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def text_before(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Weights, epsilon: float, head_dim: int
) -> Weights:
    """Rotated query and key, and value (tokens x heads x head_dim)."""
    norm, wq, bq, wk, bk, wv, bv = weights
    y = rms_norm(x, norm, epsilon)
    q, k, v = (F.linear(y, w, b).view(len(x), -1, head_dim) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def text_after(x: torch.Tensor, attended: torch.Tensor, weights: Weights, epsilon: float) -> torch.Tensor:
    out, norm, gate, up, down = weights
    x = x + F.linear(attended, out)
    y = rms_norm(x, norm, epsilon)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def vision_before(x: torch.Tensor, weights: Weights, epsilon: float) -> torch.Tensor:
    norm, qkv, bias = weights
    return F.linear(rms_norm(x, norm, epsilon), qkv, bias)


def vision_after(x: torch.Tensor, attended: torch.Tensor, weights: Weights, epsilon: float) -> torch.Tensor:
    out, out_bias, norm, gate, gate_bias, up, up_bias, down, down_bias = weights
    x = x + F.linear(attended, out, out_bias)
    y = rms_norm(x, norm, epsilon)
    return x + F.linear(F.silu(F.linear(y, gate, gate_bias)) * F.linear(y, up, up_bias), down, down_bias)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One compiled graph for all layers that call the function with the same shapes."""
    return torch.compile(function)


class FastModel:
    """Computes with `model`'s parameters: whatever trains or loads the model trains or loads this."""

    def __init__(self, model: Any, compile_layers: bool | None = None, checkpoint_vision: bool = False) -> None:
        parts = model.model
        self.model, self.text, self.vision = model, parts.language_model, parts.visual
        text, vision = self.text.config, self.vision.config
        if text.use_sliding_window:
            raise GeofixError("fast training knows no sliding-window attention; set use_sliding_window to false")
        if type(self.text.layers[0].self_attn.q_proj) is not torch.nn.Linear:
            raise GeofixError("fast training takes plain weights, not adapters; train with lora unset")
        self.device = self.text.embed_tokens.weight.device
        self.compile_layers = self.device.type == "cuda" if compile_layers is None else compile_layers
        self.checkpoint_vision = checkpoint_vision
        self.image_token: int = model.config.image_token_id
        self.merge: int = vision.spatial_merge_size
        self.head_dim: int = text.hidden_size // text.num_attention_heads
        self.heads: int = vision.num_heads
        self.full_blocks = frozenset(vision.fullatt_block_indexes)
        self.shape = VisionShape(
            self.merge, vision.window_size // self.merge // vision.patch_size, vision.hidden_size // vision.num_heads
        )
        theta, sections = text.rope_parameters["rope_theta"], text.rope_parameters["mrope_section"]
        if text.rope_parameters.get("rope_type", "default") not in ("default", "mrope"):
            raise GeofixError(f"fast training knows rope type 'default', not '{text.rope_parameters['rope_type']}'")
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        self.frequency = (1.0 / theta**exponents).to(self.device)
        # Which of time, height and width turns each pair of a head.
        self.axis = torch.repeat_interleave(torch.arange(len(sections)) % 3, torch.tensor(sections)).to(self.device)
        self.epsilon: float = text.rms_norm_eps
        if any(abs(block.norm1.variance_epsilon - 1e-6) > 1e-12 for block in self.vision.blocks):
            raise GeofixError("fast training expects the vision tower's norms to use epsilon 1e-6")

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return (compiled(function) if self.compile_layers else function)(*arguments)

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine (tokens x head_dim / 2) in the weights' type, as transformers rounds them."""
        angles = positions.T.float()[:, self.axis] * self.frequency
        kind = self.text.embed_tokens.weight.dtype
        return angles.cos().to(kind), angles.sin().to(kind)

    def pictures(self, pixels: torch.Tensor, layout: VisionLayout) -> torch.Tensor:
        """The pictures' tokens in window order (`layout.order`)."""
        vision = self.vision
        unit = self.merge**2
        kernel = vision.patch_embed.proj.weight
        patches = pixels.view(-1, unit, pixels.shape[1])[layout.order].view(pixels.shape).to(kernel.dtype)
        x = F.linear(patches, kernel.flatten(1))  # the convolution's stride is its size: a matrix product
        for number, block in enumerate(vision.blocks):
            is_full = number in self.full_blocks
            if self.checkpoint_vision and torch.is_grad_enabled():
                x = checkpoint(self._block, x, block, layout, is_full, use_reentrant=False)
            else:
                x = self._block(x, block, layout, is_full)
        merger = vision.merger
        y = rms_norm(x, merger.ln_q.weight, 1e-6).view(-1, unit * x.shape[1])
        merged: torch.Tensor = merger.mlp(y)
        return merged

    def _block(self, x: torch.Tensor, block: Any, layout: VisionLayout, is_full: bool) -> torch.Tensor:
        attention, mlp = block.attn, block.mlp
        gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        qkv = self.run(vision_before, x, (block.norm1.weight, attention.qkv.weight, attention.qkv.bias), 1e-6)
        if is_full:
            q, k, v = self.run(rotate_vision, qkv, layout.cos, layout.sin, self.heads)
            attended = attend(q, k, v, layout.pictures, causal=False).flatten(1)
        else:
            attended = attend_windows(qkv, layout, self.heads)
        weights = (attention.proj.weight, attention.proj.bias, block.norm2.weight, gate.weight, gate.bias, up.weight,
                   up.bias, down.weight, down.bias)  # fmt: skip
        result: torch.Tensor = self.run(vision_after, x, attended, weights, 1e-6)
        return result

    def embed(self, batch: Packed) -> torch.Tensor:
        """The tokens' embeddings, the pictures' in place."""
        x: torch.Tensor = self.text.embed_tokens(batch.ids)
        if batch.pixels is not None:
            layout = vision_layout(batch.grids, self.shape, self.device)
            x = x.index_copy(0, batch.picture_at[layout.order], self.pictures(batch.pixels, layout).to(x.dtype))
        return x

    def before_weights(self, layer: Any) -> Weights:
        a = layer.self_attn
        return (layer.input_layernorm.weight, a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.k_proj.bias,
                a.v_proj.weight, a.v_proj.bias)  # fmt: skip

    def after_weights(self, layer: Any) -> Weights:
        m = layer.mlp
        return (layer.self_attn.o_proj.weight, layer.post_attention_layernorm.weight, m.gate_proj.weight,
                m.up_proj.weight, m.down_proj.weight)  # fmt: skip

    def hidden(
        self, batch: Packed, keep: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None
    ) -> torch.Tensor:
        """Last hidden states before the final norm; `keep(layer, k, v)` sees every layer's keys and values."""
        x = self.embed(batch)
        cos, sin = self.rotary(batch.positions)
        segments = Segments.of(batch.lengths, self.device)
        for number, layer in enumerate(self.text.layers):
            q, k, v = self.run(text_before, x, cos, sin, self.before_weights(layer), self.epsilon, self.head_dim)
            if keep is not None:
                keep(number, k, v)
            attended = attend(q, k, v, segments, causal=True).flatten(1)
            x = self.run(text_after, x, attended, self.after_weights(layer), self.epsilon)
        return x

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.text.norm.weight, self.epsilon)

    def loss(self, batch: Packed, divisor: float | None = None) -> torch.Tensor:
        """Mean cross-entropy of the trained tokens; only they go through the final norm and the head."""
        x = self.hidden(batch)[batch.predict_at]
        return cross_entropy(self.norm(x), self.model.lm_head.weight, batch.targets, divisor)
