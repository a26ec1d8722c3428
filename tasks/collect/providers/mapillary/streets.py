"""Mapillary as a provider: its rows as records, its tiles, its limits."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.collect.boxes import Box
from tasks.collect.candidates import Kind, PictureRecord, heading_of, number_of, pixels_of, point_of, text_of
from tasks.collect.providers.mapillary.client import MAX_BOX_AREA_DEG2, MAX_IDS, Mapillary
from tasks.collect.providers.provider import FetchedBytes, Limits
from tasks.collect.tiles import TileLayer, TileName, whole_number
from tasks.services.calls import server_of

if TYPE_CHECKING:
    from mapbox_vector_tile.Mapbox.vector_tile_pb2 import tile as TileMessage

NAME = "mapillary"
LICENCE = "CC BY-SA 4.0"  # of all its pictures
FIELDS = (
    *("id", "sequence", "captured_at", "geometry", "computed_geometry", "compass_angle", "computed_compass_angle"),
    *("camera_type", "is_pano", "quality_score", "creator", "width", "height", "thumb_original_url"),
)
ADDRESS = ("id", "thumb_original_url")
_SPHERES = frozenset({"spherical", "equirectangular"})  # the same camera under two names
_FLAT = frozenset({"perspective", "fisheye"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _flag(value: "TileMessage.value") -> int | None:
    return int(value.bool_value) if value.HasField("bool_value") else None


# A tile tells of an image where it is (to 0.6 m at the equator), when it was taken and whether it is a panorama. It
# does not tell quality, size, camera, creator, the position corrected by matching, or an address.
LAYER = TileLayer(
    name="image",
    zoom=14,  # the only one whose tiles show single images
    ids=np.dtype(np.uint64),
    id=("id", whole_number),
    time=("captured_at", whole_number),
    pano=("is_pano", _flag),
)


class MapillaryStreets:
    """The provider over its client."""

    name = NAME
    limits = Limits(ids=MAX_IDS, box_sq_deg=MAX_BOX_AREA_DEG2, layer=LAYER, leaves_out=True)

    def __init__(self, client: Mapillary) -> None:
        self.client = client

    @property
    def server(self) -> str:
        return server_of(self.client.base_url)

    async def in_box(self, box: Box) -> list[PictureRecord]:
        rows = await self.client.images_in_box(box.west, box.south, box.east, box.north, FIELDS)
        return [read_record(row) for row in rows]

    async def tile(self, name: TileName) -> bytes:
        return await self.client.tile(name.z, name.x, name.y)

    async def by_id(self, ids: Sequence[str]) -> dict[str, PictureRecord]:
        rows = await self.client.images_by_id(ids, FIELDS)
        return {source_id: read_record(row) for source_id, row in rows.items()}

    async def addresses(self, ids: Sequence[str]) -> dict[str, str]:
        rows = await self.client.images_by_id(ids, ADDRESS)
        return {source_id: text_of(row.get("thumb_original_url")) or "" for source_id, row in rows.items()}

    async def address(self, source_id: str) -> str:
        return text_of((await self.client.image(source_id, ADDRESS)).get("thumb_original_url")) or ""

    async def fetch(self, url: str, etag: str | None = None) -> FetchedBytes | None:
        return await self.client.fetch_if_changed(url, etag)


def read_record(row: dict[str, Any]) -> PictureRecord:
    """A row of the service as a record: absent values are absent keys there."""
    recorded, corrected = point_of(row.get("geometry")), point_of(row.get("computed_geometry"))  # corrected by matching
    creator, camera = row.get("creator"), row.get("camera_type")
    corrected_angle = heading_of(row.get("computed_compass_angle"))
    return PictureRecord(
        source=NAME,
        source_id=str(row["id"]),
        kind=kind_of(row.get("is_pano"), camera),
        point=corrected or recorded,
        found_at=recorded or corrected,
        url=text_of(row.get("thumb_original_url")),
        pixels=pixels_of(row.get("width"), row.get("height")),
        quality=min(max(number_of(row.get("quality_score")) or 0.0, 0.0), 1.0),
        sequence_id=text_of(row.get("sequence")),
        compass_angle=heading_of(row.get("compass_angle")) if corrected_angle is None else corrected_angle,
        camera_type=text_of(camera),
        creator=text_of(creator.get("username")) if isinstance(creator, dict) else None,
        captured_at=_time(row.get("captured_at")),
        licence=LICENCE,
        platform="Mapillary",
    )


def kind_of(is_pano: Any, camera_type: Any) -> Kind | None:
    """What a picture is; None when its two fields contradict each other, or neither says it."""
    camera_type = camera_type if isinstance(camera_type, str) else None
    if camera_type in _SPHERES:
        return None if is_pano is False else "panorama"
    if camera_type in _FLAT:
        return None if is_pano is True else "photo"
    # Not known is not False: a sphere taken for a flat picture would go to models as one.
    if is_pano is True:
        return "panorama"
    return "photo" if is_pano is False else None


def _time(milliseconds: Any) -> datetime | None:
    number = number_of(milliseconds)
    if number is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=number)
    except OverflowError:
        return None
