"""verl's reward hook: `reward.custom_reward_function.path` is a file that imports `compute_score` from here.

verl knows no exclusion: a rollout that an outage excludes comes back with a NaN score, and `verl_estimator.py`, which
the launch configuration of `geofix verl` names, leaves it out of its group.
"""

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from schemas.load import load_config
from tasks.recipes.rewards import Reward, reward_for, reward_services
from tasks.reward.outcome import Excluded
from tasks.services import connect

_LAST_RESPONSE = "</tool_response>"


@lru_cache(maxsize=8)
def _reward(recipe: str, config: str | None) -> Reward:
    loaded = load_config(recipe=recipe, file=config)
    settings = loaded.train.grpo.reward
    asks = reward_services(recipe, settings)
    return reward_for(recipe, settings, connect(loaded.services, os.environ, asks, loaded.models, ()))


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | Mapping[str, Any],
    extra_info: Mapping[str, Any] | None = None,
    config: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """The reward of one rollout. `data_source` is the recipe, `ground_truth` an object with lat, lon, country, …

    verl gives the text of all turns; the answer stands after what the last tool returned, as in our own environment.
    """
    truth = json.loads(ground_truth) if isinstance(ground_truth, str) else dict(ground_truth)
    outage = (extra_info or {}).get("tool_outage")
    recipe = data_source.rpartition("/")[2]
    answer = solution_str.rpartition(_LAST_RESPONSE)[2]
    [score] = _reward(recipe, config).many([answer], [truth], [str(outage) if outage else None])
    if isinstance(score, Excluded):
        return {"score": math.nan, "excluded": True, "reason": score.reason, "unread": False}
    return {"score": score.reward, "excluded": False, "reason": score.reason or "", "unread": score.reason is not None}


def set_apart(scores: Sequence[float], groups: Sequence[Hashable]) -> tuple[list[float], list[Hashable]]:
    """Scores and group ids in which an excluded rollout is a group of its own with score 0.

    verl gives a group of one the mean 0 and the deviation 1: the rollout's advantage is 0 and it takes no part in the
    statistics of the group it left.
    """
    kept = [0.0 if math.isnan(score) else float(score) for score in scores]
    apart = [("excluded", at) if math.isnan(s) else g for at, (s, g) in enumerate(zip(scores, groups, strict=True))]
    return kept, apart
