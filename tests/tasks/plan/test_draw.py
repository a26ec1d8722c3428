"""What every drawn place must hold: its country, its cell, its distance to others and to other splits."""

import numpy as np
import polars as pl
import pytest
import shapely

import tasks.plan.spacing
from bench.labels_million import prepared_countries
from schemas.settings.plan import PlanSettings, SplitShares
from tasks.geo.atlas import countries
from tasks.geo.boundaries import country_codes, country_number, country_of
from tasks.geo.cell_split import split_of_cells
from tasks.geo.distance import cell_of, distance_km
from tasks.plan.cells import cell_corner, cell_number, cells
from tasks.plan.draw import draw
from tasks.plan.quota import country_quotas
from tasks.plan.spacing import Spacing
from tasks.plan.stage import plan_identity, plan_places
from tasks.runtime.items.identity import digest


def check(places: pl.DataFrame, settings: PlanSettings) -> None:
    lat, lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    for code in places["country"].unique().to_list():  # by shapely on the same polygons, not by the plan's own lookup
        own = places.filter(pl.col("country") == code)
        assert shapely.intersects_xy(prepared_countries()[code], own["lon"].to_numpy(), own["lat"].to_numpy()).all()
    assert [cell_of(a, b) for a, b in zip(lat.tolist(), lon.tolist(), strict=True)] == places["cell"].to_list()
    assert places["place_id"].is_unique().all()
    assert (places.group_by("cell").agg(pl.col("split").n_unique())["split"] == 1).all()
    apart = distance_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    np.fill_diagonal(apart, np.inf)
    assert apart.min(initial=np.inf) >= settings.spacing_km
    split = places["split"].to_numpy()
    other = split[:, None] != split[None, :]
    assert not other.any() or apart[other].min() >= settings.buffer_km


@pytest.fixture(scope="module")
def geoseek_val() -> pl.DataFrame:
    return plan_places(PlanSettings(preset="geoseek-val"))[0]


def test_a_world_plan_holds_every_rule(geoseek_val: pl.DataFrame) -> None:
    assert geoseek_val.height == 3000
    check(geoseek_val, PlanSettings())
    shares = {row["split"]: row["count"] / 3000 for row in geoseek_val["split"].value_counts().iter_rows(named=True)}
    assert abs(shares["train"] - 0.8) < 0.04


def test_the_same_settings_draw_the_same_places(geoseek_val: pl.DataFrame) -> None:
    assert plan_places(PlanSettings(preset="geoseek-val"))[0].equals(geoseek_val)
    other = plan_places(PlanSettings(preset="geoseek-val", seed=8))[0]
    assert not set(other["place_id"]) & set(geoseek_val["place_id"])


def test_the_order_of_countries_does_not_matter() -> None:
    quotas = {"FR": 40, "BE": 30, "DE": 20, "MC": 2, "LU": 9}
    one = draw(cells(), quotas, PlanSettings())
    two = draw(cells(), dict(reversed(quotas.items())), PlanSettings())
    assert np.array_equal(one.lat, two.lat) and np.array_equal(one.lon, two.lon)


def test_countries_drawn_apart_give_the_same_places_as_together() -> None:
    """Up to spacing across borders, which is off here, the work can be divided among any number of workers."""
    quotas = {"FR": 40, "BE": 30, "DE": 20, "JP": 25, "TV": 2}
    settings = PlanSettings(spacing_km=0)
    together = draw(cells(), quotas, settings)
    points = {
        (c, s): (a, b) for c, s, a, b in zip(together.group, together.slot, together.lat, together.lon, strict=True)
    }
    for code, quota in quotas.items():
        alone = draw(cells(), {code: quota}, settings)
        for c, s, a, b in zip(alone.group, alone.slot, alone.lat, alone.lon, strict=True):
            assert points[c, s] == (a, b)


