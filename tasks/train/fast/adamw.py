"""Triton kernel of one AdamW step with stochastic rounding of bf16 tensors: each number is read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    # optimizer.hash_bits, on unsigned numbers
    x = (x ^ (x >> 16)) * 2246822507
    x = (x ^ (x >> 13)) * 3266489909
    return x ^ (x >> 16)


@triton.jit
def _store(to, at, x, bits, mask):  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    if to.dtype.element_ty == tl.bfloat16:
        raised = x.to(tl.uint32, bitcast=True) + bits
        x = (raised & 0xFFFF0000).to(tl.float32, bitcast=True).to(tl.bfloat16)
    tl.store(to + at, x, mask)


@triton.jit(do_not_specialize=["seed"])
def _step(  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    weight, grad, first, second, scale, seed, size, rate, correction1, correction2, decay,
    beta1: tl.constexpr, beta2: tl.constexpr, epsilon: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    g = tl.load(grad + at, mask, 0.0).to(tl.float32) * tl.load(scale)
    m = tl.load(first + at, mask, 0.0).to(tl.float32) * beta1 + g * (1 - beta1)
    v = tl.load(second + at, mask, 0.0).to(tl.float32) * beta2 + g * g * (1 - beta2)
    w = tl.load(weight + at, mask, 0.0).to(tl.float32)
    w -= rate * (decay * w + (m / correction1) / (tl.sqrt(v / correction2) + epsilon))
    bits = _mix(at.to(tl.uint32) + seed.to(tl.uint32))
    _store(weight, at, w, bits & 0xFFFF, mask)
    _store(first, at, m, bits >> 16, mask)
    _store(second, at, v, _mix(bits + 1) & 0xFFFF, mask)


def update(
    weight: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor,
    seed: int, rate: float, correction1: float, correction2: float, decay: float,
    beta1: float, beta2: float, epsilon: float,
) -> None:  # fmt: skip
    """The same as optimizer.update for contiguous tensors on a GPU, bf16 or float32."""
    size = weight.numel()
    _step[(triton.cdiv(size, BLOCK),)](
        weight, grad, first, second, scale, seed, size, rate, correction1, correction2, decay,
        beta1=beta1, beta2=beta2, epsilon=epsilon, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
