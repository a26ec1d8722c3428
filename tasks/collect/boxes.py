"""Search boxes around a place, in pieces that a provider answers."""

import itertools
import math
from dataclasses import dataclass

from tasks.geo.distance import distance_km

METRES_PER_DEGREE = math.pi * 6_371_000.0 / 180.0
_POLE = 85.0  # no road is nearer to a pole, and a degree of longitude has almost no length there


@dataclass(frozen=True, order=True)
class Box:
    """A box of latitudes and longitudes; never crosses the 180th meridian."""

    south: float
    west: float
    north: float
    east: float

    @property
    def area_sq_deg(self) -> float:
        return (self.north - self.south) * (self.east - self.west)

    @property
    def height_m(self) -> float:
        return (self.north - self.south) * METRES_PER_DEGREE

    def holds(self, lat: float, lon: float) -> bool:
        """Whether a point is inside or on the edge."""
        return self.south <= lat <= self.north and self.west <= lon <= self.east

    def distance_m(self, lat: float, lon: float) -> float:
        """Metres from a point to the nearest of the box, also across the 180th meridian; 0 inside."""
        near_lat = min(max(lat, self.south), self.north)
        return min(
            distance_km(lat, lon, near_lat, min(max(lon + turn, self.west), self.east)) * 1000.0
            for turn in (-360.0, 0.0, 360.0)
        )

    def quarters(self) -> list["Box"]:
        """The same area as four boxes."""
        lat, lon = (self.south + self.north) / 2, (self.west + self.east) / 2
        return [
            Box(self.south, self.west, lat, lon),
            Box(self.south, lon, lat, self.east),
            Box(lat, self.west, self.north, lon),
            Box(lat, lon, self.north, self.east),
        ]


def boxes_around(lat: float, lon: float, half_size_m: float, box_sq_deg: float) -> list[Box]:
    """Boxes that together reach half_size_m from a point in each direction, each of an area of box_sq_deg at most."""
    lat_reach = half_size_m / METRES_PER_DEGREE
    lon_reach = min(180.0, lat_reach / math.cos(math.radians(min(abs(lat), _POLE))))
    south, north = max(lat - lat_reach, -90.0), min(lat + lat_reach, 90.0)
    west, east = lon - lon_reach, lon + lon_reach
    if lon_reach == 180.0:
        spans = [(-180.0, 180.0)]
    elif west < -180.0:
        spans = [(west + 360.0, 180.0), (-180.0, east)]
    elif east > 180.0:
        spans = [(west, 180.0), (-180.0, east - 360.0)]
    else:
        spans = [(west, east)]
    return [piece for w, e in spans for piece in _small_enough(Box(south, w, north, e), box_sq_deg)]


def _small_enough(box: Box, box_sq_deg: float) -> list[Box]:
    """The box as the fewest strips that each stay within the limit."""
    # A little below the limit: the service computes the area from the rounded text we send.
    count = max(1, math.ceil(box.area_sq_deg / (box_sq_deg * 0.999)))
    edges = [box.west + (box.east - box.west) * i / count for i in range(count)] + [box.east]
    return [Box(box.south, west, box.north, east) for west, east in itertools.pairwise(edges)]
