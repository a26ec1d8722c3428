"""What the loop, its programs and the rollouts ask of a model that is trained.

Two kinds answer: the packed path of the families in `fast/`, and the plain path (plain.py) of any other model that
transformers opens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from tasks.train.token_samples import Group, Sample


class TrainableModel(ABC):
    """Computes losses with `model`'s parameters: whatever trains or loads the model trains or loads this."""

    model: Any
    vision: Any  # the module that sees; training may leave it as it is
    device: torch.device
    is_sharded = False  # over processes (ranks.py)
    pixel_type: torch.dtype | None  # of a sample's pictures on the device; None: they stay where they are

    @abstractmethod
    def pack(self, samples: Sequence[Sample], length: int | None = None) -> Any:
        """Samples of one forward pass, on the device; filled up to `length` where that saves compiling."""

    def step_flops(self, samples: Sequence[Sample], trained: int) -> float:
        """Operations of a step on these samples in which every weight is trained; 0: not known."""
        return 0.0

    @abstractmethod
    def pack_groups(self, groups: Sequence[Group]) -> Any:
        """Prompts and completions of one forward pass, on the device; its `lengths` are those that are computed."""

    @abstractmethod
    def loss(self, batch: Any, divisor: float | None = None) -> torch.Tensor:
        """Mean cross-entropy of the trained tokens, or their sum over `divisor`."""

    @abstractmethod
    def log_probs(self, batch: Any, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each token the policy wrote its log-probability at this temperature, and the entropy (no gradient)."""

    @abstractmethod
    def blank_sample(self) -> Sample:
        """A sample without a label, for a process that has none of its own in a pass."""

    @abstractmethod
    def alike(self, model: Any, use_adapters: bool = True) -> TrainableModel:
        """The same path over another model of the kind, or over this one without its adapters."""
