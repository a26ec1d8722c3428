"""The choice among candidates: a documented score, the same for any order of answers, and different sequences."""

import dataclasses
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate
from tasks.collect.choose import age_m, best_scores_m, choose, score_m
from tasks.collect.tiles import UNKNOWN_TIME
from tasks.geo.distance import distance_km

SETTINGS = CollectSettings()
PLACE = (50.0, 8.0)
NOW = datetime(2024, 6, 1, tzinfo=UTC)


def candidate(source_id: str, metres: float = 0.0, east_m: float = 0.0, **other: Any) -> Candidate:
    lat, lon = PLACE[0] + metres / 111_194.9, PLACE[1] + east_m / 111_194.9 / 0.6428
    values: dict[str, Any] = {
        "source": "mapillary", "source_id": source_id, "kind": "panorama", "url": None,
        "lat": lat, "lon": lon, "found_at": (lat, lon),
        "distance_m": distance_km(*PLACE, lat, lon) * 1000, "pixels": 8_000_000, "quality": 0.5,
        "sequence_id": f"s{source_id}", "compass_angle": None, "camera_type": None, "creator": None,
        "captured_at": NOW,
    }  # fmt: skip
    return Candidate(**{**values, **other})


moments = st.none() | st.datetimes(datetime(2004, 1, 1), datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(tzinfo=UTC)
)


@st.composite
def crowds(draw: st.DrawFn, kind: str = "panorama", sequences: int = 4) -> list[Candidate]:
    # Whole numbers: ties happen, and must be broken the same way every time.
    names = draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=12, unique=True))
    return [
        candidate(
            str(name),
            draw(st.integers(-5, 5)) * 60.0,
            draw(st.integers(-5, 5)) * 10.0,
            kind=kind,
            quality=draw(st.integers(0, 4)) / 4,
            captured_at=draw(moments),
            pixels=draw(st.sampled_from([None, 500_000, 1_500_000, 2_000_000])),
            sequence_id=draw(st.none() | st.integers(1, sequences).map(str)),
        )
        for name in names
    ]


def ids(chosen: list[Candidate]) -> list[str]:
    return [one.source_id for one in chosen]


def test_the_score_in_numbers() -> None:
    settings = CollectSettings(quality_bonus_m=200, age_penalty_m=10, age_reference=date(2027, 1, 1))
    one = candidate("1", 300.0, quality=0.5, captured_at=datetime(2017, 1, 1, tzinfo=UTC))
    # 300 m away, half of 200 m for its quality, ten years (3652 days of 365.25) at 10 m.
    assert score_m(one, settings) == pytest.approx(300 - 100 + 10 * 3652 / 365.25, abs=0.01)
    assert age_m(datetime(2031, 1, 1, tzinfo=UTC), settings) == 0.0  # nothing is better than new
    assert age_m(None, settings) == age_m(datetime(1990, 1, 1, tzinfo=UTC), settings) == 200.0


@given(crowds() | crowds("photo"), st.integers(1, 12), st.randoms())
def test_the_order_of_answers_does_not_matter(crowd: list[Candidate], wanted: int, chance: Any) -> None:
    shuffled = list(crowd)
    chance.shuffle(shuffled)
    chosen = ids(choose(crowd, wanted, SETTINGS))
    assert chosen == ids(choose(shuffled, wanted, SETTINGS))
    assert len(set(chosen)) == len(chosen) <= wanted
    assert chosen == ids(choose(crowd, 12, SETTINGS))[:wanted]  # more wanted: the same ones first


def dominates(one: Candidate, other: Candidate) -> bool:
    """Nowhere worse, somewhere better."""

    def facts(of: Candidate) -> tuple[float, ...]:
        moment = -1e18 if of.captured_at is None else of.captured_at.timestamp()
        preferred = float(of.kind != "photo" or (of.pixels or 0) >= SETTINGS.photo_preferred_pixels)
        return -of.distance_m, of.quality, moment, preferred

    return facts(one) != facts(other) and all(a >= b for a, b in zip(facts(one), facts(other), strict=True))


