"""Vector tiles of providers: which of them a box touches, and the images that one of them shows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tasks.collect.boxes import Box

if TYPE_CHECKING:  # its package imports shapely and an encoder
    from mapbox_vector_tile.Mapbox.vector_tile_pb2 import tile as TileMessage

ORDER_ZOOM = 14  # of the tiles along which places are worked on
MAX_TILE_BYTES = 32_000_000  # city tiles have about 1 MB
MAX_TILE_IMAGES = 500_000  # and up to 31,000 images
UNKNOWN_TIME = np.iinfo(np.int64).min  # older than any picture, so that it counts as the oldest
_MERCATOR_EDGE = 85.0511287798066  # where the square map of the web ends


class BadTile(Exception):
    """Bytes that are no vector tile we read."""


@dataclass(frozen=True, order=True)
class TileName:
    """A tile of the web's map grid."""

    x: int
    y: int
    z: int

    @property
    def box(self) -> Box:
        """What the tile covers."""
        side = 1 << self.z
        west, east = (column / side * 360.0 - 180.0 for column in (self.x, self.x + 1))
        return Box(float(_lat_of_row(self.y + 1, side)), west, float(_lat_of_row(self.y, side)), east)


Property = tuple[str, Callable[["TileMessage.value"], Any]]  # its key, and what its value says; None: nothing


@dataclass(frozen=True)
class TileLayer:
    """Where a provider's tiles show single images, and how."""

    name: str
    zoom: int
    ids: np.dtype[Any]  # whole numbers, or texts of a fixed length
    id: Property
    time: Property  # milliseconds since 1970
    pano: Property  # 1 or 0


@dataclass(frozen=True)
class TileImages:
    """The images of a tile, column by column: a city's tile must not become 31,000 objects."""

    ids: NDArray[Any]
    lat: NDArray[np.float64]
    lon: NDArray[np.float64]
    captured_at_ms: NDArray[np.int64]  # UNKNOWN_TIME where the tile does not say
    is_pano: NDArray[np.int8]  # 1, 0, or -1 where the tile does not say

    def __len__(self) -> int:
        return len(self.ids)

    def names(self, which: NDArray[np.intp]) -> list[str]:
        """The ids of some of them, as the provider writes them."""
        image_ids: list[str] = self.ids[which].astype(str).tolist()
        return image_ids

    def inside(self, box: Box, margin_deg: float) -> NDArray[np.intp]:
        """Which of them lie in a box, or so close that their exact position may."""
        return np.flatnonzero(
            (self.lat >= box.south - margin_deg)
            & (self.lat <= box.north + margin_deg)
            & (self.lon >= box.west - margin_deg)
            & (self.lon <= box.east + margin_deg)
        )


NO_IMAGES = TileImages(
    np.empty(0, np.uint64), np.empty(0), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int8)
)  # fmt: skip


def tiles_of(box: Box, z: int) -> list[TileName]:
    """The tiles that a box touches, from north-west to south-east."""
    side = 1 << z
    west, east = _column(box.west, side), _column(box.east, side)
    north, south = _row(box.north, side), _row(box.south, side)
    return [TileName(x, y, z) for y in range(north, south + 1) for x in range(west, east + 1)]


def by_tile(box: Box, z: int) -> list[Box]:
    """The box in pieces that lie on one tile each."""
    tiles = [name.box for name in tiles_of(box, z)]
    return [
        Box(max(box.south, tile.south), max(box.west, tile.west), min(box.north, tile.north), min(box.east, tile.east))
        for tile in tiles
    ]


def in_tile_order(lat: pl.Series, lon: pl.Series) -> pl.Series:
    """A number for each point that grows along the tiles so that neighbours mostly follow each other (Morton order)."""
    side = 1 << ORDER_ZOOM
    high = np.radians(np.clip(lat.to_numpy(), -_MERCATOR_EDGE, _MERCATOR_EDGE))
    x = np.clip((lon.to_numpy() + 180.0) / 360.0 * side, 0, side - 1).astype(np.int64)
    y = np.clip((1 - np.arcsinh(np.tan(high)) / np.pi) / 2 * side, 0, side - 1).astype(np.int64)
    order = np.zeros(len(x), dtype=np.int64)
    for bit in range(ORDER_ZOOM):
        order |= ((x >> bit & 1) << (2 * bit)) | ((y >> bit & 1) << (2 * bit + 1))
    return pl.Series("tile", order)


