"""verl's reward hook: `reward.custom_reward_function.path` is this file, `.name` is `compute_score`.

verl knows no exclusion: a rollout that an outage excludes comes back with a NaN score. `set_apart` makes of a batch's
scores and group ids what verl's own `compute_grpo_outcome_advantage` then handles rightly.
"""

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from schemas.load import load_config
from tasks.reward.outcome import Excluded
from tasks.reward.score import Reward, reward_for
from tasks.services import connect


@lru_cache(maxsize=8)
def _reward(recipe: str, config: str | None) -> Reward:
    loaded = load_config(file=config)
    needed = ("geocoder", "chat") if recipe == "geoagent" else ("chat",)
    return reward_for(recipe, loaded.train.grpo.reward, connect(loaded.services, os.environ, needed))


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | Mapping[str, Any],
    extra_info: Mapping[str, Any] | None = None,
    config: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """The reward of one rollout. `data_source` is the recipe, `ground_truth` an object with lat, lon, country, …"""
    truth = json.loads(ground_truth) if isinstance(ground_truth, str) else dict(ground_truth)
    outage = (extra_info or {}).get("tool_outage")
    recipe = data_source.rpartition("/")[2]
    [found] = _reward(recipe, config).many([solution_str], [truth], [str(outage) if outage else None])
    if isinstance(found, Excluded):
        return {"score": math.nan, "excluded": True, "reason": found.reason, "unread": False}
    return {"score": found.reward, "excluded": False, "reason": found.reason or "", "unread": found.reason is not None}


def set_apart(scores: Sequence[float], groups: Sequence[Hashable]) -> tuple[list[float], list[Hashable]]:
    """Scores and group ids in which an excluded rollout is a group of its own with score 0.

    verl gives a group of one the mean 0 and the deviation 1: the rollout's advantage is 0 and it takes no part in the
    statistics of the group it left.
    """
    kept = [0.0 if math.isnan(score) else float(score) for score in scores]
    apart = [("excluded", at) if math.isnan(s) else g for at, (s, g) in enumerate(zip(scores, groups, strict=True))]
    return kept, apart
