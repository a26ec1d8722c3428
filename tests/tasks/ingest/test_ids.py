"""Ids that went through a float are found; ids that did not are left alone."""

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.ingest import IngestSettings
from tasks.ingest import TableRefused, survey_table
from tasks.lake.ids import LongIds, chance_to_be_round, float_can_hold, may_be_rounded, written_as_float

LONG = st.integers(10**17, 10**20 - 1)


def counted(numbers: list[int]) -> LongIds:
    ids = LongIds()
    ids.observe(pl.DataFrame({"row": range(len(numbers)), "source_id": [str(number) for number in numbers]}))
    return ids


@pytest.mark.parametrize("text", ["1.23e+17", "1.23E17", "5e5", "12345.0", "12345.", "-3.0", "nan", "NaN", "inf"])
def test_notations_of_floats(text: str) -> None:
    assert pl.select(written_as_float(pl.lit(text))).item()


@pytest.mark.parametrize("text", ["12345", "a1.0", "1.5", "ab/cd/12.jpg", "1e", "e17", "0x1p3", "12_345", "1.0.1"])
def test_ids_that_only_look_odd(text: str) -> None:
    assert not pl.select(written_as_float(pl.lit(text))).item()


@given(LONG)
def test_whatever_a_float_gives_back_it_can_hold(number: int) -> None:
    assert float_can_hold(int(float(number)))  # as pandas' int64 of a float
    shortest = repr(float(number))
    digits, _, exponent = shortest.partition("e+")
    assert float_can_hold(int(digits.replace(".", "").ljust(int(exponent) + 1, "0")))  # as a spreadsheet prints it


@given(LONG)
def test_neighbours_of_a_float_are_not_held(number: int) -> None:
    value = int(float(number))
    for step in (1, 3, 7):  # less than half the gap between floats above 10^17
        moved = value + step
        assert float_can_hold(moved) == (moved % 10 == 0 and float_can_hold(moved))


def test_the_chance_of_being_round_is_what_counting_gives() -> None:
    rng = random.Random(5)
    for low, high in ((10**17, 2 * 10**17), (10**18, 2 * 10**18)):
        numbers = [rng.randrange(low, high) for _ in range(20_000)]
        expected = sum(map(chance_to_be_round, numbers)) / len(numbers)
        seen = sum(map(float_can_hold, numbers)) / len(numbers)
        assert 0.4 * expected < seen < 1.1 * expected  # an upper bound, within a factor of two and a half


@given(st.lists(st.integers(10**16, 10**19), min_size=20, max_size=60), st.randoms(use_true_random=False))
def test_a_column_that_went_through_a_float_is_found(numbers: list[int], rng: random.Random) -> None:
    noisy = [rng.randrange(10**17, 10**19) for _ in numbers]  # hypothesis loves round numbers; these are not
    damaged = counted([int(float(number)) for number in noisy])
    assert damaged.damaged and damaged.whole_column


@pytest.mark.parametrize("digits", [15, 16, 17, 18, 19, 20])
def test_undamaged_columns_are_left_alone(digits: int) -> None:
    rng = random.Random(digits)
    for _ in range(40):
        assert not counted([rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(300)]).damaged


def test_a_damaged_part_of_a_column_is_found_too() -> None:
    rng = random.Random(2)
    numbers = [rng.randrange(10**17, 10**18) for _ in range(400)]
    ids = counted([int(float(number)) if row % 5 == 0 else number for row, number in enumerate(numbers)])
    assert ids.damaged and not ids.whole_column
    texts = pl.DataFrame(
        {"id": [str(int(float(123456789012345678))), "123456789012345671", "photo-123456789012345680"]}
    )
    assert texts.select(may_be_rounded(pl.col("id"))).to_series().to_list() == [True, False, False]


def test_ids_that_a_float_filled_up_with_zeros_are_refused_or_named(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    settings = IngestSettings(keep_lat_lon=True)
    damaged = [{"id": f"{818314 + n}000000000"} for n in range(4)]
    with pytest.raises(TableRefused, match=r"4 of 4 ids end in zeros.*line 2, 818314000000000"):
        survey_table(darkroom.plain(damaged), settings)
    whole = [{"id": f"81831412345678{n}"} for n in range(8)]
    notes = survey_table(darkroom.plain([*whole, damaged[0]]), settings).notes
    assert [note for note in notes if "1 of 9 long ids end in zeros (first: line 10, 818314000000000)" in note]
    assert not any("zeros" in note for note in survey_table(darkroom.plain(whole), settings).notes)
    trusted = IngestSettings(keep_lat_lon=True, check_ids=False)
    assert not any("zeros" in note for note in survey_table(darkroom.plain(damaged), trusted).notes)
