"""Against a real Nominatim: what the client reads, rewards and evaluations by it, and what the stand-in claims."""

from typing import Any

import httpx
import pytest

from infra.offline.world import World
from schemas.settings.reward import RewardSettings
from schemas.settings.services import ServicesSettings
from tasks.recipes.reading import located
from tasks.reward.services import RewardServices
from tasks.services import connect
from tasks.services.geocoder import Address, AnyGeocoder, open_geocoder

pytestmark = pytest.mark.real
SPRINGFIELD = (39.7990, -89.6440)


def endpoints(url: str) -> ServicesSettings:
    endpoint = {"base_url": url, "protocol": "nominatim"}
    return ServicesSettings.model_validate({"geocoder": endpoint, "answer_geocoder": endpoint})


@pytest.fixture
async def geocoder(nominatim_url: str) -> Any:
    client = open_geocoder(connect(endpoints(nominatim_url), {}).geocoder)
    yield client
    await client.close()


async def test_towns_by_name(geocoder: AnyGeocoder) -> None:
    (illinois,) = await geocoder.search("Springfield, Illinois")
    assert (illinois.region, illinois.city, illinois.country_code) == ("Illinois", "Springfield", "US")
    assert (illinois.lat, illinois.lon) == pytest.approx(SPRINGFIELD)
    assert {place.region for place in await geocoder.search("Springfield")} == {"Illinois", "Massachusetts"}
    (munich,) = await geocoder.search("Munich, Germany")
    assert (munich.name, munich.region, munich.country) == ("Munich", "Bavaria", "Germany")
    house = (await geocoder.search("Leopoldstraße 12, München"))[0]
    assert (house.name, house.city) == ("Leopoldstraße 12", "Munich"), "a house has no name of its own"
    assert await geocoder.search("Nowhere at all") == []


@pytest.mark.parametrize(
    ("point", "address"),
    [
        ((39.7995, -89.6437), Address("United States", "US", "Illinois", "Springfield")),
        ((52.5172, 13.3940), Address("Germany", "DE", "Berlin", "Berlin")),  # a city that is its own state
        ((39.62, -89.35), Address("United States", "US", "Illinois", "Sangamon County")),  # in no town
        ((35.6932, 139.7030), Address("Japan", "JP", "Tokyo", "Shinjuku")),
        ((0.0, -30.0), None),
    ],
)
async def test_the_address_of_a_point(
    geocoder: AnyGeocoder, point: tuple[float, float], address: Address | None
) -> None:
    assert await geocoder.reverse(*point) == address


async def test_evaluations_locate_addresses(geocoder: AnyGeocoder) -> None:
    """GeoAgent's answers are addresses; a level that the map lacks is left out, the town is found."""
    answer = '{"ChainOfThought": {}, "FinalAnswer": "Germany; %s; Munich"}'
    for region in ("Bavaria", "Obergiesing-Fasangarten"):
        place = await located("geoagent", answer % region, 48.15, 11.58, geocoder)
        assert place.error_km is not None and place.error_km < 5, region
    miss = await located("geoagent", '{"ChainOfThought": {}, "FinalAnswer": "Xx; Yy; Zz"}', 48.15, 11.58, geocoder)
    assert (miss.error_km, miss.parse_error) == (None, "address_not_found")


def test_rewards_ask_it(nominatim_url: str) -> None:
    services = RewardServices(connect(endpoints(nominatim_url), {}), RewardSettings())
    assert services.deps().geocode("Lyon, France") == pytest.approx((45.7578, 4.8320))
    assert services.deps().geocode("Lyon, Nowhere at all") is None


# What OpenStreetMap has and the stand-in's gazetteer lacks: counties, codes of divisions, postcodes.
NOT_IN_GAZETTEER = {"county", "postcode", "ISO3166-2-lvl4", "ISO3166-2-lvl6"}
OWN = {"place_id", "osm_id", "importance"}  # numbers of each map's own
AREA_RANK = 12  # the middle of what is larger than a town depends on how it is measured


def ask(method: str, url: str, params: dict[str, Any]) -> httpx.Response:
    params = {"format": "jsonv2", **params}
    return httpx.request(method, url, params=params, headers={"Accept-Language": "en"}, timeout=60)