@settings(max_examples=200)
@given(crowds() | crowds("photo"))
def test_what_is_nowhere_better_never_comes_first(crowd: list[Candidate]) -> None:
    strangers = [dataclasses.replace(one, sequence_id=one.source_id) for one in crowd]
    chosen = choose(strangers, 12, SETTINGS)
    for late, one in enumerate(chosen):
        assert not any(dominates(one, earlier) for earlier in chosen[:late])


@given(crowds() | crowds("photo"))
def test_the_nearest_best_and_newest_is_the_first_choice(crowd: list[Candidate]) -> None:
    gold = candidate(
        "0", 0.0, 0.0, kind=crowd[0].kind, quality=1.0, captured_at=datetime(2035, 1, 1, tzinfo=UTC)
    )  # fmt: skip
    assert choose([*crowd, gold], 1, SETTINGS) == [gold]
    assert all(score_m(gold, SETTINGS) <= score_m(one, SETTINGS) for one in crowd)


def close(one: Candidate, other: Candidate) -> bool:
    return (
        one.sequence_id is not None
        and one.sequence_id == other.sequence_id
        and distance_km(one.lat, one.lon, other.lat, other.lon) * 1000 < SETTINGS.sequence_spacing_m
    )


@settings(max_examples=200)
@given(crowds(sequences=2))
def test_neighbours_of_a_sequence_come_only_when_nothing_else_is_left(crowd: list[Candidate]) -> None:
    chosen = choose(crowd, 12, SETTINGS)
    for k, one in enumerate(chosen):
        if any(close(one, earlier) for earlier in chosen[:k]):
            rest = chosen[k:]
            assert all(any(close(other, earlier) for earlier in chosen[:k]) for other in rest)


def test_another_sequence_is_preferred_and_a_much_nearer_picture_wins_all_the_same() -> None:
    first, same, other = candidate("1", sequence_id="a"), candidate("2", 100, sequence_id="a"), candidate("3", 390)
    assert ids(choose([first, same, other], 2, SETTINGS)) == ["1", "3"]
    assert ids(choose([first, same, candidate("3", 410)], 2, SETTINGS)) == ["1", "2"]
    near = candidate("4", 20, sequence_id="a")  # less than the spacing
    assert ids(choose([first, near, candidate("3", 4900)], 3, SETTINGS)) == ["1", "3", "4"]
    unknown = [candidate(name, 5.0 * i, sequence_id=None) for i, name in enumerate("567")]
    assert ids(choose(unknown, 3, SETTINGS)) == ["5", "6", "7"]  # no sequence is no common sequence


def test_small_pictures_are_refused_and_small_photos_come_last() -> None:
    assert choose([candidate("1", pixels=999_999)], 1, SETTINGS) == []
    sharp, coarse = (
        candidate(name, m, kind="photo", pixels=p) for name, m, p in (("4", 900, 1_920_000), ("5", 0, 480_000))
    )
    assert ids(choose([coarse, sharp], 2, SETTINGS)) == ["4", "5"]
    assert ids(choose([candidate("6", pixels=None)], 1, SETTINGS)) == ["6"]  # unknown is not small


@given(st.floats(0, 5000), st.floats(0, 1), moments)
def test_no_picture_is_better_than_its_tile_promises(metres: float, quality: float, moment: datetime | None) -> None:
    one = dataclasses.replace(candidate("1"), distance_m=metres, quality=quality, captured_at=moment)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    milliseconds = UNKNOWN_TIME if moment is None else (moment - epoch) // timedelta(milliseconds=1)
    promised = best_scores_m(np.array([metres]), np.array([milliseconds], dtype=np.int64), SETTINGS)[0]
    assert promised <= score_m(one, SETTINGS) + 1e-6
    assert promised == pytest.approx(score_m(dataclasses.replace(one, quality=1.0), SETTINGS), abs=1e-3)
