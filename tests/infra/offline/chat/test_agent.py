"""The agent: sees, calls tools by their schemas, reads crops in its next thought, answers as the prompt demands."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from PIL import Image

from infra.offline.chat.answer_form import Answer, answer_body, shown_keys
from infra.offline.chat.notes import Tool
from infra.offline.chat.placenames import division_of_area
from infra.offline.facts import area_code
from infra.offline.gazetteer import admin1_names
from tasks.agent.tools import TOOLS

LINES = """Write your thoughts inside <think> tags. You may make at most 6 tool calls.
Write the final answer inside <answer> ... </answer>. It must include:
Country: ...
City: ...
Latitude: ... (decimal degrees)
Longitude: ... (decimal degrees)"""
SPOT = (("image_zoom_in_tool", "bbox_2d", "array"), ("search_web", "query", "string"),
        ("maps_geocode", "address", "string"))  # fmt: skip
MAPS = (("image_zoom_tool", "bbox_2d", "array"), ("poi_input_tips", "text", "string"),
        ("poi_keyword_search", "keyword", "string"), ("poi_detail_query", "id", "string"),
        ("static_map_query", "center", "array"), ("satellite_map_query", "center", "array"))  # fmt: skip


def tools(named: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "",
                "parameters": {"type": "object", "properties": {field: {"type": kind}}, "required": [field]},
            },
        }
        for name, field, kind in named
    ]


def converse(
    ask: Any, scenes: Any, picture: Image.Image, system: str, named: Any, results: dict[str, Any], **options: Any
) -> tuple[list[dict[str, Any]], list[tuple[str, Any]]]:
    """The whole conversation and its calls; a result is JSON, or a picture."""
    told = [{"role": "system", "content": system}, scenes.message(picture)]
    calls: list[tuple[str, Any]] = []
    for _ in range(9):
        message = ask("agent", told, tools=tools(named), **options)["choices"][0]["message"]
        told.append({key: value for key, value in message.items() if value is not None})
        if not message.get("tool_calls"):
            return told, calls
        for call in message["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            calls.append((name, arguments))
            result = results.get(name, {"error": "nothing was found"})
            result = result(arguments) if callable(result) else result
            content: Any = json.dumps(result) if not isinstance(result, Image.Image) else [
                {"type": "text", "text": json.dumps(arguments)},
                {"type": "image_url", "image_url": {"url": scenes.uri(result)}},
            ]  # fmt: skip
            told.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    raise AssertionError("the agent did not come to an end")


def test_what_a_zoom_shows_is_read_in_the_next_thought_and_the_answer_has_the_prompts_form(
    ask: Any, scenes: Any
) -> None:
    sharp = scenes.draw(["Mairie de Villeurbanne", "Rue Montviret"], (4000, 2000))
    small = sharp.resize((560, 280))

    def zoom(arguments: dict[str, Any]) -> Image.Image:
        left, top, right, bottom = arguments["bbox_2d"]
        assert 0 <= left < right <= 560 and 0 <= top < bottom <= 280  # pixels of the picture it was shown
        return Image.Image.crop(sharp, tuple(int(side * 4000 / 560) for side in (left, top, right, bottom)))

    places = {"results": [{"lat": 45.7719, "lon": 4.8902, "name": "Villeurbanne, France", "country_code": "fr"}]}
    results = {"image_zoom_in_tool": zoom, "search_web": {"results": []}, "maps_geocode": places}
    told, calls = converse(ask, scenes, small, LINES, SPOT, results, temperature=0)
    assert calls[0][0] == "image_zoom_in_tool"
    after = next(told[i + 1]["content"] for i, m in enumerate(told) if m["role"] == "tool")
    assert re.search(r'The zoom shows: .*"(?:Mairie de Villeurbanne|Rue Montviret)"', after)
    answer = re.search(r"<answer>\s*(.*?)\s*</answer>", told[-1]["content"], re.DOTALL)
    assert answer is not None
    lines = answer.group(1).splitlines()
    assert [line.split(":")[0] for line in lines] == ["Country", "City", "Latitude", "Longitude"]
    assert "Villeurbanne" in lines[1] and abs(float(lines[2].split(":")[1]) - 45.77) < 0.1


def test_map_tools_are_bound_by_their_schemas(ask: Any, scenes: Any) -> None:
    found = {"id": "B0AD3", "name": "Boulangerie Lamberneau", "lat": 45.7719, "lon": 4.8902,
             "district": "France, Villeurbanne"}  # fmt: skip
    results = {
        "poi_input_tips": {"tips": [{key: found[key] for key in ("id", "name", "district")}]},
        "poi_keyword_search": {"pois": [found]},
        "poi_detail_query": {"poi": found},
        "static_map_query": scenes.draw(["Rue Montviret"]),
        "satellite_map_query": scenes.draw([]),
    }
    system = LINES.split("Write the final")[0] + (
        'End with <answer>{"lat": 0.0, "lon": 0.0, "city": "...", "country": "..."}</answer>. At most 8 turns in all.'
    )
    picture = scenes.draw(["Boulangerie Lamberneau", "Rue Montviret"])
    told, calls = converse(ask, scenes, picture, system, MAPS, results, temperature=0)
    assert {name for name, _ in calls} >= {"poi_input_tips", "poi_detail_query", "static_map_query"}
    fields = {name: field for name, field, _ in MAPS}
    assert all(set(arguments) == {fields[name]} for name, arguments in calls)
    centre = next(arguments["center"] for name, arguments in calls if name == "static_map_query")
    assert centre == [45.7719, 4.8902]
    assert "The map shows:" in "".join(str(m.get("content")) for m in told if m["role"] == "assistant")
    matched = re.search(r"<answer>(.*)</answer>", told[-1]["content"])
    assert matched is not None
    answer = json.loads(matched.group(1))
    assert list(answer) == ["lat", "lon", "city", "country"] and answer["city"] == "Villeurbanne"


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "asked", "schema": schema, "strict": True}}


def objects(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


TEXT, BOX = {"type": "string"}, {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4}
LEVEL = objects(Clues={"type": "array", "items": TEXT}, Reasoning=TEXT, Conclusion=TEXT, Uncertainty=TEXT)


def test_every_field_a_recipe_asks_for_is_filled(ask: Any, scenes: Any) -> None:
    picture = scenes.message(scenes.draw(["Mairie de Villeurbanne", "Rue Hugo 5", "Tel. +33 4 123"], (700, 350)))
    schema = objects(
        boxes={"type": "array", "items": objects(bbox_2d=BOX, thought=TEXT)},
        queries={"type": "array", "items": objects(query=TEXT, thought=TEXT)},
        CountryIdentification=LEVEL,
        RegionalGuess=LEVEL,
        PreciseLocalization=LEVEL,
        FinalAnswer=TEXT,
        location=TEXT,
        confidence={"type": "number", "minimum": 0, "maximum": 1},
        explanation=TEXT,
    )
    body = ask("agent", [picture], temperature=0, response_format=form(schema))
    said = json.loads(body["choices"][0]["message"]["content"])

    def empty(value: Any) -> bool:
        if isinstance(value, dict | list):
            parts = list(value.values()) if isinstance(value, dict) else value
            return not parts or any(empty(part) for part in parts)
        return value in ("", None)

    assert set(said) == set(schema["properties"]) and not empty(said)
    assert said["CountryIdentification"]["Conclusion"] == "France" and 0 < said["confidence"] <= 1
    assert said["FinalAnswer"].startswith("France; ") and "Villeurbanne" in said["FinalAnswer"]
    assert all(len(said[level]["Reasoning"]) > 90 for level in ("CountryIdentification", "RegionalGuess"))
    assert all(0 <= box["bbox_2d"][0] < box["bbox_2d"][2] <= 700 for box in said["boxes"])
    shown = 'Answer with JSON only: {"boxes": [{"bbox_2d": [x1, y1, x2, y2], "thought": "..."}]}'
    free = ask("agent", [{"role": "system", "content": shown}, picture], temperature=0)
    proposed = json.loads(free["choices"][0]["message"]["content"])
    assert list(proposed) == ["boxes"] and set(proposed["boxes"][0]) == {"bbox_2d", "thought"}


def test_an_area_code_names_the_region_where_no_sign_names_a_town(ask: Any, scenes: Any) -> None:
    regions = [name for code, name in admin1_names().items() if code.startswith("FR.")]
    region = next(name for name in regions if division_of_area("FR", area_code("FR", name)) == name)
    picture = scenes.message(scenes.draw(["Rue Montviret", f"+33 {area_code('FR', region)} 848 95 20"]))
    schema = objects(RegionalGuess=LEVEL, PreciseLocalization=LEVEL, FinalAnswer=TEXT)
    body = ask("agent", [picture], temperature=0, response_format=form(schema))
    said = json.loads(body["choices"][0]["message"]["content"])
    assert said["FinalAnswer"] == f"France; {region}; Rue Montviret", said
    assert said["RegionalGuess"]["Conclusion"] == region and "Paris" not in str(said)


def test_a_review_weighs_anothers_answer_against_its_own_look(ask: Any, scenes: Any) -> None:
    schema = objects(country=TEXT, explanation=TEXT)
    told = "Review another agent's answer.\nCandidate 1: <answer>{}</answer>"
    right = {"lat": 45.77, "lon": 4.88, "city": "Villeurbanne", "country": "France"}
    wrong = {"lat": 35.68, "lon": 139.69, "city": "Tokyo", "country": "Japan"}
    for answer, agrees in ((right, True), (wrong, False)):
        message = scenes.message(scenes.draw(["Mairie de Villeurbanne", "Rue Hugo 5"]), told.format(json.dumps(answer)))
        body = ask("agent", [message], temperature=0, response_format=form(schema))
        said = json.loads(body["choices"][0]["message"]["content"])
        assert said["country"] == "France" and ("Candidate 1" in said["explanation"]) == agrees, said


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Give `Country; Region; Specific Location` inside <answer>.", "France; Rhône; Rue Hugo, Lyon"),
        ("End with <answer>Country, City, Latitude, Longitude</answer>.", "France, Lyon, 45.76, 4.84"),
        ('Reply {"latitude": 0, "longitude": 0, "confidence": "%"}',
         '{"latitude": 45.76, "longitude": 4.84, "confidence": 72}'),
        ("Location: ...\nConfidence: ... %\nExplanation: ...",
         "\nLocation: Lyon, France\nConfidence: 72\nExplanation: signs\n"),
        ("Where is it?", '{"country": "France", "city": "Lyon", "lat": 45.76, "lon": 4.84}'),
    ],
)  # fmt: skip
def test_the_form_follows_the_prompt(prompt: str, expected: str) -> None:
    answer = Answer(45.76, 4.84, "France", "Rhône", "Lyon", "Rue Hugo", 0.72, "signs")
    assert answer_body(prompt, answer) == expected


def test_the_keys_of_objects_are_read_from_prose() -> None:
    found = shown_keys('Use {"name": "x", "arguments": {"q": 1}} or\n{"a": [{"b": "..."}], "c": ...} {not json}')
    assert found == [["name", "arguments"], ["a", "c"]]


def test_every_tool_that_recipes_offer_has_a_purpose() -> None:
    assert all(Tool(name).purpose for name in TOOLS)
    assert Tool("report").purpose == ""
