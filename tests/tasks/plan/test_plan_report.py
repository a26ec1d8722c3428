"""The plan's map and tables."""

import io
from pathlib import Path

import polars as pl
from PIL import Image

from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from tasks.lake import Lake
from tasks.plan import STAGES, report
from tasks.plan.report import COAST, LAND, SEA, SPLIT_COLOURS, world_map, write_report
from tasks.plan.stage import plan_places
from tasks.runtime.runner import Context, run
from tasks.services import connect


def test_report_shows_quota_against_drawn_and_a_map(tmp_path: Path) -> None:
    settings = PlanSettings(places=60, countries=("FR", "MC", "BR"), spacing_km=1)
    places, _ = plan_places(settings)
    made = write_report(places, settings, tmp_path / "plan")
    files = made.files
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
    assert "| Europe |" in made.markdown and "| **all** |" in made.markdown and str(files["map.png"]) in made.markdown
    assert made.pictures == [files["map.png"]]


def test_places_in_antarctica_are_on_the_map() -> None:
    places, _ = plan_places(PlanSettings(places=40, countries=("AQ", "CL"), exclude=()))
    polar = places.filter(pl.col("lat") < -61)
    assert polar.height > 5
    picture = Image.open(io.BytesIO(world_map(places)))
    assert picture.size == (1800, 870)
    colours = set(SPLIT_COLOURS.values())
    for lat, lon in polar.select("lat", "lon").iter_rows():
        assert picture.getpixel((int((lon + 180) * 5), int((84 - lat) * 5))) in colours


def test_land_stands_out_from_the_sea() -> None:
    """By the contrast of WCAG 2: at least 1.4, as printed maps have, and every split's colour well above both."""

    def light(colour: tuple[int, int, int]) -> float:
        parts = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05

    assert light(LAND) / light(SEA) >= 1.4 and light(SEA) / light(COAST) >= 1.4
    assert all(light(SEA) / light(colour) > 1.2 for colour in SPLIT_COLOURS.values())


def test_a_plan_of_cities_has_a_table_of_cities(tmp_path: Path) -> None:
    settings = PlanSettings(mode="cities", places=40, countries=("FR", "JP", "BR"), cities={"count": 9})
    places, _ = plan_places(settings)
    made = write_report(places, settings, tmp_path)
    by_city = pl.read_csv(made.files["cities.csv"])
    assert by_city.height == 9 and by_city["quota"].sum() == 40
    assert by_city["drawn"].sum() == places.height
    by_country = pl.read_csv(made.files["countries.csv"])
    assert by_country["quota"].sum() == 40 and by_country.height == 3


def test_the_report_is_written_again_only_when_the_plan_changed(tmp_path: Path) -> None:
    context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}))

    def written(settings: PlanSettings) -> dict[str, int]:
        run(STAGES[0], settings, context)
        return {name: path.stat().st_mtime_ns for name, path in report(context.lake, settings).files.items()}

    one = PlanSettings(mode="cities", places=4, countries=("FR",), cities={"count": 2})
    first = written(one)
    assert written(one) == first
    (tmp_path / "lake/reports/plan/map.png").unlink()
    assert written(one)["map.png"] > first["map.png"]
    other = written(PlanSettings(places=5, countries=("FR",)))
    assert set(other) == {"map.png", "countries.csv", "continents.csv"}
    assert not (tmp_path / "lake/reports/plan/cities.csv").exists()
    assert pl.read_csv(tmp_path / "lake/reports/plan/countries.csv")["drawn"].sum() == 5
