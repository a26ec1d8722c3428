"""The streets that have panoramas, as lines on a view."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from infra.offline.maps.view import View
from infra.offline.place import Place
from infra.offline.world import World

LENGTH_M = 320.0


@dataclass(frozen=True)
class StreetLine:
    """One street: its place, and its two ends in pixels of the view."""

    place: Place
    ends: list[tuple[float, float]]


def street_lines(world: World, view: View) -> list[StreetLine]:
    """Streets of places on or near a view, in the order of the world."""
    lines = []
    west, south, east, north = view.box(48)
    for index in world.places_near(west, south, east, north):
        place = world.place(index)
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
