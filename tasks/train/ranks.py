"""The processes that train one model together: which one this is, what they share, and torch's FSDP2 over them.

Every layer and vision block is one unit, the rest is another. FSDP2 gathers a unit's weights where its module is
called, and sums and shares out the gradients after its backward. The packed path computes with the weights itself, so
it calls each module with the function to compute (`FastModel.call`).

Every method is called by all of them in the same order. A process that trains alone is rank 0 of 1: nothing is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from schemas.errors import GeofixError
from tasks.train.fast.model import FastModel
from tasks.train.fast.parts import whole
from tasks.train.trainable import TrainableModel

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    count: int = 1

    @classmethod
    def joined(cls) -> Ranks:
        """Of the process group that Ray Train has set up."""
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, values: Sequence[T]) -> list[T]:
        """This process's share of what all of them work on: every value belongs to exactly one."""
        return list(values[self.rank :: self.count])

    def totals(self, *values: float) -> list[float]:
        """Sums over all processes."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=_device())
        dist.all_reduce(sums)
        return [float(total) for total in sums.tolist()]

    def most(self, value: int) -> int:
        """The largest of all processes' values."""
        if self.count == 1:
            return value
        largest = torch.tensor(value, dtype=torch.int64, device=_device())
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest.item())

    def add_up(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum the gradients of parameters that every process holds whole.

        The vision tower has none after a step without a picture. It is given zeros, in a single process too: Adam's
        moments and the weights then move the same however many processes share the step.
        """
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if self.count > 1:
                dist.all_reduce(p.grad)

    def of_all(self, values: Sequence[T]) -> list[T]:
        """What all processes hold, in the order of their ranks."""
        if self.count == 1:
            return list(values)
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, list(values))
        return [value for part in gathered for value in part]

    def of_first(self, value: T | None) -> T:
        """What rank 0 holds."""
        if self.count == 1:
            assert value is not None
            return value
        broadcast = [value]
        dist.broadcast_object_list(broadcast, src=0)
        assert broadcast[0] is not None
        return broadcast[0]

    def wait(self) -> None:
        """Until all have come here, such as after rank 0 has written a file."""
        if self.count > 1:
            dist.barrier()


ALONE = Ranks()


def _device() -> torch.device:
    """Where the process group's messages lie."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def shard(fast: TrainableModel, ranks: Ranks) -> None:
    """Share the model out, in place."""
    if not isinstance(fast, FastModel):
        raise GeofixError(
            f"train.shard=full shares out the layers of a packed path, and '{fast.model.config.model_type}' has none: "
            "set train.shard=none"
        )
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
def gathered(fast: TrainableModel) -> Iterator[None]:
    """All weights whole on every process, for as long as answers are drawn; no gradient may be computed inside."""
    if not isinstance(fast, FastModel) or not fast.is_sharded:
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
    full_state = {}
    for name, tensor in state.items():
        gathered = whole(tensor)
        if ranks.is_first:
            full_state[name] = gathered.cpu() if isinstance(tensor, DTensor) else gathered
    return full_state
