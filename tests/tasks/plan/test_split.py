"""Splits by whole cells, and the distance they keep, up to the poles and across the date line."""

import numpy as np
import pytest

from schemas.settings.plan import SplitShares
from tasks.geo.boundaries import country_codes, country_number, land_squares, square_of
from tasks.geo.cell_split import (
    SPLITS,
    joined_cells,
    keeps_clear,
    keeps_clear_of_land,
    rejoined,
    split_of_cells,
    split_of_lone_cells,
)
from tasks.geo.distance import cell_of, distance_km
from tasks.plan.cells import CELLS, cell_corner, cell_number, cells

SHARES = SplitShares(train=0.6, validation=0.2, benchmark=0.2)


def test_shares_of_cells_are_those_asked_for() -> None:
    splits = split_of_cells(3, SHARES, 10)
    assert np.allclose(np.bincount(splits, minlength=3) / CELLS, [0.6, 0.2, 0.2], atol=0.01)
    assert np.array_equal(splits, split_of_cells(3, SHARES, 10)) and not np.array_equal(
        splits, split_of_cells(4, SHARES, 10)
    )
    assert set(split_of_cells(3, SplitShares(train=0, validation=0, benchmark=1), 10)) == {SPLITS.index("benchmark")}


@pytest.mark.parametrize("band", [(-2.0, 2.0), (50.0, 54.0), (80.0, 83.0), (88.5, 89.9), (-78.0, -75.0)])
@pytest.mark.parametrize("buffer_km", [1.0, 10.0, 50.0])
def test_points_that_keep_clear_keep_the_buffer(band: tuple[float, float], buffer_km: float) -> None:
    random = np.random.default_rng(int(buffer_km))
    lat, lon = random.uniform(*band, 1500), random.uniform(176, 184, 1500)
    lon = np.where(lon > 180, lon - 360, lon)
    splits = split_of_cells(1, SHARES, buffer_km)
    clear = keeps_clear(lat, lon, splits, buffer_km)
    lat, lon = lat[clear], lon[clear]
    own = splits[cell_number(lat, lon)]
    apart = distance_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    assert apart[own[:, None] != own[None, :]].min(initial=np.inf) >= buffer_km


def test_most_points_inside_cells_keep_clear() -> None:
    """The rule may not be so cautious that nothing is left."""
    random = np.random.default_rng(2)
    lat, lon = np.degrees(np.arcsin(random.uniform(-0.9, 0.9, 20_000))), random.uniform(-180, 180, 20_000)
    share = keeps_clear(lat, lon, split_of_cells(1, SHARES, 10), 10.0).mean()
    assert 0.7 < share < 0.95


def test_no_buffer_and_one_split_clear_everything() -> None:
    lat, lon = np.array([0.0, 45.0]), np.array([0.0, -180.0])
    assert keeps_clear(lat, lon, split_of_cells(1, SHARES, 10), 0.0).all()
    assert keeps_clear(lat, lon, split_of_cells(1, SplitShares(train=1, validation=0, benchmark=0), 50), 50.0).all()


def test_cell_numbers_are_the_cells_of_the_project() -> None:
    random = np.random.default_rng(9)
    lat = np.append(random.uniform(-90, 90, 500), [90.0, -90.0, 0.0, 89.99, -0.5])
    lon = np.append(random.uniform(-180, 180, 500), [180.0, -180.0, 0.0, 179.99, -0.5])
    south, west = cell_corner(cell_number(lat, lon))
    for a, b, s, w in zip(lat.tolist(), lon.tolist(), south.tolist(), west.tolist(), strict=True):
        assert cell_of(a, b) == cell_of(s, w) and 0 <= a - s <= 1 and 0 <= b - w <= 1


@pytest.mark.parametrize("buffer_km", [1.0, 10.0, 50.0])
def test_points_that_keep_clear_of_land_keep_the_buffer(buffer_km: float) -> None:
    """Islands of Micronesia, the Faroes and the Leeward Islands: among themselves, and to points in the open sea."""
    splits = split_of_cells(5, SHARES, buffer_km)
    random = np.random.default_rng(6)
    gained = 0
    for south, west, high, wide in ((4, 134, 6, 30), (61, -8, 2, 2), (15, -65, 4, 5)):
        lat, lon = random.uniform(south, south + high, 60_000), random.uniform(west, west + wide, 60_000)
        land = country_number(lat, lon) > 0
        assert land_squares()[square_of(lat[land], lon[land])].all()
        strict = keeps_clear(lat, lon, splits, buffer_km)
        loose = np.zeros(len(lat), dtype=bool)
        loose[land] = keeps_clear_of_land(lat[land], lon[land], splits, buffer_km)
        assert loose[land & strict].all()
        gained += int((loose & ~strict).sum())
        ashore, any_where = np.flatnonzero(loose)[:1500], np.flatnonzero(strict | loose)[:3000]
        apart = distance_km(lat[ashore, None], lon[ashore, None], lat[None, any_where], lon[None, any_where])
        own = splits[cell_number(lat, lon)]
        assert apart[own[ashore, None] != own[None, any_where]].min(initial=np.inf) >= buffer_km
    assert gained > 0


def test_sea_alone_keeps_nothing_from_an_island() -> None:
    """Nauru lies 5 km from the next cell, in which there is no land at all."""
    splits = split_of_cells(0, SHARES, 10).copy()
    lat, lon = np.array([-0.53]), np.array([166.93])
    splits[cell_number(lat, lon)] = 0
    splits[cell_number(lat, lon) + 1] = 1
    assert not keeps_clear(lat, lon, splits, 10.0).any() and keeps_clear_of_land(lat, lon, splits, 10.0).all()


def test_the_cells_of_a_narrow_country_have_one_split() -> None:
    table, codes = cells(), country_codes()

    def own(code: str) -> set[int]:
        number = codes.index(code)
        return set(table.cell[table.first[number] : table.first[number + 1]].tolist())

    assert own("NF") in [set(group) for group in joined_cells(10.0)] and joined_cells(0.0) == ()
    # Of Aruba and Saint Lucia 10 km would leave a strip, of Saint Pierre and Miquelon and of Malta more than half.
    joined = [set(group) for group in joined_cells(10.0)]
    for code, one_split in (("AW", True), ("LC", True), ("NU", True), ("PM", False), ("MT", False), ("LU", False)):
        assert any(own(code) <= group for group in joined) == one_split, code
    for code in ("PM", "MT", "LU", "HK"):
        assert any(own(code) <= set(group) for group in joined_cells(30.0)), code
    for seed in range(20):
        splits, lone = split_of_cells(seed, SHARES, 30.0), split_of_lone_cells(seed, SHARES)
        for group in joined_cells(30.0):
            assert len(set(splits[list(group)].tolist())) == 1
        changed = np.flatnonzero(splits != lone)
        assert set(changed.tolist()) <= set(rejoined(seed, SHARES, 30.0).tolist())
