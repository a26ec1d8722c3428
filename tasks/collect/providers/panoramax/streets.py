"""Panoramax as a provider: its items as records, its tiles, its limits."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from tasks.collect.boxes import Box
from tasks.collect.candidates import Kind, PictureRecord, heading_of, number_of, pixels_of, point_of, text_of
from tasks.collect.providers.panoramax.client import MAX_IDS, TILE_ZOOM, Panoramax, is_picture_id
from tasks.collect.providers.provider import FetchedBytes, Limits
from tasks.collect.tiles import TileLayer, TileName
from tasks.services.calls import server_of

if TYPE_CHECKING:
    from mapbox_vector_tile.Mapbox.vector_tile_pb2 import tile as TileMessage

NAME = "panoramax"
ASPECT_SLACK = 0.02  # how far a whole sphere may be from 2:1, as where it is stored
# Licences as the other sources write them; others keep their SPDX name.
_LICENCES = {"CC-BY-SA-4.0": "CC BY-SA 4.0", "CC-BY-4.0": "CC BY 4.0", "CC0-1.0": "CC0 1.0"}
_UNLICENSED = "proprietary"  # what STAC says where an instance has set no licence


def _tile_id(value: "TileMessage.value") -> str | None:
    return value.string_value if is_picture_id(value.string_value) else None


def _tile_time(value: "TileMessage.value") -> int | None:
    moment = _time(value.string_value)
    return None if moment is None else round(moment.timestamp() * 1000)


def _tile_pano(value: "TileMessage.value") -> int | None:
    return {"equirectangular": 1, "flat": 0}.get(value.string_value)


# A partial panorama is `equirectangular` here, too: only its item says that.
LAYER = TileLayer(
    name="pictures",
    zoom=TILE_ZOOM,
    ids=np.dtype("S36"),
    id=("id", _tile_id),
    time=("ts", _tile_time),
    pano=("type", _tile_pano),
)


class PanoramaxStreets:
    """The provider over its client; of a box `page` pictures are requested, and one with as many may have more."""

    name = NAME
    limits = Limits(ids=MAX_IDS, layer=LAYER, missing_is_gone=True)

    def __init__(self, client: Panoramax, page: int) -> None:
        self.client, self._page = client, page

    @property
    def server(self) -> str:
        return f"{server_of(self.client.base_url)} {self._page}"

    async def in_box(self, box: Box) -> list[PictureRecord]:
        items = await self.client.items_in_box(box.west, box.south, box.east, box.north, self._page)
        return [read_record(item) for item in items]

    async def tile(self, name: TileName) -> bytes:
        return await self.client.tile(name.z, name.x, name.y)

    async def by_id(self, ids: Sequence[str]) -> dict[str, PictureRecord]:
        return {source_id: read_record(item) for source_id, item in (await self.client.items(ids)).items()}

    async def addresses(self, ids: Sequence[str]) -> dict[str, str]:
        return {source_id: _address(item) or "" for source_id, item in (await self.client.items(ids)).items()}

    async def address(self, source_id: str) -> str:
        return _address(await self.client.item(source_id)) or ""

    async def fetch(self, url: str, etag: str | None = None) -> FetchedBytes:
        """The bytes, each time: the API gives no validator."""
        return FetchedBytes(await self.client.fetch(url), "")


def read_record(item: dict[str, Any]) -> PictureRecord:
    """An item of the API as a record. Nothing promises that values have the right type."""
    properties = _object(item.get("properties"))
    orientation = _object(properties.get("pers:interior_orientation"))
    width, height = _sides(orientation)
    point, url = point_of(item.get("geometry")), _address(item)
    host = urlsplit(url).hostname if url else None
    kind, view = kind_of(orientation), number_of(orientation.get("field_of_view"))
    accuracy_m = number_of(properties.get("quality:horizontal_accuracy"))
    more = {"field_of_view": view, "horizontal_accuracy_m": accuracy_m}
    licence = text_of(properties.get("license"))
    return PictureRecord(
        source=NAME,
        source_id=item["id"],
        kind=kind,
        point=point,
        found_at=point,
        url=url,
        pixels=pixels_of(width, height),
        sequence_id=text_of(item.get("collection")),
        compass_angle=heading_of(properties.get("view:azimuth")),
        camera_type=None if kind is None else "equirectangular" if kind == "panorama" else "flat",
        creator=text_of(properties.get("geovisio:producer")) or _producer(item.get("providers")),
        captured_at=_time(properties.get("datetime")),
        licence=None if licence in (None, _UNLICENSED) else _LICENCES.get(licence, licence),
        platform=f"Panoramax ({host})" if host else "Panoramax",
        more={name: value for name, value in more.items() if value is not None},
    )


def kind_of(orientation: dict[str, Any]) -> Kind | None:
    """What a picture is. 360 degrees wide are also parts of a sphere: only a whole one is a panorama.

    A flat picture of a camera whose focal length is not known has no field of view.
    """
    if not orientation:
        return None
    view = number_of(orientation.get("field_of_view"))
    if view is None or 0 < view < 360:
        return "photo" if "visible_area" not in orientation else None
    width, height = _sides(orientation)
    is_whole = pixels_of(width, height) is not None and abs(width / height - 2) <= ASPECT_SLACK
    return "panorama" if view == 360 and is_whole and not orientation.get("visible_area") else None


def _sides(orientation: dict[str, Any]) -> tuple[Any, Any]:
    sides = orientation.get("sensor_array_dimensions")
    return (sides[0], sides[1]) if isinstance(sides, list) and len(sides) == 2 else (None, None)


def _address(item: dict[str, Any]) -> str | None:
    """Of the largest form; with an outside store it is not the API's own host."""
    return text_of(_object(_object(item.get("assets")).get("hd")).get("href"))


def _producer(providers: Any) -> str | None:
    """The first who is named as such."""
    rows = [provider for provider in providers if isinstance(provider, dict)] if isinstance(providers, list) else []
    names = (text_of(row.get("name")) for row in rows if "producer" in (row.get("roles") or ()))
    return next((name for name in names if name), None)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _time(text: Any) -> datetime | None:
    """A moment with its zone; one without is not known to within a day."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else moment.astimezone(UTC)
