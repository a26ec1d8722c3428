"""Keys and values of groups of rollouts: one prefix for each group, one suffix for each rollout, in fixed buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tasks.train.fast.attention import flash_with_log_sum, has_flash


@dataclass
class GroupCache:
    """Buffers for `groups` groups of `size` rollouts. All shapes stay fixed, so a CUDA graph can be replayed."""

    prefix: torch.Tensor  # 2 x layers x (groups * prompt capacity) x key heads x head_dim
    suffix: torch.Tensor  # 2 x layers x (groups * size * completion capacity) x key heads x head_dim
    prefix_used: torch.Tensor  # int32, tokens of each group's prompt
    suffix_used: torch.Tensor  # int32, tokens of each rollout
    prefix_ends: tuple[torch.Tensor, torch.Tensor]  # offsets of queries and of keys, for the prefix
    suffix_ends: tuple[torch.Tensor, torch.Tensor]
    size: int
    prompt: int
    completion: int

    @classmethod
    def make(
        cls, layers: int, heads: int, head_dim: int, groups: int, size: int, prompt: int, completion: int,
        like: torch.Tensor,
    ) -> GroupCache:  # fmt: skip
        rollouts = groups * size

        def offsets(count: int, step: int) -> torch.Tensor:
            return torch.arange(count + 1, dtype=torch.int32, device=like.device) * step

        return cls(
            prefix=like.new_zeros(2, layers, groups * prompt, heads, head_dim),
            suffix=like.new_zeros(2, layers, rollouts * completion, heads, head_dim),
            prefix_used=torch.ones(groups, dtype=torch.int32, device=like.device),
            suffix_used=torch.zeros(rollouts, dtype=torch.int32, device=like.device),
            prefix_ends=(offsets(groups, size), offsets(groups, prompt)),
            suffix_ends=(offsets(rollouts, 1), offsets(rollouts, completion)),
            size=size,
            prompt=prompt,
            completion=completion,
        )

    def now(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the next token of every rollout goes, and how many tokens it has then."""
        place = self.suffix_ends[1][:-1].long() + self.suffix_used.clamp(max=self.completion - 1)
        return place, (self.suffix_used + 1).clamp(max=self.completion)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, place: torch.Tensor) -> None:
        """One token of every rollout."""
        self.suffix[0, layer].index_copy_(0, place, k)
        self.suffix[1, layer].index_copy_(0, place, v)

    def attend(self, layer: int, q: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Attention of one query for each rollout over its group's prefix and its own suffix.

        Both parts are computed apart and joined by their log-sums, so the prefix is read once for a group.
        """
        shared, one_sum = _part(q, self.prefix[:, layer], self.prefix_ends, self.prefix_used, self.size, self.prompt)
        two, two_sum = _part(q, self.suffix[:, layer], self.suffix_ends, used, 1, self.completion)
        share = torch.sigmoid(one_sum - two_sum)[..., None]
        return (shared.float() * share + two.float() * (1 - share)).to(q.dtype)


def _part(
    q: torch.Tensor, stored: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor], used: torch.Tensor, queries: int,
    keys: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of each run of `queries` queries over the first `used` of its `keys` keys, and its log-sum-exp."""
    k, v = stored[0], stored[1]
    scale = q.shape[-1] ** -0.5
    if has_flash(q):
        return flash_with_log_sum(q, k, v, ends, (queries, keys), used)
    heads = k.shape[1]
    grouped = q.view(len(used), queries, heads, -1, q.shape[-1])
    scores = torch.einsum("nqhgd,nkhd->nqhgk", grouped, k.view(len(used), keys, heads, -1)).float() * scale
    outside = torch.arange(keys, device=q.device) >= used[:, None]
    scores = scores.masked_fill(outside[:, None, None, None], float("-inf"))
    out = torch.einsum("nqhgk,nkhd->nqhgd", scores.softmax(-1).to(q.dtype), v.view(len(used), keys, heads, -1))
    return out.reshape(q.shape), scores.logsumexp(-1).reshape(q.shape[:2])