def test_a_larger_plan_begins_with_the_smaller_one() -> None:
    small = draw(cells(), {"BR": 50}, PlanSettings(spacing_km=0))
    large = draw(cells(), {"BR": 90}, PlanSettings(spacing_km=0))
    assert np.array_equal(small.lat, large.lat[:50])


def test_what_cannot_be_placed_is_reported() -> None:
    """Monaco cannot hold forty places ten kilometres apart."""
    settings = PlanSettings(places=40, countries=("MC",), spacing_km=10)
    places, refused = plan_places(settings)
    assert places.height >= 1 and places.height + refused.height == 40
    assert refused["reason"].unique().to_list() == ["no_place_too_close"]


def test_small_countries_keep_their_quota() -> None:
    """Every territory under 3,000 km2, with what eq. 11 gives it of a million places, or one, and two at most."""
    small = [c for c in countries().filter(pl.col("land_km2") < 3000)["iso2"].to_list() if c != "AQ"]
    quotas = country_quotas(countries(), PlanSettings(places=1_000_000))
    wanted = {code: max(1, min(quotas[code], 2)) for code in small}
    assert len(wanted) > 60
    for seed in range(3):
        assert (draw(cells(), wanted, PlanSettings(seed=seed)).row >= 0).all()


def test_islands_as_wide_as_a_few_buffers_keep_a_quota_of_many() -> None:
    """Aruba and Saint Lucia, with their places of a plan of a million: one cell of several would be too small."""
    wanted = {"AW": 16, "LC": 21}
    for seed in range(1, 13):
        slots = draw(cells(), wanted, PlanSettings(seed=seed))
        assert (slots.row >= 0).all(), seed


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.6, 0.15, 0.25)])
def test_islands_near_the_edge_of_a_cell_keep_their_quota(shares: tuple[float, float, float]) -> None:
    """Norfolk Island lies in two cells, Sint Maarten by the edge of one, and Vatican City is drawn 100 m wide."""
    split = SplitShares(train=shares[0], validation=shares[1], benchmark=shares[2])
    wanted = {"NF": 1, "NR": 2, "SX": 2, "MF": 3, "VA": 1, "TV": 2, "TK": 2, "PN": 2, "MV": 3}
    codes = np.array(country_codes())
    late = 0
    for seed in range(40):
        settings = PlanSettings(seed=seed, split=split)
        slots = draw(cells(), wanted, settings)
        assert (slots.row >= 0).all(), (seed, codes[slots.group[slots.row < 0]])
        assert (country_of(slots.lat, slots.lon) == codes[slots.group]).all()
        own = split_of_cells(seed, split, settings.buffer_km)[cell_number(slots.lat, slots.lon)]
        apart = distance_km(slots.lat[:, None], slots.lon[:, None], slots.lat[None, :], slots.lon[None, :])
        assert apart[own[:, None] != own[None, :]].min(initial=np.inf) >= settings.buffer_km
        late += int(slots.late.sum())
    assert late > 40


def test_only_plans_that_a_new_rule_changed_have_another_version() -> None:
    """What was planned before there was such a rule keeps its version."""
    plain = PlanSettings(places=40, countries=("FR", "PL"), cell_floor_people=0)
    places, _ = plan_places(plain)
    assert set(places["plan_version"]) == {digest("plan", 1, plan_identity(plain))}
    island = PlanSettings(places=1, countries=("VA",), seed=1, cell_floor_people=0)
    places, _ = plan_places(island)
    assert set(places["plan_version"]) == {digest("plan", 2, plan_identity(island))}
    floor = PlanSettings(places=40, countries=("FR", "PL"))
    assert set(plan_places(floor)[0]["plan_version"]) == {digest("plan", 3, plan_identity(floor))}
    cities = PlanSettings(mode="cities", places=4, cities={"count": 2}, countries=("FR",))
    assert set(plan_places(cities)[0]["plan_version"]) == {digest("plan", 1, plan_identity(cities))}


