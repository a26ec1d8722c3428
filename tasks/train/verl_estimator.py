"""GRPO's advantage inside verl, with rollouts that an outage excluded left out of their groups.

verl imports this where `VERL_USE_EXTERNAL_MODULES` names it; `algorithm.adv_estimator` is then `geofix_grpo`.
"""

from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

from tasks.train.verl_hook import set_apart

NAME = "geofix_grpo"


@register_adv_est(NAME)  # type: ignore[untyped-decorator]
def grpo_without_outages(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's own GRPO advantage over rollouts whose score is a number; those of NaN have the advantage 0."""
    scores, groups = set_apart(token_level_rewards.sum(dim=-1).tolist(), list(index))
    names = np.empty(len(groups), dtype=object)
    names[:] = groups
    rewards = torch.zeros_like(token_level_rewards)
    rewards[:, -1] = torch.tensor(scores, dtype=rewards.dtype)
    advantages: tuple[torch.Tensor, torch.Tensor] = compute_grpo_outcome_advantage(rewards, response_mask, names)
    return advantages
