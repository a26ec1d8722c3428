"""The models that look: what they say follows the pixels, and is the same every time it should be."""

from __future__ import annotations

import json
import re
from typing import Any

from PIL import Image, ImageFilter

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.scene import cover_boxes


def said(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


def answer_of(text: str) -> dict[str, Any]:
    matched = re.search(r"<answer>(\{.*\})</answer>", text)
    assert matched, text
    return dict(json.loads(matched.group(1)))


def test_the_observer_reads_text_with_boxes_in_pixels(ask: Any, scenes: Any) -> None:
    text = said(ask("observer", [scenes.message(scenes.draw(["Apotheke Lindenhof", "Tel +49 30 123"]))], temperature=0))
    assert [part for part in text.splitlines() if part.startswith("## ")] == [
        "## Environment",
        "## Infrastructure",
        "## Text",
    ]
    matched = re.search(r'"Apotheke Lindenhof" bbox_2d \[(\d+), (\d+), (\d+), (\d+)\]', text)
    assert matched
    left, top, right, bottom = (int(side) for side in matched.groups())
    assert 60 <= left <= 100 and 55 <= top <= 80 and 350 <= right <= 480 and 95 <= bottom <= 125


def test_small_text_is_read_in_a_zoomed_crop(ask: Any, scenes: Any) -> None:
    sharp = scenes.draw(["Boulangerie Martin"], (4000, 2000))
    small = sharp.resize((480, 240))
    crop = sharp.crop((60, 50, 560, 150))
    far = said(ask("observer", [scenes.message(small)], temperature=0))
    near = said(ask("observer", [scenes.message(crop)], temperature=0))
    assert "Boulangerie Martin" not in far
    assert "Boulangerie Martin" in near


def test_answers_follow_the_picture_when_pictures_are_swapped(ask: Any, scenes: Any) -> None:
    """The proof that nothing but the pixels decides: same words, same everything, another picture."""
    lyon = scenes.draw(["Mairie de Villeurbanne", "Rue Hugo 5"])
    osaka = scenes.draw(["Guadalajara 12 km", "Panaderia Lopez"])
    for model in ("answerer-base", "answerer-large"):
        first = answer_of(said(ask(model, [scenes.message(lyon)], temperature=0, seed=1)))
        second = answer_of(said(ask(model, [scenes.message(osaka)], temperature=0, seed=1)))
        assert first["city"] == "Villeurbanne" and abs(first["lat"] - 45.77) < 0.3, model
        assert second["city"] == "Guadalajara", model


def test_same_question_same_answer_and_seeds_vary_a_sampled_one(ask: Any, scenes: Any) -> None:
    messages = [scenes.message(scenes.draw(["Santa Rosa", "Farmacia"]))]
    for model in ("observer", "judge", "answerer-small", "answerer-base", "answerer-large"):
        one, two = (ask(model, messages, temperature=0, seed=seed) for seed in (1, 2))
        assert one["choices"] == two["choices"], model
    sampled = {said(ask("answerer-base", messages, temperature=1, seed=seed)) for seed in range(8)}
    again = {said(ask("answerer-base", messages, temperature=1, seed=seed)) for seed in range(8)}
    assert len(sampled) > 2 and sampled == again


def test_the_judge_fills_the_schema_it_is_given(ask: Any, scenes: Any) -> None:
    presence = {"type": "string", "enum": ["yes", "no", "maybe"]}
    schema = {
        "type": "object",
        "properties": {
            "class": {"type": "string", "enum": ["localizable", "non_localizable", "landmark"]},
            "reason": {"type": "string"},
            "score": {"type": "number", "minimum": 0, "maximum": 10},
            "sub_scores": {"type": "object", "properties": {"image_clarity": {"type": "number"}}},
            "scenes": {"type": "object", "properties": {"sign": presence, "mountains_and_rivers": presence}},
        },
    }
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}}
    clear = scenes.draw(["Mairie de Villeurbanne", "Rue Hugo 5"])
    good = json.loads(said(ask("judge", [scenes.message(clear)], temperature=0, response_format=form)))
    assert set(good) == set(schema["properties"])
    assert good["class"] == "localizable" and good["score"] > 5 and good["scenes"]["sign"] == "yes"
    spoilt = clear.filter(ImageFilter.GaussianBlur(14))
    bad = json.loads(said(ask("judge", [scenes.message(spoilt)], temperature=0, response_format=form)))
    assert bad["class"] == "non_localizable" and bad["score"] < good["score"]
    dark = clear.point(lambda value: value // 12)
    night = json.loads(said(ask("judge", [scenes.message(dark)], temperature=0, response_format=form)))
    assert night["class"] == "non_localizable"
    free = json.loads(said(ask("judge", [scenes.message(clear)], temperature=0)))
    assert len(free["scenes"]) == 10 and len(free["sub_scores"]) == 5


def test_a_schema_is_followed_even_where_nothing_is_known() -> None:
    schema = {
        "type": "object",
        "properties": {
            "lat": {"type": "number"},
            "mood": {"type": ["string", "null"]},
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "either": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "$defs": {"tag": {"type": "string"}},
    }
    known = {"lat": 4.5, "tags": ["a", 2]}
    assert json.loads(fill_schema(schema, known)) == {
        "lat": 4.5,
        "mood": None,
        "count": 0,
        "tags": ["a", "2"],
        "either": None,
    }


def test_sampled_answers_are_sometimes_no_answer(ask: Any, scenes: Any) -> None:
    messages = [scenes.message(scenes.draw(["Hotel"]))]
    drawn = [
        str(choice["message"]["content"])
        for seed in range(12)
        for choice in ask("answerer-small", messages, temperature=1, seed=seed, n=16)["choices"]
    ]
    broken = sum(1 for text in drawn if not re.search(r"<answer>\{.*\}</answer>", text))
    assert 2 <= broken <= 24  # 5 % of 192


def test_sky_and_plants_are_found_where_they_are() -> None:
    image = Image.new("RGB", (480, 240), (150, 110, 80))
    image.paste((120, 120, 120), (0, 80, 480, 110))  # a wall
    image.paste((140, 180, 235), (0, 0, 480, 60))
    image.paste((40, 120, 40), (200, 140, 280, 200))
    sky, plants = (cover_boxes(image, what) for what in ("sky", "plants"))
    assert {(x1, x2) for x1, _, x2, _ in sky} == {(0, 480)} and max(box[3] for box in sky) == 60
    assert min(box[0] for box in plants) == 200 and max(box[2] for box in plants) == 280
    assert (min(box[1] for box in plants), max(box[3] for box in plants)) == (140, 200)
