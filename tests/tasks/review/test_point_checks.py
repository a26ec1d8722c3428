"""Labels against the Earth, months of capture against the months around them."""

from datetime import UTC, datetime, timedelta

import polars as pl

from tasks.review.point_checks import address_agrees, month_in_line

SCHEMA = {"country_code": pl.String, "region": pl.String, "city": pl.String, "lat": pl.Float64, "lon": pl.Float64}


def agrees(*rows: tuple[str | None, str | None, str | None, float, float]) -> list[tuple[bool, bool]]:
    return address_agrees(pl.DataFrame(rows, schema=SCHEMA, orient="row")).rows()


def test_a_label_is_held_against_its_point_by_whatever_name() -> None:
    munich = 48.137, 11.575
    assert agrees(("DE", "Bavaria", "Munich", *munich)) == [(True, True)]
    assert agrees(("DE", "Bayern", "München", *munich)) == [(True, True)]
    assert agrees(("DE", None, None, *munich)) == [(True, True)]  # what is not given disputes nothing
    assert agrees(("AT", "Bavaria", "Munich", *munich)) == [(False, True)]
    assert agrees(("DE", "Saxony", "Dresden", *munich)) == [(True, False)]
    assert agrees(("DE", "Saxony", "Dresden", 95.0, 11.0), (None, None, None, 0.0, -30.0)) == [(True, True)] * 2
    assert agrees() == []


def test_a_month_that_stands_out_is_found() -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    times = [start + timedelta(days=3 * number) for number in range(400)]
    frame = pl.DataFrame({"kind": ["photo"] * 400, "captured_at": times})
    assert month_in_line(frame).all()
    burst = pl.DataFrame({"kind": ["photo"] * 60, "captured_at": [datetime(2021, 5, 9, tzinfo=UTC)] * 60})
    odd = month_in_line(pl.concat([frame, burst]))
    assert not odd[-60:].any() and odd.sum() >= 385  # the rest of that month is named with it
    assert month_in_line(pl.concat([frame, burst.with_columns(kind=pl.lit("satellite"))])).all()
    assert month_in_line(burst).all()  # too few pictures to say anything
