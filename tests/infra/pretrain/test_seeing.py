"""Lessons in seeing: what is asked is what is painted, and nothing tells where."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infra.offline.render import encode, paint, render_jpeg
from infra.offline.render.signs import SeenSign
from infra.offline.world import World
from infra.pretrain.boards import GRIDS, LEVELS, PATCH, boards_of, crop_board, lesson, letter_px, letters_of
from infra.pretrain.measure import others, overlap
from infra.pretrain.pictures import ATTRIBUTES, answers_of, clear_images, example, fitted, is_held_out


@pytest.fixture(scope="module")
def world() -> World:
    return World(7, 2_000)


@pytest.fixture(scope="module")
def photo(world: World):
    return next(r for i in range(50) for r in clear_images(world, i) if not r.is_pano and world.place(i).shops)


def test_labels_leave_the_picture_as_it_is(world: World, photo) -> None:
    small = replace(photo, width=640, height=480)
    signs: list[SeenSign] = []
    assert encode(paint(world, small, signs)) == render_jpeg(world, small)
    assert signs and all(0 <= s.free <= 1 for s in signs)


def test_a_board_is_where_its_label_says(world: World, photo) -> None:
    signs: list[SeenSign] = []
    with_text = np.asarray(paint(world, photo, signs)).astype(int)
    without = np.asarray(paint(world, photo, text=False)).astype(int)
    changed = np.abs(with_text - without).sum(-1) > 60
    free = [s for s in signs if s.free > 0.97]
    assert free
    for sign in free:
        left, top, right, bottom = sign.box
        assert changed[top:bottom, left:right].any()
        changed[top:bottom, left:right] = False
    for sign in signs:
        left, top, right, bottom = sign.box
        changed[top:bottom, left:right] = False
    assert changed.mean() < 0.002  # boards cut off by the edge are not noted


def test_a_covered_board_is_not_free(world: World) -> None:
    found: list[SeenSign] = []
    for index in range(12):
        for record in clear_images(world, index)[:1]:
            paint(world, replace(record, width=record.width // 2, height=record.height // 2), found)
    assert any(s.free < 0.5 for s in found) and any(s.free == 1.0 for s in found)


def test_zooms_and_answers_hold_no_place(world: World, photo) -> None:
    made = example(world, photo, random.Random(1), pad=False)
    place = world.place(photo.place)
    assert set(made.answers) == set(ATTRIBUTES) and made.answers == answers_of(place)
    said = " ".join([*made.answers.values(), made.box])
    assert place.facts.name not in said and place.city.name not in said and f"{place.lat:.1f}" not in said
    for zoom in made.zooms:
        assert zoom.grid in GRIDS and zoom.pixels.shape == (zoom.grid[0] * PATCH, zoom.grid[1] * PATCH, 3)
        assert zoom.text in [line for board in boards_of(place) for line in board.lines]


def test_letters_are_where_the_lesson_says(world: World) -> None:
    rng = random.Random(4)
    board = next(b for b in boards_of(world.place(3)) if not b.flat)
    crop = crop_board(board, 0, 30.0, lambda w, h: Image.new("RGB", (w, h), (90, 90, 90)), rng)
    assert len(crop.centres) == len(crop.text) and crop.grid in GRIDS
    columns = [x for x, _ in crop.centres]
    assert columns == sorted(columns) and 0 < columns[0] < columns[-1] < crop.grid[1] * PATCH
    row = sum(y for _, y in crop.centres) / len(crop.centres)
    strip = crop.pixels[int(row) - 3 : int(row) + 4, int(columns[0]) : int(columns[-1])].astype(int)
    assert np.ptp(strip.sum(-1)) > 200  # the row through the letters holds both colours


def test_lessons_get_longer_and_end_with_signs(world: World) -> None:
    places = [world.place(index) for index in range(12)]
    letters = letters_of(places)
    rng = random.Random(2)
    for level, most in enumerate(LEVELS[:4]):
        texts = [lesson(level, places, letters, rng)[0].lines[0] for _ in range(60)]
        assert max(map(len, texts)) == most
    last = [lesson(len(LEVELS) - 1, places, letters, rng) for _ in range(80)]
    assert any(len(board.lines) == 2 and line == 1 for board, line, _ in last)
    assert letter_px("a" * 40, 30.0, 100.0) < 6 < letter_px("ab", 30.0, 100.0)


def test_cells_are_held_out_whole(world: World) -> None:
    by_cell: dict[tuple[int, int], set[bool]] = {}
    for index in range(600):
        place = world.sign_texts(index)
        by_cell.setdefault((math.floor(place.lat), math.floor(place.lon)), set()).add(is_held_out(place))
    assert all(len(kinds) == 1 for kinds in by_cell.values())
    assert 0.05 < sum(kinds == {True} for kinds in by_cell.values()) / len(by_cell) < 0.17


def test_a_shuffled_picture_is_of_another_place() -> None:
    places = [1, 1, 1, 2, 2, 3]
    assert all(places[other] != places[own] for own, other in enumerate(others(places)))


def test_overlaps() -> None:
    assert overlap((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(1 / 3) and overlap(None, (0, 0, 1, 1)) == 0


def test_a_box_is_widened_inside_the_picture() -> None:
    left, top, right, bottom = fitted((0, 0, 40, 40), (4, 12), (1600, 1200))
    assert (left, right - left, bottom - top) == (0, 120, 40) and top == 0


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from infra.pretrain.__main__ import main

    assert main([str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main([str(tmp_path / "new"), "--start", str(tmp_path)]) == 1
    assert "has no config.json" in capsys.readouterr().err
