"""Finding scenes: pass by pass in order of time, looking only at tiles and orbits that can match."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import shapely
from shapely.affinity import translate

from infra.offline.scenes.orbit import (
    CYCLE_DAYS,
    FIRST_DAY,
    LAST_DAY,
    LEAST_SHARE,
    Scene,
    footprint,
    orbits_near,
    pass_time,
    scene_with_id,
    swath_share,
)
from infra.offline.scenes.paint import cloud_percent
from infra.offline.scenes.tiles import Tile, tiles_in
from infra.offline.services.stac_items import COLLECTION, properties
from infra.offline.services.stac_request import BadRequest, Search


def find(seed: int, search: Search) -> tuple[list[Scene], bool]:
    """(one page of scenes, whether more follow)."""
    if search.collections is not None and COLLECTION not in search.collections:
        return [], False
    page: list[Scene] = []
    for scene in _ordered(search):
        look = partial(_look, seed, scene)
        if all(condition(look) for condition in search.conditions):
            if len(page) == search.limit:
                return page, True
            page.append(scene)
    return page, False


def _look(seed: int, scene: Scene, name: str) -> Any:
    if name == "id":
        return scene.id
    if name == "collection":
        return COLLECTION
    if name == "eo:cloud_cover":  # what most searches ask; the others come all at once
        return cloud_percent(seed, scene)
    return properties(seed, scene).get(name)


def _ordered(search: Search) -> Iterator[Scene]:
    """Scenes that match in place, time and id, in order of time and then of id, after the page before."""
    last = None
    if search.after:
        last = scene_with_id(search.after)
        if last is None:
            raise BadRequest("token: not one of this server")
    sign = -1 if search.newest_first else 1
    seen: dict[tuple[Tile, int], bool] = {}
    for at, orbit, number, tiles in _passes(search):
        if last is not None and (at - last.at) * sign < timedelta(0):
            continue
        scenes = [Scene(tile, orbit, number) for tile in tiles if _matches(tile, orbit, search, seen)]
        if search.ids is not None:
            scenes = [scene for scene in scenes if scene.id in search.ids]
        for scene in sorted(scenes, key=lambda scene: scene.id, reverse=search.newest_first):
            if last is None or (at != last.at) or (scene.id < last.id if search.newest_first else scene.id > last.id):
                yield scene


def _passes(search: Search) -> Iterator[tuple[Any, int, int, list[Tile]]]:
    """(time, orbit, number, tiles that may be seen) of every pass in question, in the order asked for."""
    tiles = _tiles(search)
    if not tiles:
        return
    lat, lon = (np.array([tile.centre[k] for tile in tiles]) for k in (0, 1))
    start, end = max(search.start, FIRST_DAY), min(search.end, LAST_DAY - timedelta(seconds=1))
    half = timedelta(days=CYCLE_DAYS / 2)
    passes = []
    near = orbits_near(lat, lon)
    for orbit in near:
        zero = pass_time(orbit, 0)
        # Pass times are cut to whole seconds, so look one further on either side.
        for number in range(math.floor((start - zero) / half) - 1, math.ceil((end - zero) / half) + 2):
            at = pass_time(orbit, number)
            # Items carry fractions of a second; a search to the second must find them.
            if start <= at + timedelta(milliseconds=24) and at <= end:
                passes.append((at, orbit, number))
    for at, orbit, number in sorted(passes, reverse=search.newest_first):
        yield at, orbit, number, [tiles[int(k)] for k in near[orbit]]


def _tiles(search: Search) -> list[Tile]:
    if search.ids is not None:
        scenes = [scene_with_id(one) for one in search.ids]
        return sorted({scene.tile for scene in scenes if scene is not None}, key=lambda tile: tile.name)
    if search.area is None:
        return tiles_in(-180.0, -90.0, 180.0, 90.0)
    return tiles_in(*search.area.bounds)


def _matches(tile: Tile, orbit: int, search: Search, seen: dict[tuple[Tile, int], bool]) -> bool:
    if (tile, orbit) not in seen:
        seen[tile, orbit] = swath_share(tile, orbit) > LEAST_SHARE and (
            search.area is None or _intersects(footprint(tile, orbit), search.area)
        )
    return seen[tile, orbit]


def _intersects(shape: Any, area: Any) -> bool:
    west, _, east, _ = shape.bounds
    return any(
        west + turn <= area.bounds[2]
        and east + turn >= area.bounds[0]
        and shapely.intersects(translate(shape, turn), area)
        for turn in (-360.0, 0.0, 360.0)
    )
