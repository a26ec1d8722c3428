"""Rows drawn of a table: shares, GeoSeek's strata, MAPBench's cities; the same rows every time."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.geo.atlas import countries
from tasks.geo.boundaries import country_of
from tasks.geo.cell_split import cell_number
from tasks.ingest import Survey, TableRefused
from tasks.ingest.draw import drawn
from tasks.ingest.rows import RowChecks, item_batches
from tasks.ingest.survey import survey_rows
from tasks.plan.quota import country_quotas
from tasks.plan.strata import PlanStrata

RIGHTS: dict[str, Any] = {"licence": "CC BY 4.0", "attribution": "Somebody", "keep_lat_lon": True}
HEADER = "id,path,lat,lon,city,poi"


def table(folder: Path, rows: list[str]) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def look(path: Path, plan: PlanSettings | None = None, **settings: Any) -> Survey:
    chosen = IngestSettings(**{**RIGHTS, **settings})
    return drawn(survey_rows(path, chosen), chosen, PlanStrata(plan or PlanSettings()))


def ids(survey: Survey) -> list[str]:
    return [one for rows in survey.batches() for one in rows["id"]]


@pytest.fixture
def everywhere(tmp_path: Path) -> Path:
    """A point of every fourth square degree of land or sea, and many in one city."""
    draw = random.Random(4)
    points = [(lat + 0.5, lon + 0.5) for lat in range(-55, 72, 2) for lon in range(-178, 178, 2)]
    points += [(48.8 + draw.random() / 5, 2.2 + draw.random() / 5) for _ in range(2000)]
    return table(tmp_path, [f"{n},{n}.jpg,{lat},{lon},c,p{n}" for n, (lat, lon) in enumerate(points)])


def test_a_share_is_the_same_rows_every_time_and_part_of_a_larger_one(tmp_path: Path) -> None:
    """SpotAgent 3.2.2: 5 % of MP16-Pro."""
    path = table(tmp_path, [f"a{n},{n}.jpg,48.5,2.5,c,p" for n in range(4000)])
    small, large = look(path, share=0.05), look(path, share=0.2)
    assert small.rows == len(ids(small)) and 150 < small.rows < 250
    assert set(ids(small)) < set(ids(large)) and ids(look(path, share=0.05)) == ids(small)
    assert set(ids(look(path, share=0.05, seed=1))) != set(ids(small))
    before, shuffled = set(ids(small)), list(range(4000))
    random.Random(1).shuffle(shuffled)
    again = table(tmp_path, [f"a{n},{n}.jpg,48.5,2.5,c,p" for n in shuffled])
    other = look(again, share=0.05)
    assert set(ids(other)) == before, "whatever the order of the rows"
    assert any(f"drawn: {other.rows:,} of 4,000 rows (a share of 0.05)" in note for note in other.notes)
    assert look(again).chosen is None and look(again).rows == 4000


def test_only_drawn_rows_become_items(tmp_path: Path) -> None:
    """What follows the survey, the retiring of rows that left included, sees the drawn rows and no others."""
    path = table(tmp_path, [f"a{n},{n}.jpg,48.5,2.5,c,p" for n in range(300)])
    found = look(path, share=0.1)
    items = pl.concat(list(item_batches(found, "set", IngestSettings(**RIGHTS), PlanSettings())))
    assert sorted(items["source_id"]) == sorted(ids(found)) and items.height == found.rows


def test_a_drawn_table_follows_the_quotas_of_the_plan(everywhere: Path) -> None:
    """GeoAgent B.1: countries by eq. 11, where the table has enough rows of them."""
    plan = PlanSettings(places=400)
    found = look(everywhere, plan, draw=400)
    assert found.rows == 400
    rows = pl.concat(list(found.batches()))
    lat, lon = (rows[name].cast(pl.Float64).to_numpy() for name in ("lat", "lon"))
    drawn_of = Counter(country_of(lat, lon).tolist())
    quotas = country_quotas(countries(), plan)
    for code in ("US", "CN", "BR", "RU", "AU"):
        assert abs(drawn_of[code] - quotas[code]) <= 0.15 * quotas[code] + 3, code
    assert "" not in drawn_of, "no row at sea"
    in_paris = int(((np.floor(lat) == 48) & (np.floor(lon) == 2)).sum())
    assert in_paris <= drawn_of["FR"] / 2, "two thousand rows of one city do not take their country's quota"
    assert ids(look(everywhere, plan, draw=400)) == ids(found)


def test_cells_are_drawn_by_their_weight_and_not_by_their_rows(tmp_path: Path) -> None:
    """Eq. 12: a cell's rows share log(1 + P); a crowded cell weighs as one with few rows of as many people."""
    strata = PlanStrata(PlanSettings())
    french = strata.cells().filter(pl.col("country") == "FR").sort("weight")
    low, high = french.row(5, named=True), french.row(-1, named=True)
    points = {}
    for name, cell, count in (("low", low["cell"], 500), ("high", high["cell"], 500)):
        south, west = cell // 360 - 90, cell % 360 - 180
        inside = [(south + (k + 0.5) / 40, west + (j + 0.5) / 40) for k in range(40) for j in range(40)]
        is_french = country_of(*(np.array(one) for one in zip(*inside, strict=True))) == "FR"
        points[name] = [one for one, yes in zip(inside, is_french, strict=True) if yes][:count]
    rows = [f"{name}{n},{n}.jpg,{lat},{lon},c,p" for name, some in points.items() for n, (lat, lon) in enumerate(some)]
    path = table(tmp_path, rows)
    picks = Counter(one.rstrip("0123456789") for seed in range(150) for one in ids(look(path, draw=1, seed=seed)))
    expected = high["weight"] / (high["weight"] + low["weight"])
    assert picks["high"] / 150 == pytest.approx(expected, abs=3.5 * (expected * (1 - expected) / 150) ** 0.5)
    assert cell_number(np.array([points["low"][0][0]]), np.array([points["low"][0][1]])) == low["cell"]


