"""Thoughts worth learning from: each says what is new, quotes what was seen, and keeps to its own beliefs."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from typing import Any

from infra.offline.chat.agent import next_action
from infra.offline.chat.beliefs import LARGEST, Belief, Guess
from infra.offline.chat.clues import Evidence
from infra.offline.chat.notes import Notes, Tool, note_result, trajectory_dice
from infra.offline.chat.placenames import Place
from infra.offline.chat.protocol import read_request
from infra.offline.chat.sight import TextLine, _Eyes
from tests.infra.offline.chat.test_planner import PAGES, SEEN, SYSTEM, TOOLS, geocode, well_formed


def thoughts(ask: Any, seed: int) -> list[str]:
    """The thoughts of one conversation; empty where a call of it was malformed."""
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": SEEN}]
    said: list[str] = []
    for _ in range(8):
        message = ask("planner", messages, tools=TOOLS, seed=seed, temperature=0.7)["choices"][0]["message"]
        messages.append({key: value for key, value in message.items() if value is not None})
        said.append(re.search(r"<think>(.*)</think>", message["content"], re.DOTALL)[1])  # type: ignore[index]
        if not message.get("tool_calls"):
            return said
        for call in message["tool_calls"]:
            if not well_formed(call["function"]):
                return []
            found = {"search_web": PAGES, "image_zoom_in_tool": {"description": "## Text\n- No writing is visible."}}
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            result = geocode(arguments) if name == "maps_geocode" else found[name]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    raise AssertionError("the planner did not come to an end")


def test_a_thought_says_what_is_new_and_no_two_conversations_are_of_one_mould(ask: Any) -> None:
    told = [said for seed in range(8) if (said := thoughts(ask, seed))]
    assert len(told) >= 4
    for said in told:
        assert len(set(said)) == len(said)
        # Clues are named in the first thought and summed up in the last; between them they are not said again.
        assert "is French" in said[0] and not any("is French" in thought for thought in said[1:-1])
        for before, after in itertools.pairwise(said):
            if "search the web" in before or "search once more" in before:
                assert "A bakery in Villeurbanne, France." in after
            if "I look up Villeurbanne, France" in before:
                assert "The geocoder places Villeurbanne, France at 45.7719, 4.8902" in after
    openings = {said[0].split(".")[0] for said in told} | {said[-1].split(".")[-2] for said in told}
    assert len(openings) >= 4


def test_the_same_doubts_stay_with_a_conversation() -> None:
    body = {
        "model": "planner",
        "temperature": 1,
        "seed": 5,
        "messages": [{"role": "user", "content": SEEN}],
    }
    later = {**body, "messages": [*body["messages"], {"role": "assistant", "content": "a"}, body["messages"][0]]}  # type: ignore[misc]

    def drawn(asked: dict[str, Any]) -> float:
        return trajectory_dice(read_request(asked, {"planner": False}), random.Random(1)).random()

    assert drawn(body) == drawn(later) != drawn({**body, "seed": 6})


def test_a_closer_look_replaces_what_was_misread() -> None:
    far = TextLine("VJooderton Bakery", 0.8, (10, 10, 90, 30))
    other = TextLine("Whitcombe Street", 0.95, (200, 10, 300, 30))
    near = TextLine("Wooderton Bakery", zoomed=True)
    assert Notes(texts=[far, other]).words == ["VJooderton Bakery", "Whitcombe Street"]
    assert Notes(texts=[far, other, near]).words == ["Wooderton Bakery", "Whitcombe Street"]


def test_a_place_is_labelled_with_its_country_once() -> None:
    notes = Notes()
    row = {"lat": 1.0, "lon": 2.0, "display_name": "Lander, Wyoming, United States", "country": "United States"}
    note_result(notes, Tool("maps_geocode"), '{"address": "Lander"}', json.dumps({"results": [row]}))
    assert notes.geocodes[0][1][0].label == "Lander, Wyoming, United States"


def test_the_eyes_report_to_no_host() -> None:
    """OpenVINO's own reporting forks a process that sends; it must not be loaded."""
    _Eyes()
    assert sys.modules.get("openvino_telemetry") is None


def test_a_town_that_is_not_in_front_is_looked_up_for_a_reason() -> None:
    first = Guess(Place("Rouen", 49.4, 1.1, "FR"), 4.0, "a sign names Rouen")
    other = Guess(Place("Cuverville", 49.7, 0.3, "FR"), 3.0, "a page says Cuverville has a Rue Basse")
    large = Guess(Place("Brussels", 50.8, 4.4, "BE"), 2.5, LARGEST)
    tools = [Tool("maps_geocode")]

    def why(address: str) -> str:
        belief = Belief(Evidence(), [first, other, large], [], [address])
        found = next_action(tools, "maps_geocode", Notes(), belief, random.Random(0), 0.0)
        assert found is not None and found[1].value == address
        return found[1].why

    assert why("Rue Basse, Rouen, France") == "A geocoder gives coordinates, so I look up Rue Basse, Rouen, France."
    assert "Cuverville is not out of the question (a page says Cuverville has a Rue Basse)" in why("Cuverville, France")
    assert "Brussels is not out of the question (the largest city of Belgium)" in why("Brussels, Belgium")
