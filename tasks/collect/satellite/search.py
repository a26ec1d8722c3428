"""The scenes that may show a picture."""

from datetime import UTC, datetime, time
from typing import Any

from schemas.settings.satellite import SatelliteSettings
from tasks.collect.satellite.grid import Grid
from tasks.collect.satellite.scenes import BANDS, CLASSES, VISUAL, Scene, UnusableScene, read_scene
from tasks.services import Stac


async def find_scenes(stac: Stac, grid: Grid, settings: SatelliteSettings) -> tuple[list[Scene], int, dict[str, str]]:
    """The scenes that may show a grid, in order of their ids, how many items there were, and why some are unusable."""
    start = datetime.combine(settings.start, time(0, 0, 0), UTC)
    end = datetime.combine(settings.end, time(23, 59, 59), UTC)
    found: dict[str, dict[str, Any]] = {}
    for box in grid.boxes():
        for row in await stac.search(settings.collection, box, start, end, settings.max_cloud_percent):
            found.setdefault(row["id"], row)
    assets = (CLASSES, VISUAL) if settings.assets == "visual" else (CLASSES, *BANDS)
    scenes, unusable = [], {}
    for name, row in sorted(found.items()):
        try:
            scenes.append(read_scene(row, assets))
        except UnusableScene as why:
            unusable[name] = str(why)
    return scenes, len(found), unusable
