"""The pieces of land of every country, as boxes to look for places in."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tasks.geo.atlas import outlines
from tasks.geo.boundaries import country_codes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Islets:
    """The box round every outer ring, by country number: those of country c are `first[c]:first[c + 1]`."""

    first: Ints
    south: Floats
    west: Floats
    north: Floats
    east: Floats

    def somewhere(self, country: Ints, u: Floats, v: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Latitude and longitude in the box of one of the country's pieces, each piece as likely as another."""
        first, count = self.first[country], self.first[country + 1] - self.first[country]
        piece = first + np.minimum((u * count).astype(np.int64), count - 1)
        lat = self.south[piece] + v * (self.north[piece] - self.south[piece])
        return lat, self.west[piece] + w * (self.east[piece] - self.west[piece])


@cache
def islets() -> Islets:
    """The boxes of the embedded atlas."""
    shape = outlines()
    number = {code: i for i, code in enumerate(country_codes())}
    country = np.array([number[code] for code in shape.country])[shape.ring_region]
    sides = [part.reduceat(of, shape.start[:-1]) for part in (np.minimum, np.maximum) for of in (shape.lat, shape.lon)]
    outer = np.flatnonzero(shape.ring_outer)
    outer = outer[np.argsort(country[outer], kind="stable")]
    south, west, north, east = (side[outer] for side in sides)
    return Islets(np.searchsorted(country[outer], np.arange(len(number) + 1)), south, west, north, east)
