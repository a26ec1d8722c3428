"""Triton kernel of one AdamW step on a bf16 tensor with stochastic rounding: each number is read and written once."""

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
def _rounded(x, bits):  # type: ignore[no-untyped-def, unused-ignore]  # Triton evaluates annotations
    raised = x.to(tl.uint32, bitcast=True) + bits
    return (raised & 0xFFFF0000).to(tl.float32, bitcast=True).to(tl.bfloat16)


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
    tl.store(weight + at, _rounded(w, bits & 0xFFFF), mask)
    tl.store(first + at, _rounded(m, bits >> 16), mask)
    tl.store(second + at, _rounded(v, _mix(bits + 1) & 0xFFFF), mask)


def update(
    weight: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor,
    seed: int, rate: float, correction1: float, correction2: float, decay: float,
    beta1: float, beta2: float, epsilon: float,
) -> None:  # fmt: skip
    """The same as optimizer.update for contiguous bf16 tensors on a GPU."""
    size = weight.numel()
    _step[(triton.cdiv(size, BLOCK),)](
        weight, grad, first, second, scale, seed, size, rate, correction1, correction2, decay,
        beta1=beta1, beta2=beta2, epsilon=epsilon, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
