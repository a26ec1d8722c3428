"""Clues are graded: what a picture's legible lines say, and that pictures of every grade are painted."""

from dataclasses import replace

import pytest

from bench.offline_models import GRADES, LEGIBLE_PX, clue_grade, tells
from infra.offline.place import Place
from infra.offline.render import paint
from infra.offline.render.signs import SeenSign
from infra.offline.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return World(7, 300, 1024)


@pytest.fixture(scope="module")
def place(world: World) -> Place:
    """One with a direction sign to a neighbour, a shop with a phone's prefix, and another shop of its owner's name."""
    return next(
        place
        for place in map(world.place, range(world.size))
        if {tells(place, f"{name}  {km}") for name, km in place.towns_ahead} == {"town", "country"}
        and {"words", "town"} <= {tells(place, shop.lines[0]) for shop in place.shops}
        and any(tells(place, line) == "country" for shop in place.shops for line in shop.lines[1:])
    )


def board(*lines: str, letters_px: float = 2 * LEGIBLE_PX, free: float = 1.0) -> SeenSign:
    return SeenSign(lines, (letters_px,) * len(lines), (0, 0, 10, 10), free)


def test_a_picture_is_graded_by_what_its_legible_lines_say(place):
    by_town = next(shop.lines[0] for shop in place.shops if tells(place, shop.lines[0]) == "town")
    by_owner = next(shop.lines[0] for shop in place.shops if tells(place, shop.lines[0]) == "words")
    phone = next(line for shop in place.shops for line in shop.lines[1:] if tells(place, line) == "country")
    own, neighbour = (f"{name}  {km}" for name, km in place.towns_ahead)
    weak = [board(place.street), board(by_owner), board("MONUMENT")]

    def grade(*signs: SeenSign) -> str:
        return clue_grade(place, signs, 1024)

    assert grade() == "none" and grade(*weak) == "weak"
    for line in (by_town, phone, own, neighbour, place.local_name):
        assert grade(*weak, board(line)) == "some"
        assert grade(*weak, board(line, letters_px=LEGIBLE_PX - 0.1)) == "weak", "too small"
        assert grade(*weak, board(line, free=0.4)) == "weak", "covered"
    assert grade(board(own, by_town)) == "some" == grade(board(phone, neighbour)), "the same told twice"
    assert grade(board(own, neighbour)) == grade(board(by_town, phone)) == "rich"
    assert clue_grade(place, [board(own)], 4096) == "none", "of the width the letters are too small a part"


def test_pictures_of_every_grade_are_painted(world):
    found = set()
    for index in range(24):
        record = world.images(index)[0]
        record = record if record.is_pano else replace(record, width=1024, height=768)
        signs: list[SeenSign] = []
        paint(world, record, signs)
        found.add(clue_grade(world.place(index), signs, record.width))
        if found == set(GRADES):
            return
    raise AssertionError(found)


def test_a_picture_without_clues_has_none(world):
    record = next(r for i in range(60) for r in world.images(i) if r.condition == "no_clue" and r.is_pano)
    signs: list[SeenSign] = []
    paint(world, record, signs)
    assert signs == [] and clue_grade(world.place(record.place), signs, record.width) == "none"
