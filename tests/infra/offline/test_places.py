"""A second map provider with a protocol of its own over a real socket, and our clients of both."""

import io

import pytest
from PIL import Image

from infra.offline.maps import china_shift
from infra.offline.services.maps import KEY as AMAP_KEY
from schemas.load import load_config
from schemas.settings.services import OFFLINE_PLACES_KEY, ServicesSettings, WorldMapsEndpoint
from tasks.agent.service_tools import open_toolbox
from tasks.geo.distance import distance_km
from tasks.geo.gcj02 import in_china, wgs84_to_gcj02
from tasks.services import ServiceError, connect
from tasks.services.connections import MissingKeys
from tasks.services.maps import BothMaps, GoogleMaps, Maps, open_maps

HEADERS = {"X-Goog-Api-Key": OFFLINE_PLACES_KEY, "X-Goog-FieldMask": "places.id,places.location"}
LYON, XIAN = (45.75, 4.85), (34.26, 108.93)


def post(served, path, body, **headers):
    return served.http.post(f"/places/v1/places:{path}", json=body, headers={**HEADERS, **headers})


def clients(served, attempts=1):
    patience = {"max_attempts": attempts, "limit_patience_s": 0, "backoff_s": 0.01}
    given = {
        "maps": {"base_url": f"{served.url}/maps", **patience},
        "world_maps": {"base_url": f"{served.url}/places", **patience},
    }
    found = connect(ServicesSettings.model_validate(given), {})
    return open_maps(found.maps), open_maps(found.world_maps), open_maps(found.maps, found.world_maps)


def test_answers_hold_the_fields_that_were_asked_for(served):
    found = post(served, "searchText", {"textQuery": "Lyon, France", "pageSize": 3}).json()
    assert found.keys() == {"places"} and len(found["places"]) <= 3
    assert found["places"][0].keys() == {"id", "location"} and found["places"][0]["id"].startswith("ChIJ")
    assert distance_km(*found["places"][0]["location"].values(), *LYON) < 15
    assert post(served, "searchText", {"textQuery": "Xyzzyville"}).json() == {}, "nothing found is an empty object"
    tips = post(served, "autocomplete", {"input": "Lyo"}).json()["suggestions"]
    assert {"place", "placeId", "text", "structuredFormat", "types"} == tips[0]["placePrediction"].keys()
    place_id = found["places"][0]["id"]
    detail = served.http.get(f"/places/v1/places/{place_id}", headers={**HEADERS, "X-Goog-FieldMask": "*"}).json()
    assert detail["name"] == f"places/{place_id}" and detail["displayName"]["text"] == "Lyon"
    assert detail["addressComponents"][-1]["shortText"] == "FR"


@pytest.mark.parametrize(
    ("headers", "code", "status"),
    [
        ({"X-Goog-Api-Key": ""}, 403, "PERMISSION_DENIED"),
        ({"X-Goog-Api-Key": "other"}, 400, "INVALID_ARGUMENT"),
        ({"X-Goog-FieldMask": ""}, 400, "INVALID_ARGUMENT"),
        ({"X-Goog-FieldMask": "places.smell"}, 400, "INVALID_ARGUMENT"),
    ],
)
def test_refusals(served, headers, code, status):
    answer = post(served, "searchText", {"textQuery": "Lyon"}, **headers)
    assert answer.status_code == code and answer.json()["error"]["status"] == status
    assert post(served, "searchText", {"textQuery": " "}).status_code == 400
    assert served.http.get("/places/maps/api/staticmap", params={"key": "x", "center": "1,2"}).status_code == 403


async def test_our_client_speaks_it(served):
    _, google, _ = clients(served)
    tip = (await google.tips("Lyo", 3))[0]
    assert tip.name == "Lyon" and "France" in tip.district
    lyon = (await google.find("Lyon", "France", 3))[0]
    assert distance_km(lyon.lat, lyon.lon, *LYON) < 15 and lyon.district.endswith("France")
    assert await google.detail(lyon.id) == lyon and await google.detail(tip.id) == lyon
    assert await google.detail("ChIJB0FF") is None and await google.detail("../control") is None
    assert await google.find("Xyzzyville") == [] == await google.tips("Xyzzyville")
    road, ground = [await google.picture(lyon.lat, lyon.lon, 15, style) for style in ("roadmap", "satellite")]
    assert road != ground and Image.open(io.BytesIO(road)).size == (512, 512)
    await google.close()


async def test_both_providers_show_one_place_at_one_point_in_china_too(served):
    """AMap's answers are shifted by hundreds of metres there; ours are not."""
    amap, google, _ = clients(served)
    raw = served.http.get("/maps/v3/place/text", params={"key": AMAP_KEY, "keywords": "Xi'an"}).json()["pois"][0]
    lon, lat = map(float, raw["location"].split(","))
    mine, other = [(await one.find("Xi'an"))[0] for one in (amap, google)]
    assert mine.name == other.name and in_china(mine.lat, mine.lon)
    assert 300 < distance_km(lat, lon, other.lat, other.lon) * 1000 < 800, "as AMap's map has it"
    assert distance_km(mine.lat, mine.lon, other.lat, other.lon) * 1000 < 1
    drawn = [await one.picture(mine.lat, mine.lon, 15, "roadmap") for one in (amap, google)]
    a, b = (Image.open(io.BytesIO(one)).convert("RGB") for one in drawn)
    same = sum(x == y for x, y in zip(a.getdata(), b.getdata(), strict=True)) / (512 * 512)
    assert same > 0.98, "one centre: a metre is a fifth of a pixel here"
    for one in (amap, google):
        await one.close()