def test_what_a_country_lacks_goes_to_the_others() -> None:
    strata = PlanStrata(PlanSettings())
    assert strata.quotas({"FR": 5, "DE": 1000}, 100) == {"DE": 95, "FR": 5}
    assert strata.quotas({"FR": 5, "DE": 6}, 100) == {"DE": 6, "FR": 5}, "no more than there are"
    assert sum(strata.quotas(dict.fromkeys(countries()["iso2"], 10**6), 12_500).values()) == 12_500


def test_a_benchmark_of_cities_has_one_picture_a_point_of_interest(tmp_path: Path) -> None:
    """MAPBench: points of 20 cities, one picture each, as many of every city as there are."""
    rows = [
        f"{city}-{poi}-{view},{city}{poi}{view}.jpg,30.5,110.5,city{city},{city}/{poi}"
        for city in range(25)
        for poi in range(10 + city)
        for view in range(3)
    ]
    found = look(table(tmp_path, rows), draw=200, draw_by="cities", cities=20)
    chosen = pl.DataFrame([one.split("-") for one in ids(found)], schema=["city", "poi", "view"], orient="row")
    assert chosen.height == 200 == chosen.select("city", "poi").n_unique(), "no point of interest twice"
    assert dict(chosen["city"].value_counts().iter_rows()) == {str(city): 10 for city in range(5, 25)}
    assert chosen["view"].n_unique() == 3, "any of a point's pictures"
    few = look(table(tmp_path, rows), draw=10_000, draw_by="cities", cities=20)
    assert few.rows == sum(10 + city for city in range(5, 25)), "all that there are"


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    path = table(tmp_path, ["a,a.jpg,48.5,2.5,c,p"] * 3)
    with pytest.raises(TableRefused, match="no column place, by which rows are to be drawn"):
        look(path, draw=2, draw_by="cities", poi_column="place")
    with pytest.raises(TableRefused, match="none of its 1 rows is drawn"):
        look(table(tmp_path, ["a,a.jpg,0.5,-30.5,c,p"]), draw=2)


def test_the_share_of_a_layout_holds_for_its_tables_alone(tmp_path: Path) -> None:
    path = table(tmp_path, [f"a{n},{n}.jpg,48.5,2.5,c,p" for n in range(1000)])
    assert look(path, shares={"mp16-pro": 0.05}).rows == 1000, "a plain table"
    assert look(path, shares={"plain": 0.05}).rows == look(path, share=0.05).rows < 100
    assert look(path, shares={"plain": 0.05}, share=1.0).rows == 1000, "`share` goes before"


def test_a_benchmark_is_held_out_by_seed(tmp_path: Path) -> None:
    """Thinking with Map, appendix A: 902 of IMAGEO-2's 2,929 pictures are its test set, the other 2,027 train."""
    path = table(tmp_path, [f"a{n},{n}.jpg,{48 + n / 5000},2.5,c,p" for n in range(2929)])

    def splits(seed: int = 0) -> dict[str, str]:
        survey = look(path, held_out=902, seed=seed)
        assert "held out: 902 rows are the benchmark, 2,027 are for training" in survey.notes[-1]
        checks = RowChecks(survey, IngestSettings(**RIGHTS, held_out=902))
        return dict(pl.concat(map(checks.check, survey.batches())).select("source_id", "split").iter_rows())

    found = splits()
    assert Counter(found.values()) == {"benchmark": 902, "train": 2027}
    assert splits() == found != splits(seed=1)
    with pytest.raises(TableRefused, match="held_out=2929 leaves none"):
        look(path, held_out=2929)


def test_a_training_set_is_validated_on_what_it_holds_out(tmp_path: Path) -> None:
    path = table(tmp_path, [f"a{n},{n}.jpg,{48 + n / 5000},2.5,c,p" for n in range(40)])
    survey = look(path, held_out=8, purpose="training")
    assert "held out: 8 rows are for validation, 32 are for training" in survey.notes[-1]
    checks = RowChecks(survey, IngestSettings(**RIGHTS, held_out=8, purpose="training"))
    rows = pl.concat(map(checks.check, survey.batches()))
    assert Counter(rows["split"]) == {"validation": 8, "train": 32} and set(rows["purpose"]) == {"training"}
