"""The models that look, on the world's own pictures: they see what was painted and nothing else."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from typing import Any

import pytest
from PIL import Image

from infra.offline.chat.protocol import is_panorama
from infra.offline.chat.scene import measure_scene, named_landmark
from infra.offline.render import render_jpeg
from infra.offline.world import ImageRecord, World


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=23, size=1500, pano_width=2048)


@lru_cache(maxsize=32)
def picture(world: World, record: ImageRecord) -> Image.Image:
    with Image.open(io.BytesIO(render_jpeg(world, record))) as image:
        return image.convert("RGB")


def some(world: World, condition: str, count: int, is_pano: bool = True) -> list[ImageRecord]:
    found = []
    for index in range(world.size):
        for record in world.images(index):
            if record.condition == condition and record.is_pano == is_pano and record.slot < 2:
                found.append(record)
                break
        if len(found) == count:
            return found
    raise AssertionError(f"only {len(found)} pictures are {condition}")


def verdict(ask: Any, scenes: Any, image: Image.Image) -> str:
    body = ask("judge", [scenes.message(image)], temperature=0)
    return str(json.loads(body["choices"][0]["message"]["content"])["class"])


@pytest.mark.parametrize("condition", ["blurred", "dark", "no_clue"])
def test_spoilt_pictures_are_not_localizable(ask: Any, scenes: Any, world: World, condition: str) -> None:
    for record in some(world, condition, 1):
        assert verdict(ask, scenes, picture(world, record)) == "non_localizable"


@pytest.mark.whole
def test_clear_streets_are_localizable_and_landmarks_are_told_apart(ask: Any, scenes: Any, world: World) -> None:
    clear = [verdict(ask, scenes, picture(world, record)) for record in some(world, "clear", 3)]
    landmarks = [verdict(ask, scenes, picture(world, record)) for record in some(world, "landmark", 3)]
    assert clear.count("localizable") >= 2
    assert landmarks.count("landmark") >= 2
    assert named_landmark(["Rue Hugo", "Boulangerie"]) is None


def test_the_driving_side_and_line_colour_are_read_from_the_road(world: World) -> None:
    for record in some(world, "clear", 4):
        image, facts = picture(world, record), world.place(record.place).facts
        scene = measure_scene(image)
        assert is_panorama(*image.size)
        assert (scene.side, scene.centre) == (facts.drives_on, facts.centre_line)


@pytest.mark.whole
def test_swapped_pictures_swap_what_is_said(ask: Any, scenes: Any, world: World) -> None:
    """Every word of the request stays; the answers change places with the pictures."""
    first, second = (picture(world, record) for record in some(world, "clear", 2))

    def said(model: str, image: Image.Image) -> str:
        message = scenes.message(image, "Picture 4711. Where was it taken?")
        return str(ask(model, [message], temperature=0, seed=5)["choices"][0]["message"]["content"])

    for model in ("observer", "answerer-large"):
        own, swapped = (
            [said(model, image) for image in (first, second)],
            [said(model, image) for image in (second, first)],
        )
        assert own[0] != own[1]
        assert swapped == own[::-1]
