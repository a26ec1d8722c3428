"""What a model is trained on, as token ids: conversations, and prompts with their completions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Grid = tuple[int, int, int]  # frames, rows and columns in patches
IGNORED = -100  # the label of a token that is not trained, as in transformers


@dataclass(frozen=True)
class Sample:
    """One conversation as token ids, with its pictures as the image processor gives them."""

    ids: Sequence[int]
    labels: Sequence[int]  # as long as ids; IGNORED where the token is not the assistant's
    pixels: torch.Tensor | None = None  # patches x values
    grids: tuple[Grid, ...] = ()
    seed: int | None = None  # of what is drawn after it, where `Sampling.seeded`; None: any


@dataclass(frozen=True)
class Completion:
    """What followed a prompt: the policy's tokens and, with tools, what the tools answered."""

    ids: Sequence[int]
    is_policy: Sequence[bool]  # which tokens the policy wrote
    pixels: torch.Tensor | None = None  # of pictures that tools returned
    grids: tuple[Grid, ...] = ()


@dataclass(frozen=True)
class Group:
    """A prompt and some of its completions."""

    prompt: Sample
    completions: tuple[Completion, ...]

    @property
    def tokens(self) -> int:
        return len(self.prompt.ids) + sum(len(completion.ids) for completion in self.completions)
