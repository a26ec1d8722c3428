"""Qwen2.5-VL's forward pass over packed samples, with the weights of a plain transformers model.

Each layer is two compiled functions with attention between them. They take tensors, so all layers share one compiled
graph. Adapters (LoRA) of PEFT in the language model are read from where it puts them (adapters.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from schemas.errors import GeofixError
from tasks.train.fast.adapters import Weight, linear, weight_of
from tasks.train.fast.attention import attend, attend_windows, rotate, rotate_vision
from tasks.train.fast.layout import Segments, VisionLayout, VisionShape, vision_layout
from tasks.train.fast.loss import cross_entropy, token_log_probs
from tasks.train.fast.packing import Packed

GRAPHS = 64  # compiled versions of one function, at most
Weights = tuple[torch.Tensor, ...]
Layer = tuple[Weight, ...]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """In the weight's type, which may be narrower than x's."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(weight.dtype)


def text_before(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Any, epsilon: float, head_dim: int
) -> Weights:
    """Rotated query and key, and value (tokens x heads x head_dim)."""
    norm, wq, bq, wk, bk, wv, bv = weights
    y = rms_norm(x, norm, epsilon)
    q, k, v = (linear(y, w, b).view(len(x), -1, head_dim) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def text_after(x: torch.Tensor, attended: torch.Tensor, weights: Any, epsilon: float) -> torch.Tensor:
    out, norm, gate, up, down = weights
    x = x + linear(attended, out)
    y = rms_norm(x, norm, epsilon)
    return x + linear(F.silu(linear(y, gate)) * linear(y, up), down)


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
    # Training, its reference and rollouts compile one function each for their own shapes; beyond the usual limit of 8
    # torch would fall back to uncompiled code, which keeps three times the activations.
    dynamo: Any = torch._dynamo.config  # type: ignore[attr-defined, unused-ignore]
    dynamo.recompile_limit = max(dynamo.recompile_limit, GRAPHS)
    return torch.compile(function)


class FastModel:
    """Computes with `model`'s parameters: whatever trains or loads the model trains or loads this."""

    def __init__(
        self,
        model: Any,
        compile_layers: bool | None = None,
        checkpoint_vision: bool = False,
        checkpoint_text: bool = False,
        use_adapters: bool = True,
        wide: bool = False,
    ) -> None:
        parts = model.model
        self.model, self.text, self.vision = model, parts.language_model, parts.visual
        text, vision = self.text.config, self.vision.config
        if text.use_sliding_window:
            raise GeofixError("fast training knows no sliding-window attention; set use_sliding_window to false")
        self.device = self.text.embed_tokens.weight.device
        self.compile_layers = self.device.type == "cuda" if compile_layers is None else compile_layers
        self.checkpoint_vision, self.checkpoint_text = checkpoint_vision, checkpoint_text
        self.wide = wide  # sums of layers in float32: bf16 would round them after every layer
        self.is_sharded = False  # over processes (tasks/train/ranks.py)
        self.use_adapters = use_adapters  # False: the model as it was before its adapters, GRPO's reference
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

    def call(self, module: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function with the module's weights at hand: where they are shared out, the module gathers them."""
        return module(function, *arguments) if self.is_sharded else function(*arguments)

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
        if self.wide:
            x = x.float()
        for number, block in enumerate(vision.blocks):
            is_full = number in self.full_blocks
            if self.checkpoint_vision and torch.is_grad_enabled():
                x = checkpoint(self.call, block, self._block, x, block, layout, is_full, use_reentrant=False)
            else:
                x = self.call(block, self._block, x, block, layout, is_full)
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
        return x.float() if self.wide else x

    def before_weights(self, layer: Any) -> Layer:
        a = layer.self_attn
        q, k, v = (weight_of(one, self.use_adapters) for one in (a.q_proj, a.k_proj, a.v_proj))
        return (layer.input_layernorm.weight, q, a.q_proj.bias, k, a.k_proj.bias, v, a.v_proj.bias)

    def after_weights(self, layer: Any) -> Layer:
        m = layer.mlp
        out, gate, up, down = (
            weight_of(one, self.use_adapters) for one in (layer.self_attn.o_proj, m.gate_proj, m.up_proj, m.down_proj)
        )
        return (out, layer.post_attention_layernorm.weight, gate, up, down)

    def hidden(
        self, batch: Packed, keep: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None
    ) -> torch.Tensor:
        """Last hidden states before the final norm; `keep(layer, k, v)` sees every layer's keys and values."""
        x = self.embed(batch)
        cos, sin = self.rotary(batch.positions)
        for number, layer in enumerate(self.text.layers):
            if self.checkpoint_text and torch.is_grad_enabled():
                x = checkpoint(self.call, layer, self._layer, x, cos, sin, layer, batch, use_reentrant=False)
            else:
                seen = None if keep is None else partial(keep, number)
                x = self.call(layer, self._layer, x, cos, sin, layer, batch, seen)
        return x

    def _layer(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        layer: Any,
        batch: Packed,
        keep: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        q, k, v = self.run(text_before, x, cos, sin, self.before_weights(layer), self.epsilon, self.head_dim)
        if keep is not None:
            keep(k, v)
        segments, keys = Segments.of(batch.lengths, self.device), None
        if batch.keys_at is not None and batch.key_lengths is not None:
            keys = Segments.of(batch.key_lengths, self.device)
            k, v = k[batch.keys_at], v[batch.keys_at]
        attended = attend(q, k, v, segments, causal=True, keys=keys).flatten(1)
        result: torch.Tensor = self.run(text_after, x, attended, self.after_weights(layer), self.epsilon)
        return result

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.text.norm.weight, self.epsilon)

    def loss(self, batch: Packed, divisor: float | None = None) -> torch.Tensor:
        """Mean cross-entropy of the trained tokens; only they go through the final norm and the head."""
        result: torch.Tensor = self.call(self.model, self._loss, batch, divisor)
        return result

    def _loss(self, batch: Packed, divisor: float | None) -> torch.Tensor:
        x = self.hidden(batch)[batch.predict_at]
        return cross_entropy(self.norm(x), self.model.lm_head.weight, batch.targets, divisor)

    def log_probs(self, batch: Packed, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each target its log-probability at this temperature, and the entropy (no gradient) where it was drawn."""
        result: tuple[torch.Tensor, torch.Tensor] = self.call(self.model, self._log_probs, batch, temperature)
        return result

    def _log_probs(self, batch: Packed, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.hidden(batch)[batch.predict_at]
        return token_log_probs(self.norm(x), self.model.lm_head.weight, batch.targets, temperature)
