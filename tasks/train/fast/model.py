"""The forward pass of a vision-language model over packed samples, with the weights of a plain transformers model.

`FastModel` is what the families (qwen2_5_vl.py, qwen3_vl.py) share; `families.fast_model` chooses one. A layer is two
compiled functions with attention between them. They take tensors, so all layers share one compiled graph. Adapters
(LoRA) of PEFT in the language model are read from where it puts them (adapters.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from schemas.errors import GeofixError
from tasks.train.fast.adapters import Weight, linear, weight_of
from tasks.train.fast.attention import attend, rotate
from tasks.train.fast.flops import step_flops
from tasks.train.fast.grouped import pack_groups
from tasks.train.fast.layout import Segments, VisionLayout, VisionShape, vision_layout
from tasks.train.fast.loss import cross_entropy, token_log_probs
from tasks.train.fast.packing import Packed, pack
from tasks.train.token_samples import IGNORED, Grid, Group, Sample
from tasks.train.trainable import TrainableModel

GRAPHS = 64  # compiled versions of one function, at most
COMPILED_FROM = 200_000_000  # parameters; compiling takes a minute or more, which a smaller model does not win back
Weights = tuple[torch.Tensor, ...]
Layer = tuple[Weight | None, ...]


class Pictures(NamedTuple):
    """What the vision tower gives: the pictures' tokens, and what it adds to the first layers of the language model."""

    tokens: torch.Tensor
    order: torch.Tensor | None = None  # the picture token that stands at each place; None: as they came
    deep: tuple[torch.Tensor, ...] = ()  # one tensor like `tokens` for each of the first layers


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """In the weight's type, which may be narrower than x's."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(weight.dtype)


def text_before(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Any, epsilon: float, head_dim: int
) -> Weights:
    """Rotated query and key, and value (tokens x heads x head_dim)."""
    norm, wq, bq, wk, bk, wv, bv, q_norm, k_norm = weights
    y = rms_norm(x, norm, epsilon)
    q, k, v = (linear(y, w, b).view(len(x), -1, head_dim) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    if q_norm is not None:
        q, k = rms_norm(q, q_norm, epsilon), rms_norm(k, k_norm, epsilon)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def text_after(x: torch.Tensor, attended: torch.Tensor, weights: Any, epsilon: float) -> torch.Tensor:
    out, norm, gate, up, down = weights
    x = x + linear(attended, out)
    y = rms_norm(x, norm, epsilon)
    return x + linear(F.silu(linear(y, gate)) * linear(y, up), down)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One compiled graph for all layers that call the function with the same shapes."""
    # Training, its reference and rollouts compile one function each for their own shapes; beyond the usual limit of 8
    # torch would fall back to uncompiled code, which keeps three times the activations.
    dynamo: Any = torch._dynamo.config  # type: ignore[attr-defined, unused-ignore]
    dynamo.recompile_limit = max(dynamo.recompile_limit, GRAPHS)
    return torch.compile(function)


def is_worth_compiling(model: Any, device: torch.device) -> bool:
    """Whether compiled layers save more time than compiling them takes."""
    return device.type == "cuda" and sum(weight.numel() for weight in model.parameters()) >= COMPILED_FROM


