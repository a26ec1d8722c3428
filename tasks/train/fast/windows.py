"""Triton kernels of the vision tower's window attention, rotary embedding included, forward and backward.

A window has at most 64 patches, so one program computes one window of one head in registers: it reads the query, key
and value straight from the output of the qkv product and writes the gradient back in the same form. General attention
kernels spend most of their time on such short sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(first, second, cos, sin):  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _scores(q1, q2, k1, k2, columns, length, scale):  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    scores = (tl.dot(q1, tl.trans(k1)) + tl.dot(q2, tl.trans(k2))) * scale
    scores = tl.where(columns[None, :] < length, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _forward(  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    qkv, cos, sin, offsets, out, scale,
    HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    start = tl.load(offsets + tl.program_id(0)).to(tl.int64)
    length = tl.load(offsets + tl.program_id(0) + 1).to(tl.int64) - start
    head = tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mask = (row[:, None] < length) & (column[None, :] < HALF)
    place = (start + row)[:, None]
    at = qkv + place * (6 * HEADS * HALF) + head * 2 * HALF + column[None, :]
    kept = qkv.dtype.element_ty
    c = tl.load(cos + place * HALF + column[None, :], mask, 0.0)
    s = tl.load(sin + place * HALF + column[None, :], mask, 0.0)
    step = 2 * HEADS * HALF
    q1, q2 = _rotate(tl.load(at, mask, 0.0).to(tl.float32), tl.load(at + HALF, mask, 0.0).to(tl.float32), c, s)
    at += step
    k1, k2 = _rotate(tl.load(at, mask, 0.0).to(tl.float32), tl.load(at + HALF, mask, 0.0).to(tl.float32), c, s)
    at += step
    v1, v2 = tl.load(at, mask, 0.0), tl.load(at + HALF, mask, 0.0)
    weights = _scores(q1.to(kept), q2.to(kept), k1.to(kept), k2.to(kept), row, length, scale).to(kept)
    to = out + place * step + head * 2 * HALF + column[None, :]
    tl.store(to, tl.dot(weights, v1).to(kept), mask)
    tl.store(to + HALF, tl.dot(weights, v2).to(kept), mask)


@triton.jit
def _backward(  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    qkv, cos, sin, offsets, grad, grad_qkv, scale,
    HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    start = tl.load(offsets + tl.program_id(0)).to(tl.int64)
    length = tl.load(offsets + tl.program_id(0) + 1).to(tl.int64) - start
    head = tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mask = (row[:, None] < length) & (column[None, :] < HALF)
    place = (start + row)[:, None]
    step = 2 * HEADS * HALF
    inside = head * 2 * HALF + column[None, :]
    at = qkv + place * (3 * step) + inside
    kept = qkv.dtype.element_ty
    c = tl.load(cos + place * HALF + column[None, :], mask, 0.0)
    s = tl.load(sin + place * HALF + column[None, :], mask, 0.0)
    q1, q2 = _rotate(tl.load(at, mask, 0.0).to(tl.float32), tl.load(at + HALF, mask, 0.0).to(tl.float32), c, s)
    at += step
    k1, k2 = _rotate(tl.load(at, mask, 0.0).to(tl.float32), tl.load(at + HALF, mask, 0.0).to(tl.float32), c, s)
    at += step
    q1, q2, k1, k2 = q1.to(kept), q2.to(kept), k1.to(kept), k2.to(kept)
    weights = _scores(q1, q2, k1, k2, row, length, scale)
    weights = tl.where(row[:, None] < length, weights, 0.0)  # rows beyond the window add nothing to dv and dk
    g1 = tl.load(grad + place * step + inside, mask, 0.0)
    g2 = tl.load(grad + place * step + inside + HALF, mask, 0.0)
    v1, v2 = tl.load(at, mask, 0.0), tl.load(at + HALF, mask, 0.0)
    to = grad_qkv + place * (3 * step) + inside
    turned = tl.trans(weights.to(kept))
    tl.store(to + 2 * step, tl.dot(turned, g1).to(kept), mask)
    tl.store(to + 2 * step + HALF, tl.dot(turned, g2).to(kept), mask)
    wanted = tl.dot(g1, tl.trans(v1)) + tl.dot(g2, tl.trans(v2))
    scores = (weights * (wanted - tl.sum(weights * wanted, axis=1)[:, None]) * scale).to(kept)
    # The rotation is orthogonal: its transpose is the rotation by the negative angle.
    d1, d2 = _rotate(tl.dot(scores, k1), tl.dot(scores, k2), c, -s)
    tl.store(to, d1.to(kept), mask)
    tl.store(to + HALF, d2.to(kept), mask)
    turned = tl.trans(scores)
    d1, d2 = _rotate(tl.dot(turned, q1), tl.dot(turned, q2), c, -s)
    tl.store(to + step, d1.to(kept), mask)
    tl.store(to + step + HALF, d2.to(kept), mask)


def _sizes(heads: int, half: int, longest: int) -> dict[str, int]:
    return {
        "HEADS": heads,
        "HALF": half,
        "ROWS": max(16, triton.next_power_of_2(longest)),
        "WIDTH": max(16, triton.next_power_of_2(half)),
    }


class WindowAttention(torch.autograd.Function):
    """`apply(qkv, cos, sin, offsets, longest, heads)`: qkv is patches x (3 * heads * head_dim), so is its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        heads: int,
    ) -> torch.Tensor:
        qkv = qkv.contiguous()
        half = cos.shape[1]
        out = torch.empty(qkv.shape[0], 2 * heads * half, dtype=qkv.dtype, device=qkv.device)
        sizes = _sizes(heads, half, longest)
        _forward[(len(offsets) - 1, heads)](qkv, cos, sin, offsets, out, (2 * half) ** -0.5, **sizes, num_warps=4)
        ctx.save_for_backward(qkv, cos, sin, offsets)
        ctx.sizes = sizes
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv, cos, sin, offsets = ctx.saved_tensors
        out = torch.empty_like(qkv)
        sizes = ctx.sizes
        scale = (2 * sizes["HALF"]) ** -0.5
        grid = (len(offsets) - 1, sizes["HEADS"])
        _backward[grid](qkv, cos, sin, offsets, grad.contiguous(), out, scale, **sizes, num_warps=4)
        return out, None, None, None, None, None