def test_specks_of_land_with_nobody_on_them_get_hardly_a_place() -> None:
    """Rocks and corners beyond a border: under a hundredth of a cell, and nobody in the gazetteer."""
    table, codes = cells(), country_codes()
    quotas = country_quotas(countries(), PlanSettings(places=20_000))
    weight = table.weights(PlanSettings().floor_people)
    chance = weight / np.bincount(table.country, weights=weight)[table.country]
    expected = np.array([quotas.get(codes[c], 0) for c in table.country]) * chance
    speck = (table.share < 0.01) & (table.people == 0)
    assert speck.sum() > 900 and expected[speck].sum() < 50
    inland = (table.share > 0.99) & (table.people == 0)
    assert np.allclose(weight[inland], np.log1p(100), rtol=0.01), "a whole cell of land has the whole floor"


def test_the_share_of_land_is_what_random_points_say() -> None:
    table, random = cells(), np.random.default_rng(4)
    rows = np.concatenate([random.choice(len(table.cell), 300), np.flatnonzero(table.share < 1e-3)[:20]])
    south, west = cell_corner(table.cell[rows])
    hits = np.zeros(len(rows))
    for _ in range(100):
        lat, lon = south + random.random(len(rows)), west + random.random(len(rows))
        hits += country_number(lat, lon) == table.country[rows]
    share = table.share[rows]
    assert (np.abs(hits / 100 - share) < 5 * np.sqrt(share * (1 - share) / 100) + 0.03).all()
    whole = np.bincount(table.cell, weights=table.share)
    assert whole.max() < 1 + 1e-6, "countries share a cell, they do not overlap"


def test_uniform_draws_are_even_by_area_not_by_degree() -> None:
    """Canada's whole cells: the mean of sin(lat) inside a cell must be that of the cell's middle."""
    settings = PlanSettings(
        places=6000, countries=("CA",), within_cell="uniform", spacing_km=0, buffer_km=0, cell_floor_people=1e12
    )
    places, _ = plan_places(settings)
    inland = places.filter(pl.col("lat").is_between(54, 60) & pl.col("lon").is_between(-118, -96))
    heights = []
    for row in inland.iter_rows(named=True):
        south = np.floor(row["lat"])
        low, high = np.sin(np.radians([south, south + 1]))
        heights.append((np.sin(np.radians(row["lat"])) - low) / (high - low))
        assert row["cell"] == cell_of(row["lat"], row["lon"])
    heights_array = np.array(heights)
    assert len(heights_array) > 200
    assert abs(heights_array.mean() - 0.5) < 4 / np.sqrt(12 * len(heights_array))


def test_cells_are_drawn_by_log_of_people() -> None:
    settings = PlanSettings(places=20_000, countries=("ES",), spacing_km=0, buffer_km=0)
    places, _ = plan_places(settings)
    seen = places.group_by("cell").agg(pl.len(), pl.col("probability").first(), pl.col("weight").first())
    expected = seen["probability"] * 20_000
    # The two differ by cells whose land is a sliver of coast: they are drawn again elsewhere.
    assert ((seen["len"] - expected).abs() < 6 * expected.sqrt() + 3).mean() > 0.95
    table = cells()
    spain = country_codes().index("ES")
    total = np.log1p(table.people + 100 * table.share)[table.first[spain] : table.first[spain + 1]].sum()
    assert np.allclose(seen["weight"] / total, seen["probability"])


def test_points_taken_in_block_by_block_are_those_taken_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    lat, lon = random.uniform(40, 41, 3000), random.uniform(2, 3, 3000)

    def taken() -> list[bool]:
        spacing = Spacing(1.0)
        return [*spacing.accept(lat[:2000], lon[:2000]).tolist(), *spacing.accept(lat[2000:], lon[2000:]).tolist()]

    at_once = taken()
    monkeypatch.setattr(tasks.plan.spacing, "BLOCK", 137)
    assert taken() == at_once and 1000 < sum(at_once) < 3000
