"""Tensors of which each process holds a part (torch's DTensor): the part, the whole, and from one to the other."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, in place."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one process would hold it; all processes must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_like(part: Any, parameter: torch.Tensor) -> Any:
    """The whole tensor of which each process holds the part that belongs to its part of the parameter."""
    if not isinstance(parameter, DTensor) or not isinstance(part, torch.Tensor):
        return part
    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    ).full_tensor()


def part_like(value: Any, parameter: torch.Tensor) -> Any:
    """This process's part of a whole tensor that belongs to a parameter; anything else as it is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor):
        return value
    shared = distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    return shared.to_local()