def read_tile(data: bytes, name: TileName, layer: TileLayer) -> TileImages:
    """The images a tile shows; none of an empty tile. `BadTile` if the bytes are not one."""
    if not data:
        return NO_IMAGES
    if len(data) > MAX_TILE_BYTES:
        raise BadTile(f"{len(data)} bytes, at most {MAX_TILE_BYTES} are read")
    from mapbox_vector_tile.Mapbox.vector_tile_pb2 import tile

    message = tile()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise BadTile("not a vector tile") from None
    tile_layer = next((part for part in message.layers if part.name == layer.name), None)
    return NO_IMAGES if tile_layer is None else _read_layer(tile_layer, name, layer)


def _read_layer(layer: "TileMessage.layer", name: TileName, declared: TileLayer) -> TileImages:
    # The library's own `decode` makes a dictionary with all properties of every feature: three times as long.
    count, extent = len(layer.features), layer.extent or 4096
    if count > MAX_TILE_IMAGES:
        raise BadTile(f"{count} images, at most {MAX_TILE_IMAGES} are read")
    columns = {key: i for i, key in enumerate(layer.keys)}
    properties = (declared.id, declared.time, declared.pano)
    id_key, time_key, pano_key = (columns.get(key, -1) for key, _ in properties)
    read_id, read_time, read_pano = (read for _, read in properties)
    values = layer.values
    ids, east, south, times, panos = [], [], [], [], []
    try:
        for feature in layer.features:
            tags, geometry = feature.tags, feature.geometry
            if len(geometry) < 3 or geometry[0] & 7 != 1:  # a point is one "move to"
                raise BadTile("an image that is not a point")
            tag_values = dict(zip(tags[::2], tags[1::2], strict=True))
            image_id = read_id(values[tag_values[id_key]]) if id_key in tag_values else None
            if image_id is None:
                raise BadTile("an image without an id")
            moment = read_time(values[tag_values[time_key]]) if time_key in tag_values else None
            ids.append(image_id)
            east.append((geometry[1] >> 1) ^ -(geometry[1] & 1))  # zigzag
            south.append((geometry[2] >> 1) ^ -(geometry[2] & 1))
            times.append(UNKNOWN_TIME if moment is None else moment)
            pano = read_pano(values[tag_values[pano_key]]) if pano_key in tag_values else None
            panos.append(-1 if pano is None else pano)
        side = 1 << name.z
        return TileImages(
            ids=np.array(ids, dtype=declared.ids),
            # Half a unit: the whole number is the corner of the small square that holds the image.
            lon=(name.x + (np.array(east, dtype=np.float64) + 0.5) / extent) / side * 360.0 - 180.0,
            lat=_lat_of_row(name.y + (np.array(south, dtype=np.float64) + 0.5) / extent, side),
            captured_at_ms=np.array(times, dtype=np.int64),
            is_pano=np.array(panos, dtype=np.int8),
        )
    except (IndexError, ValueError, OverflowError):
        raise BadTile("a property points nowhere or is out of range") from None


def whole_number(value: "TileMessage.value") -> int | None:
    """The whole number of a value, exactly; an id that came as a float has lost its last digits already."""
    if value.HasField("int_value"):
        return int(value.int_value)
    if value.HasField("uint_value"):
        return int(value.uint_value)
    if value.HasField("sint_value"):
        return int(value.sint_value)
    text = value.string_value
    return int(text) if text.isascii() and text.isdigit() else None


def _lat_of_row(row: Any, side: int) -> Any:
    return np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * row / side))))


def _column(lon: float, side: int) -> int:
    return min(max(math.floor((lon + 180.0) / 360.0 * side), 0), side - 1)


def _row(lat: float, side: int) -> int:
    high = math.radians(min(max(lat, -_MERCATOR_EDGE), _MERCATOR_EDGE))
    return min(max(math.floor((1 - math.asinh(math.tan(high)) / math.pi) / 2 * side), 0), side - 1)
