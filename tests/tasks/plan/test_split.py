"""Splits by whole cells, and the distance they keep, up to the poles and across the date line."""

import numpy as np
import pytest

from schemas.settings.plan import SplitShares
from tasks.cell_split import SPLITS, keeps_clear, split_of_cells
from tasks.geo import cell_bounds, cell_of, distance_km
from tasks.plan.cells import CELLS, cell_corner, cell_number

SHARES = SplitShares(train=0.6, validation=0.2, benchmark=0.2)


def test_shares_of_cells_are_those_asked_for() -> None:
    splits = split_of_cells(3, SHARES)
    assert np.allclose(np.bincount(splits, minlength=3) / CELLS, [0.6, 0.2, 0.2], atol=0.01)
    assert np.array_equal(splits, split_of_cells(3, SHARES)) and not np.array_equal(splits, split_of_cells(4, SHARES))
    assert set(split_of_cells(3, SplitShares(train=0, validation=0, benchmark=1))) == {SPLITS.index("benchmark")}


@pytest.mark.parametrize("band", [(-2.0, 2.0), (50.0, 54.0), (80.0, 83.0), (88.5, 89.9), (-78.0, -75.0)])
@pytest.mark.parametrize("buffer_km", [1.0, 10.0, 50.0])
def test_points_that_keep_clear_keep_the_buffer(band: tuple[float, float], buffer_km: float) -> None:
    random = np.random.default_rng(int(buffer_km))
    lat, lon = random.uniform(*band, 1500), random.uniform(176, 184, 1500)
    lon = np.where(lon > 180, lon - 360, lon)
    splits = split_of_cells(1, SHARES)
    clear = keeps_clear(lat, lon, splits, buffer_km)
    lat, lon = lat[clear], lon[clear]
    own = splits[cell_number(lat, lon)]
    apart = distance_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    assert apart[own[:, None] != own[None, :]].min(initial=np.inf) >= buffer_km


def test_most_points_inside_cells_keep_clear() -> None:
    """The rule may not be so cautious that nothing is left."""
    random = np.random.default_rng(2)
    lat, lon = np.degrees(np.arcsin(random.uniform(-0.9, 0.9, 20_000))), random.uniform(-180, 180, 20_000)
    share = keeps_clear(lat, lon, split_of_cells(1, SHARES), 10.0).mean()
    assert 0.7 < share < 0.95


def test_no_buffer_and_one_split_clear_everything() -> None:
    lat, lon = np.array([0.0, 45.0]), np.array([0.0, -180.0])
    assert keeps_clear(lat, lon, split_of_cells(1, SHARES), 0.0).all()
    assert keeps_clear(lat, lon, split_of_cells(1, SplitShares(train=1, validation=0, benchmark=0)), 50.0).all()


def test_cell_numbers_are_the_cells_of_the_project() -> None:
    random = np.random.default_rng(9)
    lat = np.append(random.uniform(-90, 90, 500), [90.0, -90.0, 0.0, 89.99, -0.5])
    lon = np.append(random.uniform(-180, 180, 500), [180.0, -180.0, 0.0, 179.99, -0.5])
    south, west = cell_corner(cell_number(lat, lon))
    for a, b, s, w in zip(lat.tolist(), lon.tolist(), south.tolist(), west.tolist(), strict=True):
        assert cell_bounds(cell_of(a, b))[:2] == (s, w)
