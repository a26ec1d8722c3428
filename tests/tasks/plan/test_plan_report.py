"""The plan's map and tables."""

import io
from pathlib import Path

import polars as pl
from PIL import Image

from schemas.settings.plan import PlanSettings
from tasks.plan.report import LAND, SEA, SPLIT_COLOURS, write_report
from tasks.plan.stage import plan_places


def test_report_shows_quota_against_drawn_and_a_map(tmp_path: Path) -> None:
    settings = PlanSettings(places=60, countries=("FR", "MC", "BR"), spacing_km=1)
    places, _ = plan_places(settings)
    files = write_report(places, settings, tmp_path / "plan")
    by_country = pl.read_csv(files["countries.csv"])
    assert by_country["quota"].sum() == 60 and by_country["quota"].to_list() == by_country["drawn"].to_list()
    assert (by_country["drawn"] == by_country["train"] + by_country["validation"] + by_country["benchmark"]).all()
    by_continent = pl.read_csv(files["continents.csv"])
    assert dict(by_continent.select("continent", "countries").iter_rows())["Europe"] >= 1
    assert by_continent["drawn"].sum() == 60
    picture = Image.open(io.BytesIO(files["map.png"].read_bytes()))
    assert picture.size == (1800, 720)
    colours = {colour for _, colour in picture.getcolors(maxcolors=10**6) or []}
    assert {SEA, LAND, SPLIT_COLOURS["train"]} <= colours
    # Inner Australia is land, the middle of the Pacific is not.
    assert picture.getpixel(((134 + 180) * 5, (84 + 24) * 5)) == LAND
    assert picture.getpixel(((-140 + 180) * 5, (84 + 30) * 5)) == SEA
    assert [p.name for p in (tmp_path / "plan").iterdir() if p.name.startswith(".")] == []
