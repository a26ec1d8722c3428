"""What the places got: every place is counted once for each kind, with the reason why it went without."""

import json

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tasks.review.coverage import KINDS, coverage, coverage_lines

GAPS = {"place_id": pl.String, "kind": pl.String, "got": pl.Int64, "reason": pl.String}
REJECTS = {"stage": pl.String, "item_id": pl.String, "reason": pl.String, "evidence_json": pl.String}
IMAGES = {"place_id": pl.String, "kind": pl.String}


def frames(
    images: list[tuple[str | None, str]],
    gaps: list[tuple[str, str, int, str]],
    rejects: list[tuple[str, str, str, str]],
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    return (
        pl.DataFrame(images, IMAGES, orient="row"),
        pl.DataFrame(gaps, GAPS, orient="row"),
        pl.DataFrame(rejects, REJECTS, orient="row"),
    )


def test_each_kind_says_what_it_has_and_why_not() -> None:
    places = pl.DataFrame({"place_id": ["a", "b", "c", "d"]})
    found = coverage(
        places,
        *frames(
            [("a", "panorama"), ("a", "panorama"), ("a", "photo"), ("b", "photo"), ("a", "satellite"), (None, "photo")],
            [("b", "panorama", 0, "none_near"), ("a", "panorama", 2, "fewer_than_wanted")],
            [
                ("collect", "c", "no_imagery_near", "{}"),
                ("collect.satellite", "b:10m", "cloudy", json.dumps({"place_id": "b"})),
                ("curate.labels", "d", "landmark", "{}"),
            ],
        ),
    )
    shown = [(one.kind, one.pictures, one.covered, one.why_not, one.open) for one in found]
    assert shown == [
        ("panorama", 2, 1, {"no_imagery_near": 1, "none_near": 1}, 1),
        ("photo", 2, 2, {"no_imagery_near": 1}, 1),
        ("satellite", 1, 1, {"cloudy": 1}, 2),
    ]
    assert coverage_lines(found)[1] == (
        "photos         2, for 2 of 4 places; without: 1 no_imagery_near, "
        "1 not tried yet, or failed and to be tried again"
    )


def test_one_scene_serves_all_places_of_its_city() -> None:
    places = pl.DataFrame({"place_id": ["a", "b", "c", "d"], "city_id": ["rome", "rome", "oslo", None]})
    rejects = [("collect.satellite", "city-oslo:centre", "cloudy", json.dumps({"place_id": "c"}))]
    [scenes] = coverage(places, *frames([("a", "satellite")], [], rejects))
    assert (scenes.covered, scenes.why_not, scenes.open) == (2, {"cloudy": 1}, 1)


def test_a_kind_that_was_not_looked_for_is_not_mentioned() -> None:
    assert coverage(pl.DataFrame({"place_id": ["a"]}), *frames([], [], [])) == []


place = st.sampled_from("abcdef")
kind = st.sampled_from(KINDS)


@given(
    st.lists(st.tuples(place, kind)),
    st.lists(st.tuples(place, kind, st.integers(0, 1), st.sampled_from(["r1", "r2"])), unique_by=lambda gap: gap[:2]),
    st.lists(
        st.tuples(st.sampled_from(["collect", "collect.satellite"]), place, st.just("r3"), st.just("{}")),
        unique_by=lambda one: one[:2],
    ),
)
def test_no_place_is_lost_or_counted_twice(
    images: list[tuple[str | None, str]],
    gaps: list[tuple[str, str, int, str]],
    rejects: list[tuple[str, str, str, str]],
) -> None:
    for one in coverage(pl.DataFrame({"place_id": list("abcdef")}), *frames(images, gaps, rejects)):
        assert one.covered + sum(one.why_not.values()) + one.open == one.places == 6
        assert one.open >= 0
