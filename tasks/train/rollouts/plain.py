"""Rollouts of a model without a packed path: one prompt after another, by transformers' `generate`."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tasks.train.plain import NO_TOKEN, PlainModel
from tasks.train.rollouts.engine import Rollout
from tasks.train.rollouts.sampling import Sampling
from tasks.train.token_samples import Sample


class PlainEngine:
    """`generate(prompts)` yields (number of the prompt, its G rollouts), as the embedded engine does."""

    def __init__(
        self,
        model: PlainModel,
        group_size: int,
        groups: int,
        prompt_tokens: int,
        new_tokens: int,
        end_tokens: Iterable[int],
        sampling: Sampling,
    ) -> None:
        self.model, self.size, self.groups = model, group_size, groups
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens
        self.ends, self.sampling = sorted(end_tokens), sampling

    def generate(self, prompts: Iterable[Sample]) -> Iterator[tuple[int, list[Rollout]]]:
        waiting = iter(prompts)
        return self.serve(lambda waits: next(waiting, None))

    @torch.no_grad()
    def serve(self, take: Callable[[bool], Sample | None]) -> Iterator[tuple[int, list[Rollout]]]:
        """Rollouts of prompts as they come; nothing is decoded meanwhile, so each is waited for."""
        count = 0
        while (prompt := take(True)) is not None:
            yield count, self._rollouts(prompt)
            count += 1

    def _rollouts(self, prompt: Sample) -> list[Rollout]:
        drawn = self.sampling.temperature > 0
        options: dict[str, Any] = {"do_sample": drawn}
        if drawn:
            options |= {
                "temperature": self.sampling.temperature, "top_k": self.sampling.top_k, "top_p": self.sampling.top_p
            }  # fmt: skip
        if self.model.image_token != NO_TOKEN:  # a picture's placeholder in a completion would need a picture
            options["suppress_tokens"] = [self.model.image_token]
        with torch.random.fork_rng(enabled=self.sampling.seeded):
            if self.sampling.seeded:
                torch.seed() if prompt.seed is None else torch.manual_seed(prompt.seed)
            ids = self.model.model.generate(
                **self.model.inputs(prompt, self.size), **options, max_new_tokens=self.new_tokens, num_beams=1,
                repetition_penalty=1.0, eos_token_id=self.ends, pad_token_id=self.ends[0], use_cache=True,
            )  # fmt: skip
        return [self._rollout(row[len(prompt.ids) :]) for row in ids.tolist()]

    def _rollout(self, ids: list[int]) -> Rollout:
        end = next((place for place, token in enumerate(ids) if token in self.ends), None)
        ids = ids if end is None else ids[: end + 1]
        return Rollout(ids, [math.nan] * len(ids), end is not None)
