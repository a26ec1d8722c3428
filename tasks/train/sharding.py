"""A model's parameters, gradients and optimizer states shared out over processes (torch's FSDP2).

Every layer and vision block is one unit, the rest is another. FSDP2 gathers a unit's weights where its module is
called, and sums and shares out the gradients after its backward. The packed path computes with the weights itself, so
it calls each module with the function to compute (`FastModel.call`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tasks.train.fast.model import FastModel
from tasks.train.fast.parts import whole
from tasks.train.ranks import Ranks


def shard(fast: FastModel, ranks: Ranks) -> None:
    """Share the model out, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(fast.device.type, (ranks.count,))
    units = [*fast.text.layers, *fast.vision.blocks, fast.model]
    if isinstance(fast.text.embed_tokens.weight, DTensor):
        fast.is_sharded = True  # another view of a model that is shared out already
        return
    for unit in units:
        fully_shard(unit, mesh=mesh)
        unit.set_gradient_divide_factor(1.0)  # a loss is divided by the tokens of all processes: gradients add up
        unit.set_force_sum_reduction_for_comms(True)
        unit.forward = _call
    fast.is_sharded = True


def _call(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


@contextlib.contextmanager
def gathered(fast: FastModel) -> Iterator[None]:
    """All weights whole on every process, for as long as answers are drawn; no gradient may be computed inside."""
    if not fast.is_sharded:
        yield
        return
    units = [*fast.text.layers, *fast.vision.blocks, fast.model]
    for unit in units:
        unit.unshard()
    fast.is_sharded = False
    try:
        yield
    finally:
        fast.is_sharded = True
        for unit in units:
            unit.reshard()


def whole_state(state: Mapping[str, torch.Tensor], ranks: Ranks) -> dict[str, torch.Tensor]:
    """A state with whole tensors on rank 0, one after another; empty elsewhere."""
    found = {}
    for name, tensor in state.items():
        one = whole(tensor)
        if ranks.is_first:
            found[name] = one.cpu() if isinstance(tensor, DTensor) else one
    return found
