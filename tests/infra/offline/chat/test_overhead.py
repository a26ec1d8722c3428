"""The judge looks at a satellite scene for what can be seen from above: some scenes tell a place, some do not."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from infra.offline.chat import judge
from infra.offline.chat.judge import assess_from_above
from tasks.curate.verdict import question_about

FOREST, WATER = (38, 66, 46), (40, 56, 68)


def scene(size: int = 300) -> Image.Image:
    noise = np.random.default_rng(1).integers(-4, 5, (size, size, 1))
    return Image.fromarray((np.array(FOREST) + noise).clip(0, 255).astype(np.uint8))


def with_river(image: Image.Image) -> Image.Image:
    line = [(x, 150 + 40 * np.sin(x / 40)) for x in range(-10, 320, 10)]
    ImageDraw.Draw(image).line(line, fill=WATER, width=14, joint="curve")
    return image


def with_town(image: Image.Image, left: int = 150, top: int = 20, blocks: int = 14) -> Image.Image:
    pen, random = ImageDraw.Draw(image), np.random.default_rng(2)
    for row in range(blocks):
        for column in range(blocks):
            x, y, grey = left + 8 * column, top + 6 * row, int(random.integers(110, 230))
            pen.rectangle((x, y, x + 6, y + 4), fill=(grey, grey, grey))
            pen.rectangle((x, y + 5, x + 8, y + 5), fill=(80, 80, 80))
    return image


def with_sea(image: Image.Image) -> Image.Image:
    ImageDraw.Draw(image).polygon([(0, 0), (120, 0), (90, 120), (140, 200), (100, 300), (0, 300)], fill=WATER)
    return image


@pytest.mark.parametrize(
    ("image", "verdict", "clue"),
    [
        (scene(), "non_localizable", "none"),
        (Image.new("RGB", (300, 300), WATER), "non_localizable", "none"),
        (Image.new("RGB", (300, 300), (235, 235, 235)), "non_localizable", "none"),
        (with_town(with_river(scene())), "localizable", "the course of a river"),
        (with_town(with_sea(scene())), "localizable", "the shape of a shore"),
    ],
)
def test_what_a_scene_shows_decides(image: Image.Image, verdict: str, clue: str) -> None:
    found: Any = assess_from_above(judge.measure_ground(image))
    assert found["class"] == verdict, found
    assert found["clues"][0] == clue
    assert found["sub_scores"]["amount_of_text"] == 0 and found["scenes"]["sign"] == "no"


def test_a_town_alone_tells_more_the_larger_it_is() -> None:
    scores = []
    for blocks in (0, 5, 14):
        scores.append(assess_from_above(judge.measure_ground(with_town(scene(), blocks=blocks)))["score"])
    assert scores == sorted(set(scores))
    assert judge.measure_ground(with_town(scene())).towns == 1


def test_the_question_about_a_satellite_scene_is_answered_from_above(
    ask: Callable[..., dict[str, Any]], scenes: Any
) -> None:
    picture, said = with_town(with_river(scene())), {}
    for kind in ("satellite", "photo"):
        answer = ask("judge", [scenes.message(picture, question_about(kind))], temperature=0)
        said[kind] = json.loads(answer["choices"][0]["message"]["content"])
    assert said["satellite"]["class"] == "localizable" and "river" in said["satellite"]["reason"]
    assert said["photo"]["class"] == "non_localizable"  # as a photo from the street it shows nothing
