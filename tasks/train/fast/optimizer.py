"""AdamW on bf16 weights and bf16 states, written back with stochastic rounding.

A bf16 number has eight bits: nearest rounding drops every update under 1/512 of the weight, and a second moment that
decays by 1/1000 a step never decays. Rounding up with the probability of the lost part keeps the mean of both. A 7B
model with gradients then takes 8 bytes a weight instead of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_KEEP = -65536  # the upper 16 bits of a float32: a bf16 number


def hash_bits(x: torch.Tensor) -> torch.Tensor:
    """32 mixed bits of each int32 (murmur3's finalizer): enough for rounding, and six operations instead of Philox."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * -2048144789
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -1028477387
    return x ^ ((x >> 16) & 0xFFFF)


def round_stochastic(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """float32 to bf16: up with the probability of what is cut off, by 16 random bits for each number."""
    return ((x.view(torch.int32) + bits) & _KEEP).view(torch.float32).to(torch.bfloat16)


def update(
    weight: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor,
    seed: int, rate: float, correction1: float, correction2: float, decay: float,
    beta1: float, beta2: float, epsilon: float,
) -> None:  # fmt: skip
    """One step of one tensor, in place; `scale` multiplies the gradient."""
    g = grad.float() * scale
    m = first.float() * beta1 + g * (1 - beta1)
    v = second.float() * beta2 + g * g * (1 - beta2)
    w = weight.float()
    w = w - rate * (decay * w + (m / correction1) / (torch.sqrt(v / correction2) + epsilon))
    if weight.dtype != torch.bfloat16:
        weight.copy_(w)
        first.copy_(m)
        second.copy_(v)
        return
    places = torch.arange(weight.numel(), dtype=torch.int32, device=weight.device).view(weight.shape)
    bits = hash_bits(places + seed)
    weight.copy_(round_stochastic(w, bits & 0xFFFF))
    first.copy_(round_stochastic(m, (bits >> 16) & 0xFFFF))
    second.copy_(round_stochastic(v, hash_bits(bits + 1) & 0xFFFF))


def _fastest(parameter: torch.Tensor) -> Callable[..., None]:
    if parameter.is_cuda and parameter.dtype == torch.bfloat16:
        from tasks.train.fast import adamw  # Triton is there only with CUDA

        return adamw.update
    return update


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW with states in the weights' type: bf16 with stochastic rounding, or plain float32.

    The same seed gives the same rounding; `max_norm` clips the gradients' global norm without a synchronization.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_norm: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.max_norm, self.seed = max_norm, seed
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("StochasticAdamW takes no closure")
        self.steps += 1
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not trained:
            return
        device = trained[0].device
        scale = torch.ones((), device=device)
        if self.max_norm is not None:
            norm = torch.stack(torch._foreach_norm([p.grad for p in trained])).float().norm()
            scale = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0)
        number = 0
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            numbers = (group["lr"], 1 - beta1**self.steps, 1 - beta2**self.steps, group["weight_decay"])
            for p in group["params"]:
                number += 1
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["first"], state["second"] = torch.zeros_like(p), torch.zeros_like(p)
                tensors = (p, p.grad.contiguous(), state["first"], state["second"])
                seed = _seed(self.seed, self.steps, number)
                _fastest(p)(*tensors, scale, seed, *numbers, beta1, beta2, group["eps"])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps, "seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.steps, self.seed = state_dict["steps"], state_dict["seed"]


def _seed(*numbers: int) -> int:
    """A signed 32-bit number that differs for each seed, step and tensor."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 0x9E3779B1 + number + 0x7F4A7C15) & 0xFFFFFFFF
        mixed ^= mixed >> 15
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed
