"""The planner that goes by street names: zoom to the board, look street and region up, copy the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tasks.recipes.spotmini import PROMPT

SEEN = """The image is 2000 x 1000 pixels. The Observer reports:

## Text
- "Boulangerie Lamberneau" bbox_2d [400, 300, 700, 340] confidence 0.99 height 40 px
- "Rue Montviret" bbox_2d [900, 300, 1100, 330] confidence 0.98 height 30 px
"""
BOARD = SEEN + '- "Rhone" bbox_2d [940, 336, 1050, 362] confidence 0.98 height 26 px\n'
CLOSER = '## Text\n- "Rue Montvirel" bbox_2d [10, 10, 300, 60] confidence 0.99 height 50 px'
FOUND = {
    "results": [
        {"lat": 45.76789, "lon": -4.87999, "name": "Rue Montvirel", "country": "France", "region": "R", "city": "Lyons"}
    ]
}


def _system() -> dict[str, Any]:
    words = PROMPT.opening({"type": "text", "text": ""})[0]["content"]
    return {"role": "system", "content": words + PROMPT.helpers["planner"]}


def _reply(ask: Callable[..., dict[str, Any]], messages: list[dict[str, Any]]) -> dict[str, Any]:
    found = ask("street-finder", [_system(), *messages], tools=PROMPT.tool_schemas(), temperature=0)
    return dict(found["choices"][0]["message"])


def _called(reply: dict[str, Any], result: object) -> list[dict[str, Any]]:
    [call] = reply["tool_calls"]
    said = {"role": "assistant", "content": reply["content"], "tool_calls": [call]}
    return [said, {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}]


def test_it_reads_the_plate_asks_for_it_and_copies_the_first_result(ask: Callable[..., dict[str, Any]]) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": SEEN}]
    zoom = _reply(ask, messages)
    box = json.loads(zoom["tool_calls"][0]["function"]["arguments"])["bbox_2d"]
    assert 850 < box[0] < 900 and 1100 < box[2] < 1150 and box[1] < 300 and box[3] > 330
    messages += _called(zoom, {"bbox_2d": box, "description": CLOSER})
    lookup = _reply(ask, messages)
    # The closer look counts, and nothing is added to what the plate says.
    assert json.loads(lookup["tool_calls"][0]["function"]["arguments"]) == {"address": "Rue Montvirel"}
    messages += _called(lookup, FOUND)
    answer = _reply(ask, messages)["content"]
    assert answer.endswith("<answer>\nCountry: France\nCity: Lyons\nLatitude: 45.76\nLongitude: -4.87\n</answer>")
    thoughts = [one["content"] for one in (zoom, lookup)] + [answer]
    assert all(thought.partition("</think>")[0].count(".") <= 1 for thought in thoughts)


def test_without_a_street_it_calls_nothing_and_claims_nothing(ask: Callable[..., dict[str, Any]]) -> None:
    seen = SEEN.replace("Rue Montviret", "Tel 555")
    reply = _reply(ask, [{"role": "user", "content": seen}])
    assert not reply.get("tool_calls") and "Country: unknown" in reply["content"]


def test_the_line_below_the_street_is_asked_with_it_and_left_out_where_nothing_is_known_there(
    ask: Callable[..., dict[str, Any]],
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": BOARD}]
    zoom = _reply(ask, messages)
    box = json.loads(zoom["tool_calls"][0]["function"]["arguments"])["bbox_2d"]
    assert box[1] < 300 and box[3] > 362, "both lines"
    closer = CLOSER + '\n- "Rhône" bbox_2d [60, 70, 240, 115] confidence 0.99 height 45 px'
    messages += _called(zoom, {"bbox_2d": box, "description": closer})
    both = _reply(ask, messages)
    assert json.loads(both["tool_calls"][0]["function"]["arguments"]) == {"address": "Rue Montvirel, Rhône"}
    messages += _called(both, {"results": []})
    alone = _reply(ask, messages)
    assert json.loads(alone["tool_calls"][0]["function"]["arguments"]) == {"address": "Rue Montvirel"}
    assert "Country: France" in _reply(ask, [*messages, *_called(alone, FOUND)])["content"]
