"""The sheet in the docs: made by a command, light enough for a page."""

from pathlib import Path

from infra.derive.contact_sheet import contact_sheet, map_cells, street_cells
from infra.offline.world import World


def test_a_sheet_shows_different_countries_and_maps():
    small_world = World(seed=7, size=600, pano_width=1024)
    streets = street_cells(small_world, 3)
    assert len({caption.split(", ")[-1] for caption, _ in streets}) == 3
    maps = map_cells(small_world, 1)
    assert "roadmap" in maps[0][0]
    assert contact_sheet(streets + maps, columns=2).size == (880, 544)


def test_the_sheet_of_the_docs_is_light():
    assert (Path(__file__).parents[3] / "docs" / "offline-world.jpg").stat().st_size < 1_500_000
