"""Which scenes come first: the fewest, then the least cloudy; against an exhaustive search."""

import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.collect.satellite.cover import POINTS, Candidate, candidates, covers, next_best, sampled, touched
from tasks.services.sentinel.grid import Grid, grid_around
from tasks.services.sentinel.scenes import Scene

START = datetime(2023, 6, 1, tzinfo=UTC)


def candidate(name: str, points: int, cloud: float = 0.0, day: int = 0, other_zone: bool = False) -> Candidate:
    scene = Scene(name, START + timedelta(days=day), cloud, 0, 32633, None, {})
    return Candidate(scene, points, other_zone)


def names(cover: tuple[Candidate, ...]) -> set[str]:
    return {one.scene.id for one in cover}


@st.composite
def archives(draw: st.DrawFn) -> list[Candidate]:
    shapes = draw(st.lists(st.integers(1, 255), min_size=1, max_size=7))
    clouds = draw(st.lists(st.integers(0, 20), min_size=len(shapes), max_size=len(shapes)))
    days = draw(st.lists(st.integers(0, 40), min_size=len(shapes), max_size=len(shapes)))
    made = [candidate(f"s{k}", *numbers) for k, numbers in enumerate(zip(shapes, clouds, days, strict=True))]
    return sorted(made, key=lambda one: one.order)


@given(archives())
def test_as_few_as_an_exhaustive_search_finds(found: list[Candidate]) -> None:
    everything = 0
    for one in found:
        everything |= one.points
    ranked = covers(found, 0.05, 4)
    fewest = next(
        count
        for count in range(1, len(found) + 1)
        if any(_union(chosen) == everything for chosen in itertools.combinations(found, count))
    )
    assert ranked
    for cover in ranked:
        assert len(cover) == len(names(cover)) == fewest
        assert _union(cover) == everything
    assert len({frozenset(names(cover)) for cover in ranked}) == len(ranked)


@given(archives())
def test_a_single_scene_is_the_least_cloudy_newest_one(found: list[Candidate]) -> None:
    whole = [*found, candidate("a", 255, 5, 3), candidate("b", 255, 5, 9), candidate("c", 255, 7, 30)]
    whole.sort(key=lambda one: one.order)
    best = covers(whole, 0.05, 4)[0]
    expected = min((one for one in whole if one.points == 255), key=lambda one: one.order)
    assert names(best) == {expected.scene.id}


@given(archives(), st.randoms())
def test_the_order_of_the_archive_does_not_matter(found: list[Candidate], random: st.DataObject) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = sorted(shuffled, key=lambda one: one.order)
    assert [names(cover) for cover in covers(found, 0.05, 4)] == [names(cover) for cover in covers(again, 0.05, 4)]


def _union(chosen: tuple[Candidate, ...]) -> int:
    total = 0
    for one in chosen:
        total |= one.points
    return total


def test_scenes_of_one_pass_belong_together() -> None:
    left = [candidate("left june", 0b1100, 1.0, 0), candidate("left august", 0b1100, 0.5, 70)]
    right = [candidate("right june", 0b0011, 1.0, 0), candidate("right august", 0b0011, 4.0, 70)]
    found = sorted([*left, *right], key=lambda one: one.order)
    assert names(covers(found, 0.05, 1)[0]) == {"left june", "right june"}
    assert names(covers(found, 0.0, 1)[0]) == {"left august", "right june"}


def test_a_scene_of_the_picture_s_own_zone_comes_first_unless_it_is_cloudier() -> None:
    own, other = candidate("own", 15, 1.0), candidate("other", 15, 0.0, 5, True)
    assert names(covers(sorted([own, other], key=lambda one: one.order), 0.05, 1)[0]) == {"own"}
    cloudy = candidate("cloudy", 15, 9.0)
    assert names(covers(sorted([cloudy, other], key=lambda one: one.order), 0.05, 1)[0]) == {"other"}


def test_many_footprints_are_chosen_greedily() -> None:
    """Sixty footprints that overlap a little: too many combinations to try, still a cover and a small one."""
    found = [candidate(f"s{k:02d}", 0b111 << (2 * k), k % 7, k) for k in range(60)]
    best = covers(sorted(found, key=lambda one: one.order), 0.05, 1)[0]
    assert _union(best) == (1 << 121) - 1
    assert len(best) <= 60


def test_what_is_missing_is_looked_for_where_it_may_be() -> None:
    main = candidate("main", 255)
    found = [candidate("aside", 0b11110000, 0.0), candidate("right", 0b00001111, 10.0), candidate("half", 0b11, 0.0)]
    assert next_best(found, 0b1111, main.scene, 0.05, set()).scene.id == "right"  # type: ignore[union-attr]
    assert next_best(found, 0b1111, main.scene, 0.05, {"right"}).scene.id == "half"  # type: ignore[union-attr]
    assert next_best(found, 0b1111, main.scene, 0.05, {"right", "half"}) is None


@given(st.integers(40, 400), st.data())
def test_whatever_is_missing_touches_a_point(size: int, data: st.DataObject) -> None:
    mask = np.zeros((size, size), dtype=np.bool_)
    assert touched(mask) == 0
    for _ in range(data.draw(st.integers(1, 3))):
        top, left = (data.draw(st.integers(0, size - 1)) for _ in range(2))
        height, width = (data.draw(st.sampled_from([1, 2, size // 3, size])) for _ in range(2))
        mask[top : top + height, left : left + width] = True
    assert touched(mask) and sampled(mask) & ~touched(mask) == 0
    assert (
        touched(np.ones_like(mask))
        == sampled(np.ones_like(mask))
        == (1 << POINTS**2 + (-(POINTS**2)) % 8) - (1 << (-(POINTS**2)) % 8)
    )


def scene_over(grid: Grid, name: str, short_px: float) -> Scene:
    """A scene whose footprint ends so many pixels before the picture's east edge, and reaches over the others."""
    columns = np.array([-50.0, grid.size - short_px, grid.size - short_px, -50.0])
    rows = np.array([-50.0, -50.0, grid.size + 50.0, grid.size + 50.0])
    lat, lon = grid.degrees(columns, rows)
    ring = [[float(x), float(y)] for x, y in zip([*lon, lon[0]], [*lat, lat[0]], strict=True)]
    return Scene(name, START, 0.0, 0, grid.epsg, {"type": "Polygon", "coordinates": [ring]}, {})


@pytest.mark.parametrize("short_px", [2, 15, 25, 31, 62])
def test_a_footprint_that_ends_just_before_the_edge_does_not_cover_the_picture(short_px: int) -> None:
    grid = grid_around(48.85, 2.35, 10.0, 2000)
    found = candidates([scene_over(grid, "short", short_px), scene_over(grid, "whole", -50)], grid)
    assert [names(cover) for cover in covers(found, 0.05, 4)] == [{"whole"}]
