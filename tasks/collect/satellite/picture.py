"""A satellite picture of one place in one viewport, with licence, scenes and corners."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from schemas.settings.satellite import SatelliteSettings
from tasks.collect.responses import RecallingStac, StageResponses
from tasks.collect.satellite.choice import choose
from tasks.collect.satellite.mosaic import Mosaic, make_mosaic
from tasks.lake import Lake
from tasks.lake.withdrawn import REASON as WITHDRAWN
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.runner import Kept, Outcome, Rejected, WorkerSetup, digest
from tasks.services import ServiceError, safe_url
from tasks.services.sentinel.bands import BadBands
from tasks.services.sentinel.grid import Grid, grid_around
from tasks.services.sentinel.layers import Layer
from tasks.services.sentinel.scenes import BANDS, CLASSES, VISUAL, Scene
from tasks.services.sentinel.search import find_scenes, newest_processing
from tasks.services.sentinel.tone import jpeg, shown
from tasks.services.stac import Stac

KIND = "satellite"
LICENCE = "Copernicus Sentinel Data Legal Notice (free, full and open)"
CREATOR = "European Union, Copernicus Sentinel-2"
ROUNDS = 20  # of choosing, each without the scenes whose bands turned out to be unreadable or to lack something


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    stac: Stac
    lake: Lake
    settings: SatelliteSettings
    hosts: set[str] = field(default_factory=set)  # that gave a file which could be read
    withdrawn: Withdrawn = field(default_factory=Withdrawn)


def open_worker(step: str, settings: SatelliteSettings, setup: WorkerSetup) -> WorkerContext:
    """What a worker of the step keeps open."""
    stac = RecallingStac(setup.connections.stac, StageResponses.of(setup, step))
    return WorkerContext(stac, setup.lake, settings, withdrawn=Withdrawn.of(setup.lake))


async def make_picture(item: dict[str, Any], context: WorkerContext) -> Outcome:
    """The item's picture, or why there is none."""
    settings = context.settings
    grid = grid_around(item["lat"], item["lon"], item["metres_per_pixel"], item["size_px"], item["east"], item["north"])
    scenes, seen, unusable = await find_scenes(context.stac, grid, settings)
    evidence: dict[str, Any] = {
        "place_id": item["place_id"],
        "viewport": item["viewport"],
        "searched": {"boxes": [[round(edge, 5) for edge in box] for box in grid.boxes()], "from": str(settings.start),
                     "to": str(settings.end), "max_cloud_percent": settings.max_cloud_percent},
        "scenes_seen": seen,
    }  # fmt: skip
    if not scenes:
        return Rejected("no_scenes", {**evidence, **_some(unusable)})
    mosaic, known, before = None, dict[str, Layer](), len(unusable)
    for _ in range(ROUNDS):
        left = newest_processing([scene for scene in scenes if scene.id not in unusable])
        choice = await choose(context.stac, left, grid, settings, known)
        unusable |= choice.unusable
        context.hosts.update(_host(layer.scene) for layer in known.values())
        evidence["scenes_looked_at"] = len(known) + len(unusable) - before
        if not choice.layers:
            if choice.unusable and any(scene.id not in unusable for scene in scenes):
                continue  # an older processing of one of them may be there
            return _no_usable_scene(evidence, unusable, scenes, context.hosts)
        if choice.needed > settings.max_scenes:
            evidence |= {"scenes_needed": choice.needed, "max_scenes": settings.max_scenes}
        try:
            mosaic = await make_mosaic(context.stac, choice.layers, grid, settings)
        except BadBands as bad:
            unusable[bad.scene_id] = bad.why
            known.pop(bad.scene_id, None)
            continue
        if mosaic.lacking_share < settings.worth_share:
            break
        known.update({name: known[name].without(lacking) for name, lacking in mosaic.lacking.items()})
    if mosaic is None:
        return _no_usable_scene(evidence, unusable, scenes, context.hosts)
    evidence |= {
        "clear_share": round(mosaic.clear_share, 4),
        "no_data_share": round(mosaic.no_data_share, 4),
        "scenes_used": len(mosaic.parts),
    }
    if mosaic.no_data_share > settings.max_no_data_share:
        return Rejected("no_data", {**evidence, "max_no_data_share": settings.max_no_data_share, **_some(unusable)})
    if mosaic.clear_share < settings.min_clear_share:
        return Rejected("cloudy", {**evidence, "min_clear_share": settings.min_clear_share, **_some(unusable)})
    pixels = await asyncio.to_thread(shown, mosaic.pixels, settings.white, settings.gamma)
    data = await asyncio.to_thread(jpeg, pixels, settings.jpeg_quality)
    sha256 = await asyncio.to_thread(context.lake.images.put, data, "jpg")
    row = image_row(item, grid, mosaic, evidence, data, sha256, context)
    why = context.withdrawn.discarded(row, context.lake)
    return Rejected(WITHDRAWN, {**evidence, "why": why}) if why else Kept({"images": [row]})


