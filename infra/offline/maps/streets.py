"""Named streets as lines on a view: those that have panoramas, and side streets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from infra.offline.maps.view import View
from infra.offline.place import Place
from infra.offline.side_streets import SideStreet
from infra.offline.world import World

LENGTH_M = 320.0
WIDEST_DEG = 0.2  # a view this high shows side streets


@dataclass(frozen=True)
class StreetLine:
    """One street: what it is, and its two ends in pixels of the view."""

    place: Place | SideStreet
    ends: list[tuple[float, float]]


def street_lines(world: World, view: View) -> list[StreetLine]:
    """Streets of places on or near a view, in the order of the world, then side streets of the towns there."""
    lines = []
    west, south, east, north = view.box(48)
    lat, lon = view.middle
    side = world.side_streets.near(lat, lon) if north - south < WIDEST_DEG else []
    streets: list[Place | SideStreet] = [world.place(i) for i in world.places_near(west, south, east, north)]
    for place in [*streets, *side]:
        reach = 2 * LENGTH_M / 111_195.0
        if not (south - reach <= place.lat <= north + reach):
            continue
        bearing, half = math.radians(place.bearing_deg), LENGTH_M / 2
        scale = 111_195.0 * max(0.05, math.cos(math.radians(place.lat)))
        along = np.array([-half, half])
        across, down = view.pixel(
            place.lat + along * math.cos(bearing) / 111_195.0, place.lon + along * math.sin(bearing) / scale
        )
        pad = 64
        if (
            across.max() < -pad
            or across.min() > view.width + pad
            or down.max() < -pad
            or down.min() > view.height + pad
        ):
            continue
        lines.append(StreetLine(place, [(float(a), float(d)) for a, d in zip(across, down, strict=True)]))
    return lines