def described(answer: httpx.Response, is_street: bool) -> Any:
    """What of an answer a client depends on. Streets have names and places of their own in each map."""
    status, kind = answer.status_code, answer.headers["content-type"]
    if "json" not in kind or not answer.content:
        return status, kind, answer.text
    body = answer.json()
    rows = body if isinstance(body, list) else [body]
    return status, kind, isinstance(body, list), [row_fields(row, is_street) if "lat" in row else row for row in rows]


def row_fields(row: dict[str, Any], is_street: bool) -> dict[str, Any]:
    fields = {name: type(value).__name__ if name in OWN else value for name, value in row.items()}
    address = fields.pop("address", None)
    if address is not None:
        fields["address"] = {key: value for key, value in address.items() if key not in NOT_IN_GAZETTEER}
    fields["display_name"] = row["display_name"].split(", ")[0], row["display_name"].split(", ")[-1]
    fields["boundingbox"] = [type(edge).__name__ for edge in row["boundingbox"]]
    if is_street:
        fields["address"] = sorted(fields.get("address", ()))
        fields |= {name: type(row[name]).__name__ for name in ("lat", "lon", "name", "type", "display_name")}
    elif row["place_rank"] < AREA_RANK:
        fields |= {name: type(row[name]).__name__ for name in ("lat", "lon")}
    else:
        fields |= {name: f"{float(row[name]):.1f}" for name in ("lat", "lon")}
    return fields


def test_the_stand_in_answers_alike(nominatim_url: str, offline_url: str, world: World) -> None:
    """The same requests; streets are asked for where each map has one. Both are asked in English, as the client does:
    the stand-in has no names in other languages, no houses and no formats but JSON."""
    places = [world.place(index) for index in range(world.size)]
    street = next(place for place in places if place.country == "US" and place.city.population >= 50_000)
    here = {"lat": "39.7990", "lon": "-89.6440"}
    searches: list[dict[str, Any]] = [
        *({"q": "Springfield, Illinois", "addressdetails": 1}, {"q": "Springfield, Illinois"}, {"q": "Illinois"}),
        *({"q": "Illinois", "addressdetails": 1}, {"q": "Germany", "addressdetails": 1, "limit": 1}),
        *({"q": "Springfield, Illinois", "limit": limit} for limit in (0, -1, 1, 1000, "x", "1.5")),
        *({"q": "qqxxyyzz"}, {"q": "Springfield, Zzyzx, Illinois"}, {"q": ""}, {"q": "   "}, {}),
        {"q": "Springfield, Illinois", "format": "nonsense"},
        {"q": "0.0, -30.0"},
    ]
    reverses: list[dict[str, Any]] = [
        *({**here, "zoom": 10}, {**here, "zoom": 10, "addressdetails": 0}, {**here, "zoom": 3}, {**here, "zoom": "x"}),
        *({"lat": 0, "lon": -30}, {"lat": 100, "lon": 4}, {"lat": 45, "lon": 400}, {"lat": "x", "lon": 4}),
        *({"lat": 45}, {"lon": 4}, {"lat": "nan", "lon": 4}, {**here, "format": "nonsense"}),
    ]
    requests = [("GET", "/search", params, params) for params in searches]
    requests += [("GET", "/reverse", params, params) for params in reverses]
    # The middle of Main Street, and of a street of the painted world.
    real_street, painted_street = {"lat": 39.79, "lon": -89.644}, {"lat": street.lat, "lon": street.lon}
    for more in ({}, {"zoom": 17}, {"addressdetails": 0, "zoom": 17}):
        requests.append(("GET", "/reverse", {**real_street, **more}, {**painted_street, **more}))
    requests += [(method, "/search", {"q": "Illinois"}, {"q": "Illinois"}) for method in ("POST", "HEAD")]
    for method, path, to_real, to_stand_in in requests:
        is_street = to_real is not to_stand_in
        bases = (nominatim_url, to_real), (f"{offline_url}/nominatim", to_stand_in)
        real, stand_in = (described(ask(method, base + path, params), is_street) for base, params in bases)
        assert stand_in == real, (method, path, to_real)
    assert len(requests) == 35
