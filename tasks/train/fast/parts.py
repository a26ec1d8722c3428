"""Where tensors lie: parts of one in several processes (torch's DTensor), and the host's memory beside a GPU."""

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


class HostMemory:
    """Page-locked memory that a GPU copies from and to while it computes; ordinary memory where there is no GPU.

    torch rounds each page-locked tensor up to a power of two: these are cut from pieces of that size.
    """

    PIECE = 2**31

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor that lies there."""
        size, is_pinned = -(-tensor.nbytes // 512) * 512, torch.cuda.is_available()
        if size > len(self._free):
            piece = max(size, self.PIECE) if is_pinned else size
            self._free = torch.empty(piece, dtype=torch.uint8, pin_memory=is_pinned)
        mine, self._free = self._free[: tensor.nbytes], self._free[size:]
        return mine.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
