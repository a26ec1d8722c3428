"""Which country a point lies in, and that reverse geocoding goes by it near borders."""

from pathlib import Path

import numpy as np
import pytest

from infra.derive.countries import crossings
from infra.offline.country_map import country_map

POINTS = [
    ((48.573, 7.752), "FR"),  # Strasbourg
    ((48.573, 7.815), "DE"),  # Kehl, across the Rhine
    ((-29.31, 27.48), "LS"),  # an enclave
    ((45.30, 34.40), "UA"),  # ISO 3166, not who holds it
    ((4.92, -52.31), "GF"),  # a department of its own code
    ((0.0, -30.0), None),
    ((89.9, 0.0), None),
    ((-90.0, 0.0), "AQ"),
]


@pytest.mark.parametrize(("point", "iso2"), POINTS)
def test_known_points(point, iso2):
    assert country_map().at(*point) == iso2


def test_many_at_once_are_the_same_as_one_by_one():
    chance = np.random.default_rng(3)
    lat, lon = chance.uniform(-90, 90, 800), chance.uniform(-180, 180, 800)
    table = country_map()
    codes = (None, *table.codes)
    assert [codes[k] for k in table.land(lat, lon)] == [table.at(a, b) for a, b in zip(lat, lon, strict=True)]


def test_nearly_every_town_lies_in_its_country(small_world):
    cities, table = small_world.gazetteer, country_map()
    found = table.land(cities.lat, cities.lon)
    codes = np.array(["", *table.codes])
    assert ((found == 0) | (codes[found] == cities.country)).mean() > 0.995
    assert (found > 0).mean() > 0.98


def test_reverse_stays_on_its_side_of_the_border(served):
    def reverse(lat, lon, **more):
        return served.http.get("/nominatim/reverse", params={"lat": lat, "lon": lon, **more}).json()

    # The nearest town of these points lies in another country.
    cities, table = served.world.gazetteer, country_map()
    chance = np.random.default_rng(1)
    crossed = 0
    for row in chance.choice(len(cities), 3000, replace=False):
        lat, lon = float(cities.lat[row]) + 0.05, float(cities.lon[row])
        iso2 = table.at(lat, lon)
        if iso2 and cities.country[cities.nearest(lat, lon)[0][0]] != iso2:
            crossed += 1
            assert reverse(lat, lon, zoom=10)["address"]["country_code"] == iso2.lower()
    assert crossed > 5
    assert reverse(23.5, 12.0, zoom=4)["addresstype"] == "country"
    desert = reverse(21.5, 9.0, zoom=10)  # far from any town, and still somebody's land
    assert desert["address"]["country_code"] in ("dz", "ne")
    assert reverse(45, 5, zoom="x")["error"]["code"] == 400


def test_reverse_finds_the_street_when_close(served):
    place = served.world.place(5)
    at = {"lat": place.lat + 0.0003, "lon": place.lon}
    street = served.http.get("/nominatim/reverse", params=at).json()
    assert street["addresstype"] == "road" and street["address"]["road"]
    assert served.http.get("/nominatim/reverse", params={**at, "zoom": "10"}).json()["addresstype"] != "road"


def test_the_stored_map_is_what_the_outlines_give():
    codes, row, column, country = crossings(Path(__file__).parents[3] / "tasks/geo/data/regions.parquet")
    table = country_map()
    assert table.codes == tuple(codes)
    assert np.array_equal(table.column, column) and np.array_equal(table.country, country)
    assert np.array_equal(table.starts, np.searchsorted(row, np.arange(len(table.starts))))
