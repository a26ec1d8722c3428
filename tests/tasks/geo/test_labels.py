"""Addresses of points without a network call."""

import socket

import numpy as np
import polars as pl
import pytest

from tasks.geo.atlas import gazetteer, outlines, place_names_table, region_names_table
from tasks.geo.labels import country_codes_of, labels_of
from tasks.geo.names import same_city, same_region

POINTS = {
    # point: country, region, city
    (48.137, 11.575): ("DE", "Bavaria", "Munich"),
    (48.8566, 2.3522): ("FR", "Île-de-France", "Paris"),
    (51.5, -0.12): ("GB", "England", "London"),
    (-33.86, 151.2): ("AU", "New South Wales", "Sydney"),
    (38.9, -77.03): ("US", "District of Columbia", "Washington"),
    (35.68, 139.7): ("JP", "Tokyo", "Tokyo"),
    (44.95, 34.1): ("UA", "Autonomous Republic of Crimea", "Simferopol"),  # ISO 3166, not who holds it
    (14.6, -61.05): ("MQ", "Martinique", "Fort-de-France"),  # a code of its own, not France
    (22.28, 114.158): ("HK", None, None),
}


def test_levels_of_known_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a label needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    frame = labels_of([lat for lat, _ in POINTS], [lon for _, lon in POINTS])
    for row, (code, region, city) in zip(frame.to_dicts(), POINTS.values(), strict=True):
        assert row["country_code"] == code
        assert region is None or same_region(row["region"], region, code)
        assert city is None or same_city(row["city"], city, code)
        assert row["address"] == "; ".join(filter(None, (row["country"], row["region"], row["city"])))
    munich = frame.row(0, named=True)
    assert (munich["country_local"], munich["region_local"], munich["city_local"]) == (
        "Deutschland",
        "Bayern",
        "München",
    )


def test_the_coast_belongs_to_its_land_and_the_sea_to_none() -> None:
    # The pier of Scheveningen, seven kilometres off the coast, and the middle of the Atlantic.
    frame = labels_of([52.118, 52.16, 0.0], [4.279, 4.21, -30.0])
    assert frame["country_code"].to_list() == ["NL", "NL", None]
    assert frame["shore_km"][1] == pytest.approx(7, abs=1) and frame["address"][2] is None
    assert country_codes_of([52.16, 0.0], [4.21, -30.0]).to_list() == ["NL", None]
    assert country_codes_of([52.16], [4.21], shore_km=0).to_list() == [None]


def test_a_city_reaches_further_than_a_hamlet_and_never_over_a_border() -> None:
    # Eight kilometres from the centre of Berlin; Kehl, on the German bank, from the bridge to Strasbourg.
    frame = labels_of([52.59, 48.5745], [13.405, 7.815])
    assert frame["country_code"].to_list() == ["DE", "DE"]
    assert frame["city"][1] == "Kehl"
    assert labels_of([23.0], [13.0])["city"].to_list() == [None]  # the Sahara: no town within 50 km


def test_towns_lie_in_their_country_far_more_often_than_not() -> None:
    towns = gazetteer().sample(5000, seed=3)
    codes = country_codes_of(towns["lat"], towns["lon"])
    assert (codes == towns["country"]).mean() > 0.99  # 99.4 % with the nearest coast, 97.8 % strictly inside


def test_the_tables_follow_the_atlas_row_by_row() -> None:
    assert region_names_table().height == len(outlines().country)
    assert place_names_table().height == gazetteer().height
    pairs = region_names_table().filter(pl.col("division").str.contains(r"^[A-Z]{2}\."))
    assert (pairs["division"].str.slice(0, 2) == pairs["country"]).all()
    largest = gazetteer().with_row_index().sort("population", descending=True)["index"][:3]
    assert set(place_names_table()["name"].gather(largest)) <= {
        "Shanghai",
        "Beijing",
        "Shenzhen",
        "Guangzhou",
        "Chongqing",
    }


def test_the_order_of_points_does_not_matter() -> None:
    random = np.random.default_rng(2)
    lat, lon = random.uniform(-60, 75, 500), random.uniform(-180, 180, 500)
    turn = random.permutation(500)
    assert labels_of(lat, lon)[turn.tolist()].equals(labels_of(lat[turn], lon[turn]))


@pytest.mark.parametrize(
    ("point", "region", "local"),
    [
        ((48.117, -1.677), "Brittany", "Bretagne"),  # Natural Earth draws its departments
        ((43.77, 11.25), "Tuscany", "Toscana"),
        ((41.387, 2.17), "Catalonia", "Catalunya"),
        ((42.15, 9.1), "Corsica", "Corse"),  # not Haute-Corse, the larger of its two parts
        ((46.2, 6.15), "Geneva", "Genève"),
        ((41.88, -87.63), "Illinois", "Illinois"),
        ((14.6, 121.0), "National Capital Region", None),  # unknown, so not the English one
    ],
)
def test_the_region_by_its_own_name(point: tuple[float, float], region: str, local: str | None) -> None:
    row = labels_of([point[0]], [point[1]]).row(0, named=True)
    assert (row["region"], row["region_local"]) == (region, local)