def _no_usable_scene(
    evidence: dict[str, Any], unusable: dict[str, str], scenes: Sequence[Scene], hosts: set[str]
) -> Rejected:
    """A reject where the files are at fault; an error, to be tried again, where their host may be."""
    for why in unusable.values():
        if why.startswith("blocked: "):
            raise ServiceError("stac", "blocked", why.removeprefix("blocked: "))
    tried = [scene for scene in scenes if scene.id in unusable]
    silent = {_host(scene) for scene in tried} - hosts
    if silent:
        detail = f"no file of {len(tried)} scenes could be read, nor any other file of {sorted(silent)[0]} so far"
        raise ServiceError("stac", "outage", f"{detail}; {tried[0].id}: {unusable[tried[0].id]}", retryable=True)
    return Rejected("no_usable_scene", {**evidence, **_some(unusable)})


def _host(scene: Scene) -> str:
    return urlsplit(scene.hrefs[CLASSES]).netloc


def image_row(
    item: dict[str, Any],
    grid: Grid,
    mosaic: Mosaic,
    figures: dict[str, Any],
    data: bytes,
    sha256: str,
    context: WorkerContext,
) -> dict[str, Any]:
    """The picture's row in `images`."""
    settings, main = context.settings, mosaic.parts[0].scene
    scene_ids = [part.scene.id for part in mosaic.parts]
    source_id = digest(settings.collection, grid.epsg, grid.transform, grid.size, scene_ids)
    lat, lon = grid.centre()
    return {
        "image_id": context.lake.name(settings.collection, source_id, item["place_id"], item["viewport"]),
        "kind": KIND,
        "place_id": item["place_id"],
        "lat": lat,
        "lon": lon,
        "source": settings.collection,
        "source_id": source_id,
        "compass_angle": 0.0,  # north is up
        "licence": LICENCE,
        "creator": CREATOR,
        "attribution": _attribution([part.scene for part in mosaic.parts]),
        "captured_at": main.captured_at,
        "fetched_at": datetime.now(UTC),
        "request_url": safe_url(main.hrefs[VISUAL if settings.assets == "visual" else BANDS[0]]),
        "http_status": 206,  # parts of files: anything else is no picture
        "sha256": sha256,
        "extension": "jpg",
        "bytes": len(data),
        "width": grid.size,
        "height": grid.size,
        "metadata_json": json.dumps(_metadata(item, grid, mosaic, figures, settings), sort_keys=True),
    }


def _metadata(
    item: dict[str, Any], grid: Grid, mosaic: Mosaic, figures: dict[str, Any], settings: SatelliteSettings
) -> dict[str, Any]:
    corners = zip(("north_west", "north_east", "south_east", "south_west"), grid.corners(), strict=True)
    return {
        "viewport": item["viewport"],
        "metres_per_pixel": grid.step_m,
        "epsg": grid.epsg,
        "transform": grid.transform,
        "corners": {name: {"lat": round(lat, 7), "lon": round(lon, 7)} for name, (lat, lon) in corners},
        "assets": settings.assets,
        "clear_share": figures["clear_share"],
        "no_data_share": figures["no_data_share"],
        "scenes_seen": figures["scenes_seen"],
        "scenes_looked_at": figures["scenes_looked_at"],
        "scenes": [
            {
                "id": part.scene.id,
                "captured_at": part.scene.captured_at.isoformat(),
                "cloud_percent": part.scene.cloud_percent,
                "share": round(part.share, 4),
                "gain": [round(factor, 4) for factor in part.gain],
            }
            for part in mosaic.parts
        ],
    }


def _attribution(scenes: Sequence[Scene]) -> str:
    years = sorted({scene.captured_at.year for scene in scenes})
    return f"Contains modified Copernicus Sentinel data {', '.join(map(str, years))}"


def _some(unusable: dict[str, str]) -> dict[str, Any]:
    return {"unusable_scenes": dict(sorted(unusable.items())[:10])} if unusable else {}
