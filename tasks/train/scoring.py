"""A recipe's reward of rollouts, as GRPO and validation ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.settings.reward import RewardSettings
from tasks.reward.outcome import Excluded
from tasks.reward.score import reward_for
from tasks.services import Connections
from tasks.train.rollouts.source import Episode, Judged, Scorer


def recipe_scorer(
    recipe: str, settings: RewardSettings | None = None, connections: Connections | None = None
) -> Scorer:
    """The recipe's reward with the services it asks; refused at once where it has none."""
    reward = reward_for(recipe, settings, connections)

    def scorer(pairs: Sequence[tuple[Episode, Mapping[str, Any]]]) -> list[Judged]:
        episodes, rows = [episode for episode, _ in pairs], [row for _, row in pairs]
        found = reward.many([one.answer for one in episodes], rows, [one.outage for one in episodes])
        return [
            Judged(None, one.reason) if isinstance(one, Excluded) else Judged(one.reward, one.reason, one.parts)
            for one in found
        ]

    return scorer
