"""Ids that went through a float are found; ids that did not are left alone."""

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.ingest import IngestSettings
from tasks.ingest import TableRefused, survey_table
from tasks.lake.ids import float_can_hold, long_ids, written_as_float

LONG = st.integers(10**17, 10**20 - 1)


@pytest.mark.parametrize("text", ["1.23e+17", "1.23E17", "5e+5", "12345.0", "12345.", "-3.0", "nan", "NaN", "inf"])
def test_notations_of_floats(text: str) -> None:
    assert pl.select(written_as_float(pl.lit(text))).item()


@pytest.mark.parametrize("text", ["12345", "a1.0", "1.5", "ab/cd/12.jpg", "1e", "e17", "1234e567", "0x1p3", "12_345"])
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


@pytest.mark.parametrize("digits", [15, 16, 17, 18, 19, 20])
def test_at_most_every_second_long_id_is_a_floats_value(digits: int) -> None:
    rng = random.Random(digits)
    ids = [str(rng.randrange(10 ** (digits - 1), 10**digits)) for _ in range(2000)]
    long = long_ids(pl.Series(ids)).to_list()
    assert bool(long) == (digits >= 17)
    assert sum(float_can_hold(int(text)) for text in long) <= 0.55 * len(long)


def test_a_column_that_went_through_a_float_is_refused(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    settings = IngestSettings(keep_lat_lon=True)
    rng = random.Random(2)
    ids = [rng.randrange(10**17, 10**18) for _ in range(30)]
    damaged = darkroom.plain([{"id": str(int(float(number)))} for number in ids])
    with pytest.raises(TableRefused, match=r"30 of 30 ids went through a float .*first: row 2.*check_ids=false"):
        survey_table(damaged, settings)
    assert survey_table(damaged, settings.model_copy(update={"check_ids": False})).rows == 30
    assert survey_table(darkroom.plain([{"id": str(number)} for number in ids]), settings).rows == 30
