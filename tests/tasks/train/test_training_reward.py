"""GRPO is given the recipe's reward with the truth of each sample."""

import json
from dataclasses import replace

import pytest

from schemas.errors import GeofixError
from schemas.settings.reward import RewardSettings
from tasks.train.rollouts.source import Episode, Judged, recipe_scorer
from tasks.train.token_samples import Completion

ROW = {"lat": 48.0, "lon": 2.0, "country": "France", "region": "Île-de-France", "city": "Paris"}


def episode(text: str, outage: str | None = None) -> Episode:
    return Episode(Completion([], []), True, text, outage=outage)


def test_the_reward_is_spotagents() -> None:
    texts = (
        "<answer>\nLatitude: 48.0\nLongitude: 2.0\n</answer>",
        "<answer>\nLatitude: -48.0\nLongitude: 2.0\n</answer>",
        "no idea",
        "",
    )
    found = recipe_scorer("spotagent")([(episode(text), ROW) for text in texts])
    assert [one.reward for one in found] == [1.0, 0.0, 0.0, 0.0]
    assert [one.reason is not None for one in found] == [False, False, True, True]


def test_the_levels_of_the_truth_reach_the_reward() -> None:
    text = "<answer>Country: France\nRegion: Île-de-France\nCity: Paris</answer>"
    [found] = recipe_scorer("geovista")([(episode(text), ROW)])
    assert found.reward == 4.0, "beta squared for the city"


def test_an_outage_excludes_and_an_unknown_recipe_is_refused() -> None:
    [found] = recipe_scorer("spotagent")([(episode("48, 2", "search_unavailable"), ROW)])
    assert found == Judged(None, "search_unavailable")
    with pytest.raises(GeofixError, match="has no reward to train with"):
        recipe_scorer("smilegeo")


def test_grounding_is_a_term_that_can_be_switched_on() -> None:
    said = "<answer>Latitude: 48.0\nLongitude: 2.0</answer>"
    places = json.dumps({"results": [{"lat": 48.0, "lon": 2.0, "name": "here"}]})
    call = {"id": "c", "type": "function", "function": {"name": "maps_geocode", "arguments": "{}"}}
    messages = (
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": places},
        {"role": "assistant", "content": said},
    )
    with_tools, alone = replace(episode(said), messages=messages), episode(said)
    off, on = (recipe_scorer("spotagent", RewardSettings(grounding=weight)) for weight in (0.0, 0.5))
    rows = [(with_tools, ROW), (alone, ROW)]
    before, after = ([one.reward for one in scorer(rows)] for scorer in (off, on))
    assert after == [before[0] + 0.5, before[1]], "a rollout without tools has nothing to look at"
    assert on(rows)[0].parts["grounding"] == 0.5 and "grounding" not in off(rows)[0].parts
