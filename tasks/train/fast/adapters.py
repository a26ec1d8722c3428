"""Low-rank adapters in the fast path: PEFT makes, merges and names them, this file reads their weights.

Only the language model's projections have adapters; experts, which are one tensor a layer, have none. An adapter's
weights are float32: its small steps would be lost in bf16, and they are few.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from schemas.settings.train import LoraSettings

TARGETS = r".*(language_model|text_model\.layers).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
NAME = "default"  # PEFT's name of the one adapter


class Adapted(NamedTuple):
    """A weight with its adapter: x W + scale (x A) B."""

    weight: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor
    scale: float
    dropout: float


Weight = torch.Tensor | Adapted


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer, with its adapter if it has one."""
    if isinstance(weight, torch.Tensor):
        return F.linear(x, weight, bias)
    inner = F.dropout(x, weight.dropout) if weight.dropout else x
    adapted = F.linear(F.linear(inner, weight.down.to(x.dtype)), weight.up.to(x.dtype))
    return F.linear(x, weight.weight, bias) + adapted * weight.scale


def weight_of(module: Any, use_adapters: bool) -> Weight:
    """The weight a linear module computes with."""
    if not hasattr(module, "lora_A"):
        plain: torch.Tensor = module.weight
        return plain
    base: torch.Tensor = module.get_base_layer().weight
    if not use_adapters:
        return base
    dropout = getattr(module.lora_dropout[NAME], "p", 0.0) if module.training else 0.0
    return Adapted(base, module.lora_A[NAME].weight, module.lora_B[NAME].weight, module.scaling[NAME], dropout)


def add_adapters(model: Any, lora: LoraSettings) -> None:
    """Put adapters into the model, in place; only they are trained from then on."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=TARGETS,
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.float()


def merged_state(model: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A model's state with every adapter added to its weight, under the names it had without them."""
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    merged: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        owner = name.split(".base_layer.")[0]
        if ".lora_" in name:
            continue
        if owner in adapted and name.endswith(".base_layer.weight"):
            module = adapted[owner]
            up, down = (state[f"{owner}.lora_{side}.{NAME}.weight"].float() for side in ("B", "A"))
            added = up @ down * module.scaling[NAME]
            tensor = (tensor.float() + added).to(tensor.dtype)
        merged[name.replace(".base_layer.", ".")] = tensor.detach()
    return merged
