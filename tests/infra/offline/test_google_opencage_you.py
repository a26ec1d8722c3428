"""Google Geocoding, OpenCage and You.com over a real socket."""

import pytest

from infra.offline.services.geocoding import GOOGLE_KEY, OPENCAGE_KEY
from infra.offline.services.web_search import YOU_KEY
from schemas.settings.services import ServicesSettings
from tasks.services import connect
from tasks.services.geocoder import open_geocoder
from tasks.services.search import open_search


def ask_google(served, **params):
    response = served.http.get("/google/maps/api/geocode/json", params={"key": GOOGLE_KEY, **params})
    assert response.status_code == 200  # trouble is told in the body
    return response.json()


def ask_opencage(served, q, **params):
    return served.http.get("/opencage/geocode/v1/json", params={"q": q, "key": OPENCAGE_KEY, **params})


def test_google_result_field_by_field(served):
    body = ask_google(served, address="Lyon, France")
    assert body.keys() == {"results", "status"} and body["status"] == "OK"
    row = body["results"][0]
    assert row.keys() == {"address_components", "formatted_address", "geometry", "place_id", "types"}
    assert row["geometry"].keys() == {"bounds", "location", "location_type", "viewport"}
    assert row["geometry"]["location"] == {"lat": pytest.approx(45.75, abs=0.1), "lng": pytest.approx(4.85, abs=0.1)}
    assert row["types"] == ["locality", "political"]
    assert row["place_id"].startswith("ChIJ") and len(row["place_id"]) == 27
    country = row["address_components"][-1]
    assert country == {"long_name": "France", "short_name": "FR", "types": ["country", "political"]}


def test_google_statuses(served):
    assert ask_google(served, address="Xyzzyville") == {"results": [], "status": "ZERO_RESULTS"}
    for params in ({}, {"address": " "}):
        body = ask_google(served, **params)
        assert (body["status"], body["results"]) == ("INVALID_REQUEST", []) and body["error_message"]
    assert ask_google(served, address="Lyon", key="")["status"] == "REQUEST_DENIED"
    assert ask_google(served, address="Lyon", key="x")["error_message"] == "The provided API key is invalid. "


def test_google_over_the_limit(breakable):
    rule = {"service": "google", "kind": "status", "status": 429, "rate": 1.0}
    breakable.http.post("/control/faults", json={"rules": [rule]})
    body = ask_google(breakable, address="Lyon")
    assert (body["status"], body["results"]) == ("OVER_QUERY_LIMIT", [])


def test_opencage_result_field_by_field(served):
    body = ask_opencage(served, "Lyon").json()
    assert body.keys() == {
        "documentation", "licenses", "rate", "results", "status", "stay_informed", "thanks", "timestamp",
        "total_results",
    }  # fmt: skip
    assert body["rate"].keys() == {"limit", "remaining", "reset"}
    assert body["status"] == {"code": 200, "message": "OK"}
    assert body["total_results"] == len(body["results"]) > 0
    row = body["results"][0]
    assert row.keys() == {"bounds", "components", "confidence", "formatted", "geometry"}
    assert row["components"]["country_code"] == "fr" and row["components"]["_type"] == "city"
    assert type(row["confidence"]) is int and 1 <= row["confidence"] <= 10
    assert row["geometry"]["lat"] == pytest.approx(45.75, abs=0.1)
    assert ask_opencage(served, "Athens", limit="2").json()["total_results"] == 2


def test_opencage_refusals(served):
    for key, message in (("", "missing API key"), ("short", "invalid API key")):
        response = ask_opencage(served, "Lyon", key=key)
        assert response.status_code == 401 and response.json()["status"]["message"] == message
    assert ask_opencage(served, "x").status_code == 400
    assert ask_opencage(served, "Xyzzyville").json()["total_results"] == 0


def ask_you(served, headers=None, **params):
    return served.http.get("/you/v1/search", params=params, headers={"X-API-Key": YOU_KEY} | (headers or {}))


def test_you_result_field_by_field(served):
    body = ask_you(served, query="Lyon", count="3").json()
    assert body.keys() == {"results", "metadata"}
    assert body["metadata"].keys() == {"search_uuid", "query", "latency"}
    assert body["results"].keys() == {"web", "news"}
    assert len(body["results"]["web"]) == 3
    for page in body["results"]["web"]:
        assert {"url", "title", "description", "snippets"} <= page.keys()
        assert page["snippets"] and all(type(text) is str for text in page["snippets"])
    first = served.http.post(
        "/tavily/search", json={"query": "Lyon"}, headers={"Authorization": "Bearer tvly-offline-world"}
    ).json()["results"][0]
    assert body["results"]["web"][0]["url"] == first["url"]


def test_you_refusals(served):
    assert served.http.get("/you/v1/search", params={"query": "x"}).status_code == 401
    assert ask_you(served, {"X-API-Key": "other"}, query="x").status_code == 403
    assert ask_you(served).status_code == 422
    assert ask_you(served, query="x", count="0").json()["detail"][0]["loc"] == ["query", "count"]


@pytest.mark.parametrize(
    ("protocol", "path", "key"), [("google", "google", GOOGLE_KEY), ("opencage", "opencage", OPENCAGE_KEY)]
)
async def test_our_clients_of_other_geocoders_give_what_nominatims_gives(served, protocol, path, key):
    endpoint = {"base_url": f"{served.url}/{path}", "protocol": protocol, "public_key": key}
    connections = connect(ServicesSettings.model_validate({"tool_geocoder": endpoint}), {})
    geocoder = open_geocoder(connections.tool_geocoder)
    lyon = (await geocoder.search("Lyon, France", 3))[0]
    assert (lyon.country, lyon.country_code, lyon.city) == ("France", "FR", "Lyon")
    assert abs(lyon.lat - 45.75) < 0.1 and abs(lyon.lon - 4.85) < 0.1
    assert await geocoder.search("Xyzzyville") == []
    await geocoder.close()


async def test_our_client_of_you_finds_pages(served):
    endpoint = {"base_url": f"{served.url}/you", "protocol": "you", "public_key": YOU_KEY}
    search = open_search(connect(ServicesSettings.model_validate({"search": endpoint}), {}).search)
    pages = await search.search("pharmacy in Lyon", 3)
    assert 1 <= len(pages) <= 3 and all(page.url.startswith("https://") and page.content for page in pages)
    await search.close()
