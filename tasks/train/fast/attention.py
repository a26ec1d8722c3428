"""Attention inside the segments of a packed tensor.

On a GPU: cuDNN where all segments are of one length (1.6 times as fast as FlashAttention 2 on an H200), torch's own
FlashAttention over variable lengths otherwise. Elsewhere SDPA, segment by segment. The aten operator behind
`torch.nn.attention.varlen.varlen_attn` is called itself: it is differentiable, takes fewer key heads than query heads,
and its arguments are the same in torch 2.11 and 2.13, where the public function's are not.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasks.train.fast.layout import Segments, VisionLayout

# cuDNN plans each new shape for about a second: worth it for shapes that come back, and for no more than these.
CUDNN_SHAPES = 32
CUDNN_LEAST = 1024  # tokens; below it there is little to gain
_planned: set[tuple[int, ...]] = set()


def has_flash(tensor: torch.Tensor) -> bool:
    """Whether FlashAttention can take this tensor."""
    return tensor.is_cuda and tensor.dtype in (torch.bfloat16, torch.float16)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, causal: bool, keys: Segments | None = None
) -> torch.Tensor:
    """Attention of q (tokens x heads x head_dim) over k and v, inside each segment.

    `keys` are the segments of k and v where they are longer than those of q: the queries are then the last tokens of
    their segment, as a completion is after its prompt.
    """
    if not has_flash(q):
        return _each(q, k, v, segments, causal, keys or segments)
    if keys is None and _is_planned(q, segments):
        return _together(q, k, v, segments, causal)
    keys = keys or segments
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, segments.offsets, keys.offsets, segments.longest, keys.longest, 0.0, causal, False,
        scale=q.shape[-1] ** -0.5,
    )[0]  # fmt: skip
    return out


def flash_with_log_sum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int, int], used: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """FlashAttention of each run of queries over the first `used` of its keys, and its log-sum-exp.

    `ends` are the offsets of the runs of queries and of keys, `longest` their lengths.
    """
    out, log_sum = torch.ops.aten._flash_attention_forward(
        q, k, v, *ends, *longest, 0.0, False, False, scale=q.shape[-1] ** -0.5, seqused_k=used
    )[:2]
    if log_sum.ndim == 3:  # sequences x heads x queries instead of heads x all queries
        log_sum = log_sum[:, :, : longest[0]].permute(1, 0, 2).reshape(q.shape[1], -1)
    return out, log_sum.T


def _each(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, causal: bool, keys: Segments
) -> torch.Tensor:
    if keys is segments and len(set(segments.lengths)) == 1:  # equal segments: one call for all of them
        count = len(segments.lengths)
        query, key, value = (
            tensor.view(count, segments.longest, *tensor.shape[1:]).transpose(1, 2) for tensor in (q, k, v)
        )
        whole = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
        return whole.transpose(1, 2).reshape(q.shape)
    outs = []
    lengths = (segments.lengths, keys.lengths, keys.lengths)
    for parts in zip(*(tensor.split(list(n)) for tensor, n in zip((q, k, v), lengths, strict=True)), strict=True):
        query, key, value = (part.transpose(0, 1)[None] for part in parts)
        rows, columns = query.shape[2], key.shape[2]
        mask = None
        if causal and rows != columns:
            mask = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=True
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def _is_planned(q: torch.Tensor, segments: Segments) -> bool:
    if segments.longest < CUDNN_LEAST or len(set(segments.lengths)) != 1:
        return False
    key = (len(segments.lengths), segments.longest, q.shape[1], q.shape[2])
    if key not in _planned and len(_planned) < CUDNN_SHAPES:
        _planned.add(key)
    return key in _planned


def _together(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, causal: bool) -> torch.Tensor:
    count = len(segments.lengths)
    query, key, value = (
        tensor.view(count, segments.longest, *tensor.shape[1:]).transpose(1, 2) for tensor in (q, k, v)
    )
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).reshape(q.shape)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding; cos and sin hold one value for each pair (tokens x head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotate_vision(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Query, key and value (patches x heads x head_dim) of a vision block, rotated in float32 as transformers does."""
    q, k, v = qkv.view(qkv.shape[0], 3, heads, -1).unbind(1)
    return rotate(q.float(), cos, sin).to(q.dtype), rotate(k.float(), cos, sin).to(k.dtype), v


def attend_windows(qkv: torch.Tensor, layout: VisionLayout, heads: int) -> torch.Tensor:
    """Rotary embedding and attention inside each window, in one kernel where there is one."""
    windows = layout.windows
    if has_flash(qkv):
        from tasks.train.fast.windows import WindowAttention

        result: torch.Tensor = WindowAttention.apply(
            qkv, layout.cos, layout.sin, windows.offsets, windows.longest, heads
        )
        return result
    q, k, v = rotate_vision(qkv, layout.cos, layout.sin, heads)
    return attend(q, k, v, windows, causal=False).flatten(1)
