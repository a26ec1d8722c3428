"""The scenes that may show a picture."""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from schemas.settings.satellite import SatelliteSettings
from tasks.services.sentinel.grid import Grid
from tasks.services.sentinel.scenes import BANDS, CLASSES, VISUAL, Scene, UnusableScene, read_scene
from tasks.services.stac import Stac


async def find_scenes(stac: Stac, grid: Grid, settings: SatelliteSettings) -> tuple[list[Scene], int, dict[str, str]]:
    """The scenes that may show a grid, in order of their ids, how many items there were, and why some are unusable."""
    start = datetime.combine(settings.start, time(0, 0, 0), UTC)
    end = datetime.combine(settings.end, time(23, 59, 59), UTC)
    items: dict[str, dict[str, Any]] = {}
    for box in grid.boxes():
        for row in await stac.search(settings.collection, box, start, end, settings.max_cloud_percent):
            name = row.get("id")
            items.setdefault(name if isinstance(name, str) and name else f"(no id, item {len(items) + 1})", row)
    assets = (CLASSES, VISUAL) if settings.assets == "visual" else (CLASSES, *BANDS)
    scenes, unusable = [], {}
    for name, row in sorted(items.items()):
        try:
            scene = read_scene(row, assets)
            _check_answers(scene, start, end, settings)
            scenes.append(scene)
        except UnusableScene as why:
            unusable[name] = str(why)
    return scenes, len(items), unusable


def _check_answers(scene: Scene, start: datetime, end: datetime, settings: SatelliteSettings) -> None:
    """An archive may pass over a part of the question."""
    if not start <= scene.captured_at <= end + timedelta(seconds=1):
        raise UnusableScene(f"of {scene.captured_at:%Y-%m-%d}, which was not asked for")
    if scene.cloud_percent > settings.max_cloud_percent:
        raise UnusableScene(f"{scene.cloud_percent:.0f} % cloud, which was not asked for")


def newest_processing(scenes: Sequence[Scene]) -> list[Scene]:
    """Of scenes that are one picture processed several times, the last one."""
    newest: dict[object, Scene] = {}
    for scene in scenes:
        key = (scene.tile, scene.captured_at) if scene.tile else scene.id
        known = newest.get(key)
        if known is None or (scene.baseline, scene.id) > (known.baseline, known.id):
            newest[key] = scene
    return list(newest.values())
