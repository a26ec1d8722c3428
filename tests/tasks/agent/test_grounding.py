"""Right for the right reason: what is stated is there, and tools support the answer."""

import json
from typing import Any

import pytest

from schemas.settings.reward import RewardSettings
from tasks.agent.environment import Trajectory
from tasks.agent.grounding import ground, tool_support
from tasks.reward.answer import Address
from tasks.reward.outcome import Truth

PARIS = Truth(48.8566, 2.3522, Address("France", "Île-de-France", "Paris"))
ANSWER = "<answer>Country: France\nCity: Paris\nLatitude: 48.8566\nLongitude: 2.3522</answer>"
NEAR = {"results": [{"display_name": "Rue de Rivoli", "lat": 48.86, "lon": 2.34}]}
FAR = {"results": [{"display_name": "Lyon, France", "lat": 45.76, "lon": 4.84}]}
PAGE = {"results": [{"title": "Bakeries", "content": "One of the oldest bakeries of Paris, on the left bank."}]}
PICTURE = {"type": "image_url", "image_url": {"url": f"sha256:{'0' * 64}.jpg"}}


def told(thought: str, result: dict[str, Any] | None = None, answer: str = ANSWER) -> Trajectory:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "Where?"}]}]
    if result is not None:
        call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "<think>I look.</think>", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": json.dumps(result)})
    messages.append({"role": "assistant", "content": f"<think>{thought}</think>{answer}"})
    return Trajectory(tuple(messages), final_text=messages[-1]["content"])


@pytest.mark.parametrize(
    ("result", "supported"), [(NEAR, True), (PAGE, True), (FAR, False), ({"results": []}, None), (None, None)]
)
def test_tools_support_an_answer_by_point_or_name(result: dict[str, Any] | None, supported: bool | None) -> None:
    assert tool_support(told("So I answer.", result)) is supported
    assert tool_support(told("No idea.", result, "")) is None, "an answer without a place has no support to ask for"


def test_reasons_hold_or_do_not() -> None:
    sign = 'The sign reads "Boulangerie Vasseur".'
    unread = ground(told(sign), PARIS)
    assert (unread.quoted, unread.unseen, unread.is_grounded) == (1, None, True), "nobody read the picture"
    assert ground(told(sign), PARIS, ['"BOULANGERIE VASSEUR"']).unseen == ()
    invented = ground(told(sign), PARIS, ['"Pharmacie"'])
    assert invented.unseen == ('"Boulangerie Vasseur"',) and not invented.is_grounded
    false = ground(told("Traffic keeps to the left here.", NEAR), PARIS)
    assert false.contradicted and false.supported and not false.is_grounded


def test_the_process_reward_pays_support_and_takes_off_what_is_false() -> None:
    assert ground(told("So I answer.", NEAR), PARIS).process_reward == 1
    assert ground(told("So I answer.", FAR), PARIS).process_reward == -1
    assert ground(told("Traffic keeps to the left here.", NEAR), PARIS).process_reward == -1
    assert ground(told("I recognise it."), PARIS).process_reward == 0, "silence earns nothing"


def test_a_term_that_is_off_leaves_models_the_same_ones() -> None:
    assert "grounding" not in RewardSettings().identity()
    assert RewardSettings(grounding=0.3).identity() == {**RewardSettings().identity(), "grounding": 0.3}
