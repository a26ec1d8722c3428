"""Items and the collection of the scene archive, as the Planetary Computer words them."""

from functools import lru_cache
from typing import Any

import numpy as np
import shapely
from shapely.affinity import translate

from infra.offline.scenes.clouds import sun
from infra.offline.scenes.cog import ASSETS
from infra.offline.scenes.orbit import FIRST_DAY, Scene, footprint
from infra.offline.scenes.paint import cloud_percent
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.seeded_random import fraction
from infra.offline.services.blobs import ACCOUNT, CONTAINER, blob_path

COLLECTION = "sentinel-2-l2a"
GEOJSON = "application/geo+json"
_COG = "image/tiff; application=geotiff; profile=cloud-optimized"
_TITLES = {
    "B02": "Band 2 - Blue - 10m", "B03": "Band 3 - Green - 10m", "B04": "Band 4 - Red - 10m",
    "visual": "True color image", "SCL": "Scene classification map (SCL)",
}  # fmt: skip
_BANDS = {
    "B02": {"name": "B02", "common_name": "blue", "description": "Band 2 - Blue", "center_wavelength": 0.49},
    "B03": {"name": "B03", "common_name": "green", "description": "Band 3 - Green", "center_wavelength": 0.56},
    "B04": {"name": "B04", "common_name": "red", "description": "Band 4 - Red", "center_wavelength": 0.665},
}
_SCHEMAS = "https://stac-extensions.github.io"


def link(rel: str, href: str, kind: str = "application/json", **more: Any) -> dict[str, Any]:
    """A link of an item, a collection or a page."""
    return {"rel": rel, "type": kind, "href": href, **more}


class ServiceUrls:
    """Where the services are, as one client sees them: links must lead back the way the client came."""

    def __init__(self, origin: str, real_hosts: bool) -> None:
        self.stac = f"{origin}/api/stac/v1" if real_hosts else f"{origin}/stac/api/stac/v1"
        scheme = origin.partition("://")[0]
        account = f"{scheme}://{ACCOUNT}.blob.core.windows.net" if real_hosts else f"{origin}/blob/{ACCOUNT}"
        self.blobs = f"{account}/{CONTAINER}"


def properties(seed: int, scene: Scene) -> dict[str, Any]:
    """An item's properties. Half of the items name their projection by `proj:epsg`, half by the newer `proj:code`."""
    tile = scene.tile
    height, azimuth = sun(*tile.centre, scene.at)
    at = f"{scene.at:%Y-%m-%dT%H:%M:%S}.024000Z"
    product = next(part for part in blob_path(scene, "B02").split("/") if part.endswith(".SAFE"))
    projection = {"proj:code": f"EPSG:{tile.epsg}"} if _says_code(seed, scene) else {"proj:epsg": tile.epsg}
    return {
        "datetime": at,
        "platform": f"Sentinel-2{scene.satellite[-1]}",
        "constellation": "Sentinel 2",
        "instruments": ["msi"],
        **projection,
        "eo:cloud_cover": cloud_percent(seed, scene),
        "sat:orbit_state": "descending",
        "sat:relative_orbit": scene.orbit,
        "s2:mgrs_tile": tile.name,
        "s2:nodata_pixel_percentage": round(100.0 * (1.0 - scene.coverage), 6),
        "s2:processing_baseline": scene.baseline,
        "s2:product_type": "S2MSI2A",
        "s2:product_uri": product,
        "s2:datatake_type": "INS-NOBS",
        "s2:mean_solar_zenith": round(90.0 - height, 9),
        "s2:mean_solar_azimuth": round(azimuth, 9),
    }


def _says_code(seed: int, scene: Scene) -> bool:
    return fraction(seed, "code", scene.id) < 0.5


@lru_cache(maxsize=4_096)
def geometry(tile: Tile, orbit: int) -> tuple[dict[str, Any], list[float]]:
    """(GeoJSON geometry, bbox) of the part of a tile that an orbit sees; cut in two at the date line."""
    seen = footprint(tile, orbit)
    west, south, east, north = seen.bounds
    if west >= -180 and east <= 180:
        return _geojson(seen), _rounded([west, south, east, north])
    turn = 360.0 if west < -180 else 0.0  # the whole east of the line, its far part past 180
    moved = translate(seen, turn)
    near = shapely.clip_by_rect(moved, -180, -90, 180, 90)
    far = translate(shapely.clip_by_rect(moved, 180, -90, 540, 90), -360.0)
    bounds = [moved.bounds[0], south, moved.bounds[2] - 360.0, north]
    return _geojson(shapely.MultiPolygon([near, far])), _rounded(bounds)


