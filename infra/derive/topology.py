"""Polygons out of a TopoJSON file, as shapely shapes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import shapely


def read_topology(path: Path, name: str) -> Iterator[tuple[str | None, Any]]:
    """The id and shape of every polygon feature of one object of a quantised topology."""
    topology = json.loads(path.read_text())
    scale, shift = np.array(topology["transform"]["scale"]), np.array(topology["transform"]["translate"])
    arcs = [np.cumsum(np.array(arc), axis=0) * scale + shift for arc in topology["arcs"]]

    def ring(indices: list[int]) -> Any:
        # A negative index is the one's complement of an arc walked backwards; arcs share their end points.
        walked = [arcs[i] if i >= 0 else arcs[~i][::-1] for i in indices]
        return np.concatenate([walked[0], *(arc[1:] for arc in walked[1:])])

    for feature in topology["objects"][name]["geometries"]:
        polygons = feature["arcs"] if feature["type"] == "MultiPolygon" else [feature["arcs"]]
        outlines = [[ring(indices) for indices in rings] for rings in polygons]
        # Quantisation collapses islets to fewer than three corners: nothing is left of them to draw.
        parts = [shapely.Polygon(o[0], [hole for hole in o[1:] if len(hole) > 3]) for o in outlines if len(o[0]) > 3]
        yield feature.get("id"), shapely.MultiPolygon(parts)
