"""The country lookup against shapely, and against what ISO 3166 says of contested places."""

import numpy as np
import pytest
import shapely

from tasks.geo.atlas import countries, gazetteer, outlines
from tasks.geo.boundaries import admin1_of, country_number, country_of, index

TRAPS = {
    "Simferopol": (44.952, 34.102, "UA"),
    "Sevastopol": (44.606, 33.522, "UA"),
    "Pointe-a-Pitre": (16.25, -61.58, "GP"),
    "Fort-de-France": (14.63, -61.03, "MQ"),
    "Cayenne hinterland": (4.5, -52.5, "GF"),
    "Reunion, Plaine des Cafres": (-21.2, 55.57, "RE"),
    "Mayotte": (-12.8, 45.16, "YT"),
    "Laayoune": (27.15, -13.2, "EH"),
    "Smara": (26.74, -11.67, "EH"),
    "Tan-Tan": (28.44, -11.1, "MA"),
    "Longyearbyen": (78.2, 15.7, "SJ"),
    "Jan Mayen": (71.0, -8.4, "SJ"),
    "Bonaire": (12.18, -68.26, "BQ"),
    "Christmas Island": (-10.49, 105.63, "CX"),
    "Hargeisa": (9.56, 44.06, "SO"),
    "Nicosia, north": (35.25, 33.35, "CY"),
    "Hong Kong": (22.38, 114.12, "HK"),
    "Taipei": (25.03, 121.53, "TW"),
    "Pristina": (42.66, 21.16, "XK"),
    "Torshavn": (62.13, -7.03, "FO"),
    "Lesotho": (-29.6, 28.2, "LS"),
    "Baarle is Dutch": (51.5, 4.8, "NL"),
    "Windhoek": (-22.56, 17.08, "NA"),
    "Kaliningrad": (54.7, 20.5, "RU"),
    "Cabinda": (-5.2, 12.4, "AO"),
    "Chukotka, beyond the date line": (66.5, -172.5, "RU"),
    "Fiji, Vanua Levu": (-16.6, 179.2, "FJ"),
    "South Pole": (-90.0, 0.0, "AQ"),
    "Gulf of Guinea": (0.0, 0.0, ""),
    "North Pole": (90.0, 180.0, ""),
}


@pytest.mark.parametrize("name", TRAPS)
def test_iso_3166_is_followed(name: str) -> None:
    lat, lon, code = TRAPS[name]
    assert country_of(lat, lon)[0] == code


def region_shapes() -> list[shapely.MultiPolygon]:
    shape = outlines()
    rings: dict[int, list[list[np.ndarray]]] = {}
    for r, region in enumerate(shape.ring_region.tolist()):
        span = slice(shape.start[r], shape.start[r + 1])
        ring = np.column_stack([shape.lon[span], shape.lat[span]])
        if shape.ring_outer[r]:
            rings.setdefault(region, []).append([ring])
        else:
            rings[region][-1].append(ring)
    return [
        shapely.MultiPolygon([shapely.Polygon(p[0], p[1:]) for p in rings[region]]) for region in range(len(shape.name))
    ]


def test_labels_equal_shapely_at_random_and_along_borders() -> None:
    random = np.random.default_rng(5)
    shape = outlines()
    lat, lon = [np.degrees(np.arcsin(random.uniform(-1, 1, 4000)))], [random.uniform(-180, 180, 4000)]
    vertex = random.integers(0, len(shape.lat), 6000)
    # Points a few metres to kilometres from borders and coasts, where a wrong sign or a missed segment would show.
    reach = 10.0 ** random.uniform(-4, -1, 6000)
    lat.append(np.clip(shape.lat[vertex] + reach * random.uniform(-1, 1, 6000), -90, 90))
    lon.append(np.clip(shape.lon[vertex] + reach * random.uniform(-1, 1, 6000), -180, 180))
    # And points level with vertices, the classic degenerate case of ray casting.
    lat.append(shape.lat[vertex[:2000]])
    lon.append(np.clip(shape.lon[vertex[:2000]] + random.uniform(-0.05, 0.05, 2000), -180, 180))
    lats, lons = np.concatenate(lat), np.concatenate(lon)
    shapes, points = region_shapes(), shapely.points(lons, lats)
    point, region = shapely.STRtree(shapes).query(points, predicate="intersects")
    expected = [set() for _ in lats]
    for p, r in zip(point.tolist(), region.tolist(), strict=True):
        expected[p].add(r + 1)
    got = index().label(lats, lons).tolist()
    wrong = [
        (lats[i], lons[i], g, expected[i])
        for i, g in enumerate(got)
        # A point on a shore exactly, as level ones can be, may go to the sea.
        if not (g in expected[i] or (g == 0 and all(shapely.touches(points[i], shapes[r - 1]) for r in expected[i])))
    ]
    assert wrong == []


def test_every_country_has_land_and_no_land_lacks_a_country() -> None:
    assert set(outlines().country) == set(countries()["iso2"])
    assert index().base.min() == 0 and index().base.max() <= len(outlines().name)


def test_most_towns_lie_in_their_country() -> None:
    towns = gazetteer()
    assert (country_of(towns["lat"], towns["lon"]) == towns["country"].to_numpy()).mean() > 0.975


def test_region_and_country_agree() -> None:
    assert admin1_of([48.8566, 44.6], [2.3522, 33.52]).tolist() == ["Paris", "Sevastopol"]
    assert admin1_of(0, 0)[0] == ""


def test_longitudes_wrap_and_bad_coordinates_are_refused() -> None:
    assert country_of([48.85, 48.85], [2.35 + 360, 2.35 - 360]).tolist() == ["FR", "FR"]
    for lat, lon in ((float("nan"), 0.0), (0.0, float("inf")), (90.01, 0.0)):
        with pytest.raises(ValueError, match="coordinates"):
            country_number(lat, lon)
