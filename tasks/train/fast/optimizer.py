"""AdamW on bf16 weights and bf16 states, written back with stochastic rounding; other states and masters as options.

A bf16 number has eight bits: nearest rounding drops every update under 1/512 of the weight, and a second moment that
decays by 1/1000 a step never decays. Rounding up with the probability of the lost part keeps the mean of both. A 7B
model with gradients then takes 8 bytes a weight instead of 16; fp32 masters add 4. States that lie beside the GPU
between two steps leave 4, and change no bit of what is learned.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor

from tasks.train.fast.parts import HostMemory, local, part_like, whole_like

States = Literal["auto", "bf16", "fp32"]

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
    if not any(tensor.dtype == torch.bfloat16 for tensor in (weight, first, second)):
        for tensor, value in ((weight, w), (first, m), (second, v)):
            tensor.copy_(value)
        return
    places = torch.arange(weight.numel(), dtype=torch.int32, device=weight.device).view(weight.shape)
    bits = hash_bits(places + seed)
    lower, upper, third = bits & 0xFFFF, (bits >> 16) & 0xFFFF, hash_bits(bits + 1) & 0xFFFF
    for tensor, value, some in ((weight, w, lower), (first, m, upper), (second, v, third)):
        tensor.copy_(round_stochastic(value, some) if tensor.dtype == torch.bfloat16 else value)


def _fastest(weight: torch.Tensor) -> Any:
    if not weight.is_cuda:
        return update
    from tasks.train.fast import adamw  # Triton is there only with CUDA

    return adamw.update


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW with bf16 tensors rounded at random and float32 tensors as they are.

    `states` is the type of the two moments ("auto": the weights'); `masters` keeps a float32 copy of every bf16 weight,
    which is then the one that is updated. `offload` keeps all of these in the host's memory between two steps. The same
    seed gives the same rounding; `max_norm` clips the gradients' global norm without a synchronization; `last_norm` is
    what it was.
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
        states: States = "auto",
        masters: bool = False,
        offload: bool = False,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.max_norm, self.seed = max_norm, seed
        self.states, self.masters = states, masters
        self._host = HostMemory() if offload else None
        self.steps = 0
        self.last_norm: torch.Tensor | None = None

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
            self.last_norm = self._norm(trained)
            scale = torch.clamp(self.max_norm / (self.last_norm + 1e-6), max=1.0)
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
                    state.update(self._new_state(p))
                own = local(p)
                here = {name: tensor.to(own.device, non_blocking=True) for name, tensor in state.items()}
                weight = here.get("master", own)
                seed = _seed(self.seed, self.steps, number, *_rank(p))
                tensors = (weight, local(p.grad).contiguous(), here["first"], here["second"])
                _fastest(weight)(*tensors, scale, seed, *numbers, beta1, beta2, group["eps"])
                if weight is not own:
                    own.copy_(weight)
                for name, tensor in here.items():
                    if tensor is not state[name]:
                        state[name].copy_(tensor, non_blocking=True)

    def _norm(self, trained: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of all gradients together; where they are shared out, of all processes' parts."""
        norms = torch._foreach_norm([local(p.grad) for p in trained if p.grad is not None])
        norm: torch.Tensor = torch.stack(norms).float().norm()
        if not isinstance(trained[0], DTensor):
            return norm
        square: torch.Tensor = norm.square()
        torch.distributed.all_reduce(square, group=trained[0].device_mesh.get_group())
        return torch.sqrt(square)

    def _new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        p = local(parameter)
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}.get(self.states, p.dtype)
        if self.masters and self.states == "auto":
            kind = torch.float32
        state = {name: torch.zeros_like(p, dtype=kind) for name in ("first", "second")}
        if self.masters and p.dtype != torch.float32:
            state["master"] = p.float()
        return self._placed(state, p.device)

    def _placed(self, state: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
        """A parameter's states where they lie between two steps."""
        if self._host is not None:
            return {name: self._host.keep(tensor) for name, tensor in state.items()}
        return {name: tensor.to(device) for name, tensor in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """Whole states, whatever is shared out: all processes must ask."""
        if self._host is not None and torch.cuda.is_available():
            torch.cuda.synchronize()  # the last step's states may still be on their way
        base_state = super().state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, state in base_state["state"].items():
            base_state["state"][number] = {
                name: whole_like(tensor, parameters[number]) for name, tensor in state.items()
            }
        return {**base_state, "steps": self.steps, "seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # torch's own would cast every state to its weight's type.
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, p in enumerate(parameters):
            if number in state_dict["state"]:
                stored = {name: part_like(tensor, p) for name, tensor in state_dict["state"][number].items()}
                self.state[p] = self._placed(stored, p.device)
        self.steps, self.seed = state_dict["steps"], state_dict["seed"]


def _rank(p: torch.Tensor) -> tuple[int, ...]:
    """Other random bits for every part of a tensor."""
    return (p.device_mesh.get_local_rank(),) if isinstance(p, DTensor) else ()


def _seed(*numbers: int) -> int:
    """A signed 32-bit number that differs for each seed, step and tensor."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 0x9E3779B1 + number + 0x7F4A7C15) & 0xFFFFFFFF
        mixed ^= mixed >> 15
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed
