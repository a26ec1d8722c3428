"""Vision MLP weights padded to rows of whole 16 bytes.

Qwen2.5-VL's vision MLP is 3,420 wide: its rows are not aligned to 16 bytes, and the fast matrix kernels refuse them.
The added rows and columns are zero, and stay zero: their activations and their gradients are zero.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

MULTIPLE = 64
PADDED_KIND = "qwen2_5_vl"


def pad_vision(model: Any) -> None:
    """Pad the vision MLPs of a model in place. Call it before the optimizer is made."""
    if model.config.model_type != PADDED_KIND:  # Qwen3-VL's is 4,304 wide, which is aligned
        return
    for block in model.model.visual.blocks:
        mlp = block.mlp
        missing = -mlp.gate_proj.weight.shape[0] % MULTIPLE
        if not missing:
            continue
        with torch.no_grad():
            for linear in (mlp.gate_proj, mlp.up_proj):
                linear.weight = nn.Parameter(F.pad(linear.weight, (0, 0, 0, missing)))
                linear.bias = nn.Parameter(F.pad(linear.bias, (0, missing)))
            mlp.down_proj.weight = nn.Parameter(F.pad(mlp.down_proj.weight, (0, missing)))


def plain_state(model: Any, whole: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The model's state with the padding cut off: what `save_pretrained(state_dict=...)` must be given.

    `whole` is the state where the model itself holds parts of it only.
    """
    state: dict[str, torch.Tensor] = {}
    whole = model.state_dict() if whole is None else whole
    if model.config.model_type != PADDED_KIND:
        return dict(whole)
    width = model.config.vision_config.intermediate_size
    for name, tensor in whole.items():
        if "visual.blocks" in name and (".mlp.gate_proj." in name or ".mlp.up_proj." in name):
            tensor = tensor[:width].contiguous()
        elif "visual.blocks" in name and name.endswith(".mlp.down_proj.weight"):
            tensor = tensor[:, :width].contiguous()
        state[name] = tensor
    return state