def test_the_offline_worlds_own_shift_is_the_published_one():
    for lat, lon in ((31.1774276, 121.5272106), (39.911954, 116.377817), (25.0, 102.7)):
        assert distance_km(*china_shift.shifted(lat, lon), *wgs84_to_gcj02(lat, lon)) * 1000 < 0.05
        assert distance_km(*china_shift.unshifted(*wgs84_to_gcj02(lat, lon)), lat, lon) * 1000 < 0.1
    assert china_shift.unshifted(*LYON) == LYON


async def test_two_providers_as_one_each_in_its_region(served):
    _, _, both = clients(served)
    assert isinstance(both, BothMaps)
    lyon, xian = (await both.find("Lyon", "France"))[0], (await both.find("Xi'an"))[0]
    assert lyon.id.startswith("world:ChIJ") and xian.id.startswith("cn:G")
    assert all(in_china(poi.lat, poi.lon) == poi.id.startswith("cn:") for poi in await both.find("Xi'an"))
    assert await both.detail(lyon.id) == lyon and await both.detail(xian.id) == xian
    assert await both.detail(lyon.id.partition(":")[2]) is None, "an id tells whose it is"
    assert {poi.id.partition(":")[0] for poi in await both.tips("Lyo")} == {"world"}
    assert {poi.id.partition(":")[0] for poi in await both.tips("Xi'a")} == {"cn", "world"}
    amap, google, _ = clients(served)
    assert await both.picture(*LYON, 12, "roadmap") == await google.picture(*LYON, 12, "roadmap")
    assert await both.picture(*XIAN, 12, "roadmap") == await amap.picture(*XIAN, 12, "roadmap")
    for one in (amap, google, both):
        await one.close()


async def test_the_tools_ask_the_providers_that_the_settings_name(served):
    world = {"base_url": f"{served.url}/places"}
    endpoints = {"maps": {"base_url": f"{served.url}/maps"}, "world_maps": world}
    for given, kind in (({}, Maps), ({"world_maps": world}, BothMaps)):
        settings = ServicesSettings.model_validate({"maps": endpoints["maps"], **given})
        assert isinstance(open_toolbox(connect(settings, {}), None).context.maps, kind)
    alone = {**world, "protocol": "google", "public_key": OFFLINE_PLACES_KEY}
    settings = ServicesSettings.model_validate({"maps": alone})
    assert isinstance(open_toolbox(connect(settings, {}), None).context.maps, GoogleMaps)
    shipped = load_config(profile="production").services
    assert isinstance(shipped.world_maps, WorldMapsEndpoint) and shipped.world_maps.public_key is None
    with pytest.raises(MissingKeys, match=r"AMAP_KEY.*GOOGLE_MAPS_KEY"):
        connect(shipped, {}, ["maps"])
    assert connect(shipped, {}, ["geocoder"]).world_maps is not None, "no key where no map is asked"


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ({"kind": "status", "status": 429}, "rate_limit"),
        ({"kind": "status", "status": 403}, "auth"),
        ({"kind": "status", "status": 503}, "outage"),
        ({"kind": "reset"}, "outage"),
        ({"kind": "truncate"}, None),
        ({"kind": "invalid_json"}, "bad_response"),
        ({"kind": "content_type"}, "outage"),  # a page of some proxy
        ({"kind": "drift", "field": "location", "how": "rename"}, "nothing"),
    ],
)
async def test_faults_of_the_second_provider(breakable, rule, kind):
    _, google, both = clients(breakable)
    breakable.http.post("/control/faults", json={"rules": [{"service": "places", "rate": 1.0, **rule}]})
    if kind == "nothing":
        assert await google.find("Lyon") == [], "a row without a point is left out"
    else:
        for ask in (google.find("Lyon"), google.tips("Lyon"), both.find("Lyon")):
            with pytest.raises(ServiceError) as caught:
                await ask
            assert kind is None or caught.value.kind == kind
            assert OFFLINE_PLACES_KEY not in str(caught.value)
    for one in (google, both):
        await one.close()


async def test_a_key_that_is_not_taken_is_said_so(served):
    endpoint = {"base_url": f"{served.url}/places", "public_key": "other", "max_attempts": 1}
    connections = connect(ServicesSettings.model_validate({"world_maps": endpoint}), {})
    google = open_maps(connections.world_maps)
    for ask in (google.find("Lyon"), google.picture(*LYON, 12, "roadmap")):
        with pytest.raises(ServiceError) as caught:
            await ask
        assert (caught.value.service, caught.value.kind) == ("world_maps", "auth")
    assert "services.world_maps.public_key" in (connections.unaccepted_key("world_maps", "auth") or "")
    await google.close()


async def test_a_fault_that_passes_is_tried_again(breakable):
    _, google, _ = clients(breakable, attempts=3)
    rule = {"service": "places", "kind": "status", "status": 503, "at": [0]}
    breakable.http.post("/control/faults", json={"rules": [rule]})
    assert (await google.find("Lyon"))[0].name == "Lyon"
    await google.close()