class FastModel(TrainableModel):
    """Computes packed samples with `model`'s parameters."""

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
        self.device = self.text.embed_tokens.weight.device
        if compile_layers is None:
            compile_layers = is_worth_compiling(model, self.device)
        self.compile_layers = compile_layers
        self.checkpoint_vision, self.checkpoint_text = checkpoint_vision, checkpoint_text
        self.wide = wide  # sums of layers in float32: bf16 would round them after every layer
        self.use_adapters = use_adapters  # False: the model as it was before its adapters, GRPO's reference
        self.image_token: int = model.config.image_token_id
        self.merge: int = vision.spatial_merge_size
        self.heads: int = vision.num_heads
        self.head_dim: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.epsilon: float = text.rms_norm_eps
        self.has_experts = bool(getattr(text, "num_experts", 0))
        rope = text.rope_parameters
        if rope.get("rope_type", "default") not in ("default", "mrope"):
            raise GeofixError(f"fast training knows rope type 'default', not '{rope['rope_type']}'")
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        self.frequency = (1.0 / rope["rope_theta"] ** exponents).to(self.device)
        self.axis = self.rotary_axis(rope["mrope_section"]).to(self.device)
        self.shape = self.vision_shape()

    @abstractmethod
    def vision_shape(self) -> VisionShape:
        """The numbers that decide where patches go."""

    @abstractmethod
    def rotary_axis(self, sections: list[int]) -> torch.Tensor:
        """Which of time, height and width turns each pair of a head."""

    @abstractmethod
    def pictures(self, pixels: torch.Tensor, grids: tuple[Grid, ...]) -> Pictures:
        """The pictures' tokens."""

    @property
    def pixel_type(self) -> torch.dtype:  # type: ignore[override]
        kind: torch.dtype = self.vision.patch_embed.proj.weight.dtype
        return kind

    def step_flops(self, samples: Sequence[Sample], trained: int) -> float:
        grids = [grid for sample in samples for grid in sample.grids]
        return step_flops(self.model.config, [len(sample.ids) for sample in samples], grids, trained)

    def pack(self, samples: Sequence[Sample], length: int | None = None) -> Packed:
        return self.laid_out(pack(samples, self.image_token, self.merge, length).to(self.device))

    def pack_groups(self, groups: Sequence[Group]) -> Packed:
        return self.laid_out(pack_groups(groups, self.image_token, self.merge).to(self.device))

    def laid_out(self, batch: Packed) -> Packed:
        """The batch, its tables on the device: they are made while the step before is still computed."""
        for lengths in (batch.lengths, batch.key_lengths):
            if lengths is not None:
                Segments.of(lengths, self.device)
        if batch.grids:
            vision_layout(batch.grids, self.shape, self.device)
        return batch

    def blank_sample(self) -> Sample:
        """The smallest picture and one token."""
        patches = torch.zeros(self.merge**2, self.vision.patch_embed.proj.weight.shape[1:].numel())
        return Sample([self.image_token, 0], [IGNORED] * 2, patches, ((1, self.merge, self.merge),))

    def alike(self, model: Any, use_adapters: bool = True) -> FastModel:
        return type(self)(model, compile_layers=self.compile_layers, use_adapters=use_adapters)

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

    def through_blocks(self, x: torch.Tensor, layout: VisionLayout) -> Iterator[tuple[int, torch.Tensor]]:
        """The vision tower's hidden states after each block."""
        for number, block in enumerate(self.vision.blocks):
            if self.checkpoint_vision and torch.is_grad_enabled():
                x = checkpoint(self.call, block, self.vision_block, x, number, layout, use_reentrant=False)
            else:
                x = self.call(block, self.vision_block, x, number, layout)
            yield number, x

    @abstractmethod
    def vision_block(self, x: torch.Tensor, number: int, layout: VisionLayout) -> torch.Tensor:
        """One block of the vision tower."""

    def embed(self, batch: Packed) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """The tokens' embeddings, the pictures' in place; where those are, and what is added there after layers."""
        x: torch.Tensor = self.text.embed_tokens(batch.ids)
        at = batch.picture_at
        deep: tuple[torch.Tensor, ...] = ()
        if batch.pixels is not None:
            tokens, order, deep = self.pictures(batch.pixels, batch.grids)
            at = at if order is None else at[order]
            x = x.index_copy(0, at, tokens.to(x.dtype))
        return x.float() if self.wide else x, at, deep

    def before_weights(self, layer: Any) -> Layer:
        a = layer.self_attn
        q, k, v = (weight_of(projection, self.use_adapters) for projection in (a.q_proj, a.k_proj, a.v_proj))
        norms = (a.q_norm.weight, a.k_norm.weight) if hasattr(a, "q_norm") else (None, None)
        return (layer.input_layernorm.weight, q, a.q_proj.bias, k, a.k_proj.bias, v, a.v_proj.bias, *norms)

    def after_weights(self, layer: Any) -> Layer:
        m = layer.mlp
        out, gate, up, down = (
            weight_of(projection, self.use_adapters)
            for projection in (layer.self_attn.o_proj, m.gate_proj, m.up_proj, m.down_proj)
        )
        return (out, layer.post_attention_layernorm.weight, gate, up, down)

    def before_attention(
        self, layer: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, function: Any = text_before
    ) -> Weights:
        """Query, key and value of a layer. torch.compile keeps graphs by function: decoding gives its own."""
        projected: Weights = self.run(function, x, cos, sin, self.before_weights(layer), self.epsilon, self.head_dim)
        return projected

    def after_attention(
        self, layer: Any, x: torch.Tensor, attended: torch.Tensor, function: Any = text_after
    ) -> torch.Tensor:
        """The rest of a layer."""
        result: torch.Tensor = self.run(function, x, attended, self.after_weights(layer), self.epsilon)
        return result

    def hidden(
        self, batch: Packed, keep: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None
    ) -> torch.Tensor:
        """Last hidden states before the final norm; `keep(layer, k, v)` sees every layer's keys and values."""
        x, picture_at, deep = self.embed(batch)
        cos, sin = self.rotary(batch.positions)
        for number, layer in enumerate(self.text.layers):
            if self.checkpoint_text and torch.is_grad_enabled():
                x = checkpoint(self.call, layer, self._layer, x, cos, sin, layer, batch, use_reentrant=False)
            else:
                seen = None if keep is None else partial(keep, number)
                x = self.call(layer, self._layer, x, cos, sin, layer, batch, seen)
            if number < len(deep):
                x = x.index_add(0, picture_at, deep[number].to(x.dtype))
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
        q, k, v = self.before_attention(layer, x, cos, sin)
        if keep is not None:
            keep(k, v)
        segments, keys = Segments.of(batch.lengths, self.device), None
        if batch.keys_at is not None and batch.key_lengths is not None:
            keys = Segments.of(batch.key_lengths, self.device)
            k, v = k[batch.keys_at], v[batch.keys_at]
        attended = attend(q, k, v, segments, causal=True, keys=keys).flatten(1)
        return self.after_attention(layer, x, attended)

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