def _geojson(shape: Any) -> dict[str, Any]:
    parts = [
        [np.round(np.asarray(part.exterior.coords), 7).tolist()]
        for part in shapely.get_parts(shapely.orient_polygons(shape))
    ]
    if len(parts) == 1:
        return {"type": "Polygon", "coordinates": parts[0]}
    return {"type": "MultiPolygon", "coordinates": parts}


def _rounded(numbers: list[float]) -> list[float]:
    return [round(float(number), 7) for number in numbers]


def item(seed: int, scene: Scene, places: ServiceUrls) -> dict[str, Any]:
    """One item; about one in ten has no bbox, as happens in the wild."""
    shape, box = geometry(scene.tile, scene.orbit)
    version = "v2.0.0" if _says_code(seed, scene) else "v1.0.0"
    here = f"{places.stac}/collections/{COLLECTION}"
    found: dict[str, Any] = {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": scene.id,
        "collection": COLLECTION,
        "geometry": shape,
        "bbox": box,
        "properties": properties(seed, scene),
        "assets": {name: _asset(scene, name, places) for name in ASSETS},
        "links": [
            link("collection", here),
            link("parent", here),
            link("root", f"{places.stac}/"),
            link("self", f"{here}/items/{scene.id}", GEOJSON),
        ],
        "stac_extensions": [
            f"{_SCHEMAS}/eo/v1.0.0/schema.json",
            f"{_SCHEMAS}/sat/v1.0.0/schema.json",
            f"{_SCHEMAS}/projection/{version}/schema.json",
        ],
    }
    if fraction(seed, "bbox", scene.id) < 0.1:
        del found["bbox"]
    return found


def _asset(scene: Scene, name: str, places: ServiceUrls) -> dict[str, Any]:
    step, tile = ASSETS[name], scene.tile
    size = SIZE_M // step
    shown = ("B04", "B03", "B02") if name == "visual" else (name,)
    bands = [_BANDS[band] for band in shown if band in _BANDS]
    found: dict[str, Any] = {
        "href": f"{places.blobs}/{blob_path(scene, name)}",
        "type": _COG,
        "title": _TITLES[name],
        "roles": ["data"],
        "gsd": float(step),
        "proj:bbox": [float(tile.left_m), float(tile.top_m - SIZE_M), float(tile.left_m + SIZE_M), float(tile.top_m)],
        "proj:shape": [size, size],
        "proj:transform": [float(step), 0.0, float(tile.left_m), 0.0, -float(step), float(tile.top_m)],
    }
    if bands:
        found["eo:bands"] = bands
    return found


def collection(places: ServiceUrls) -> dict[str, Any]:
    """The collection the archive consists of."""
    here = f"{places.stac}/collections/{COLLECTION}"
    return {
        "type": "Collection",
        "stac_version": "1.0.0",
        "id": COLLECTION,
        "title": "Sentinel-2 Level-2A",
        "description": "Scenes of the offline world: painted, not measured, on the real grid and in the real format.",
        "license": "CC0-1.0",
        "keywords": ["Sentinel", "Satellite", "Global", "Imagery", "Reflectance"],
        "extent": {
            "spatial": {"bbox": [[-180, -90, 180, 90]]},
            "temporal": {"interval": [[f"{FIRST_DAY:%Y-%m-%dT%H:%M:%SZ}", None]]},
        },
        "summaries": {"platform": ["Sentinel-2A", "Sentinel-2B"], "gsd": [10, 20]},
        "item_assets": {name: {"type": _COG, "title": _TITLES[name], "roles": ["data"]} for name in ASSETS},
        "msft:storage_account": ACCOUNT,
        "msft:container": CONTAINER,
        "stac_extensions": [],
        "links": [
            link("items", f"{here}/items", GEOJSON),
            link("parent", f"{places.stac}/"),
            link("root", f"{places.stac}/"),
            link("self", here),
        ],
    }
