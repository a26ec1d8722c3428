"""Faults in what is said rather than in how: clocks, lost images, repeated records, drifting fields."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime

import httpx
import pytest

from infra.offline.faults import Fault, Faults, change_json
from infra.offline.services.mapillary import TOKEN

JSON = {"content-type": "application/json"}  # control endpoints take nothing else

KEY = {"Authorization": "Bearer tvly-offline-world"}


def set_faults(served, *rules, seed=0):
    response = served.http.post("/control/faults", json={"seed": seed, "rules": list(rules)})
    assert response.status_code == 200, response.text


def box_around(record, half=0.004):
    return f"{record.lon - half},{record.lat - half},{record.lon + half},{record.lat + half}"


def test_every_answer_has_one_date_and_a_skewed_clock_shows_in_it(breakable):
    response = breakable.http.get("/health")
    assert len(response.headers.get_list("date")) == 1
    right = parsedate_to_datetime(response.headers["date"])
    set_faults(breakable, {"service": "mapillary", "kind": "clock_skew", "seconds": -7200, "rate": 1.0})
    record = breakable.world.images(0)[0]
    answer = breakable.graph(f"/{record.image_id}", fields="thumb_256_url")
    assert -7210 < (parsedate_to_datetime(answer.headers["date"]) - right).total_seconds() < -7190
    # An address signed by a clock that is late is over before it is used, by a clock that is right.
    assert breakable.http.get(answer.json()["thumb_256_url"]).status_code == 403


def test_an_image_host_that_is_ahead_refuses_good_addresses(breakable):
    record = breakable.world.images(0)[0]
    url = breakable.graph(f"/{record.image_id}", fields="thumb_256_url").json()["thumb_256_url"]
    set_faults(breakable, {"service": "mapillary-cdn", "kind": "clock_skew", "seconds": 7200, "rate": 1.0})
    assert breakable.http.get(url).status_code == 403
    breakable.http.delete("/control/faults")
    assert breakable.http.get(url).status_code == 200


def test_deleted_by_script_is_gone_everywhere(breakable):
    records = breakable.world.images(3)
    gone, rest = records[0].image_id, [r.image_id for r in records[1:]]
    url = breakable.graph(f"/{gone}", fields="thumb_256_url").json()["thumb_256_url"]
    set_faults(
        breakable,
        {"service": "mapillary", "kind": "deleted", "ids": [gone]},
        {"service": "mapillary-cdn", "kind": "deleted", "ids": [gone]},
    )
    response = breakable.graph(f"/{gone}")
    assert response.status_code == 400 and response.json()["error"]["error_subcode"] == 33
    found = breakable.graph("/images", bbox=box_around(records[0])).json()["data"]
    assert gone not in {row["id"] for row in found} and rest[0] in {row["id"] for row in found}
    assert breakable.http.get(url).status_code == 404
    assert breakable.graph(f"/{rest[0]}").status_code == 200


def test_deleted_by_rate_stays_deleted(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "deleted", "rate": 0.3})
    ids = [breakable.world.images(p)[0].image_id for p in range(60)]
    first = [breakable.graph(f"/{image_id}").status_code for image_id in ids]
    assert first == [breakable.graph(f"/{image_id}").status_code for image_id in ids]
    assert 5 < first.count(400) < 35


def test_a_changed_picture_has_other_bytes_and_another_validator_and_keeps_them(breakable):
    record, other = breakable.world.images(3)[0], breakable.world.images(4)[0]
    urls = [
        breakable.graph(f"/{r.image_id}", fields="thumb_1024_url").json()["thumb_1024_url"] for r in (record, other)
    ]
    rule = {"service": "mapillary-cdn", "kind": "changed", "ids": [record.image_id]}
    set_faults(breakable, rule)
    changed = breakable.http.get(urls[0])
    breakable.http.delete("/control/faults")
    before, untouched = (breakable.http.get(url) for url in urls)
    set_faults(breakable, rule, rule)
    twice = breakable.http.get(urls[0])
    assert len({answer.headers["etag"] for answer in (before, changed, twice)}) == 3
    assert len({answer.content for answer in (before, changed, twice)}) == 3
    still = breakable.http.get(urls[1], headers={"if-none-match": untouched.headers["etag"]})
    assert (still.status_code, still.content) == (304, b"")
    news = breakable.http.get(urls[0], headers={"if-none-match": before.headers["etag"]})
    assert (news.status_code, news.content) == (200, twice.content)


def test_the_log_counts_the_bytes_that_were_sent(breakable):
    record = breakable.world.images(3)[0]
    url = breakable.graph(f"/{record.image_id}", fields="thumb_256_url").json()["thumb_256_url"]
    breakable.http.delete("/control/log")
    assert int(breakable.http.head(url).headers["content-length"]) > 0
    assert "mapillary-cdn" not in breakable.http.get("/control/log").json()["bytes"]
    length = len(breakable.http.get(url).content)
    assert breakable.http.get("/control/log").json()["bytes"] == {"mapillary-cdn": length}


def test_a_journal_tells_what_became_of_every_request(breakable):
    assert breakable.http.get("/control/journal").status_code == 404
    assert breakable.http.post("/control/journal", headers=JSON).json() == []
    record, other = breakable.world.images(0)[0].image_id, breakable.world.images(1)[0].image_id
    breakable.graph(f"/{record}", fields="id")
    set_faults(breakable, {"service": "mapillary", "kind": "status", "status": 504, "at": [0]})
    breakable.graph(f"/{other}", fields="id")
    breakable.graph("/nothing", fields="id")
    rows = breakable.http.delete("/control/journal").json()
    assert [row[1:] for row in rows] == [
        ["mapillary", f"GET /mapillary/{record}?fields=id", "ok"],
        ["mapillary", f"GET /mapillary/{other}?fields=id", "status"],
        ["mapillary", "GET /mapillary/nothing?fields=id", "400"],
    ]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert breakable.http.get("/control/journal").status_code == 404


def test_duplicate_ids(breakable):
    record = breakable.world.images(3)[0]
    once = breakable.graph("/images", bbox=box_around(record)).json()["data"]
    set_faults(breakable, {"service": "*", "kind": "duplicate_ids", "rate": 1.0})
    twice = breakable.graph("/images", bbox=box_around(record)).json()["data"]
    assert len(twice) == len(once) + 1
    assert {row["id"] for row in twice} == {row["id"] for row in once}
    pages = breakable.http.post("/tavily/search", json={"query": "Lyon"}, headers=KEY).json()["results"]
    assert len({page["url"] for page in pages}) == len(pages) - 1
    places = breakable.http.get("/nominatim/search", params={"q": "Lyon"}).json()
    assert len({row["place_id"] for row in places}) == len(places) - 1


@pytest.mark.parametrize(
    ("how", "wanted"),
    [("rename", {"capturedAt": 1, "id": "7"}), ("retype", {"captured_at": "1", "id": "7"}), ("drop", {"id": "7"})],
)
def test_drift(how, wanted):
    rule = Fault("mapillary", "drift", rate=1.0, field="captured_at", how=how)
    body = b'{"data": [{"id": "7", "captured_at": 1}]}'
    assert json.loads(change_json(body, None, [rule], "GET /x")) == {"data": [wanted]}


def test_drift_over_the_wire_and_never_without_a_rule(breakable):
    record = breakable.world.images(3)[0]
    plain = breakable.graph(f"/{record.image_id}", fields="id,geometry,captured_at").json()
    set_faults(breakable, {"service": "mapillary", "kind": "drift", "field": "id", "how": "retype", "rate": 1.0})
    drifted = breakable.graph(f"/{record.image_id}", fields="id,geometry,captured_at").json()
    assert drifted == plain | {"id": int(plain["id"])}
    set_faults(breakable, {"service": "mapillary", "kind": "drift", "rate": 1.0})
    assert breakable.graph(f"/{record.image_id}", fields="id,geometry,captured_at").json() != plain


def test_several_drifts_strike_one_answer(breakable):
    record = breakable.world.images(3)[0]
    plain = breakable.graph(f"/{record.image_id}", fields="id,geometry,captured_at").json()
    rules = [
        {"service": "mapillary", "kind": "drift", "field": field, "how": how, "rate": 1.0}
        for field, how in (("id", "retype"), ("geometry", "drop"), ("captured_at", "rename"))
    ]
    set_faults(breakable, *rules)
    drifted = breakable.graph(f"/{record.image_id}", fields="id,geometry,captured_at").json()
    assert drifted == {"id": int(plain["id"]), "capturedAt": plain["captured_at"]}


def test_what_is_no_json_passes_unchanged():
    rule = Fault("*", "drift", rate=1.0)
    assert change_json(b"\xff\xd8picture", rule, [rule], "GET /x") == b"\xff\xd8picture"
    assert change_json(b"[]", rule, [rule], "GET /x") == b"[]"


def test_posts_are_told_apart_by_their_bodies(breakable):
    rule = {"service": "tavily", "kind": "status", "status": 500, "rate": 0.4}
    queries = [f"town number {i}" for i in range(40)]

    def ask(query):
        return breakable.http.post("/tavily/search", json={"query": query}, headers=KEY).status_code

    set_faults(breakable, rule, seed=4)
    forward = dict(zip(queries, map(ask, queries), strict=True))
    set_faults(breakable, rule, seed=4)
    with ThreadPoolExecutor(6) as pool:  # in whatever order they arrive
        scattered = dict(zip(reversed(queries), pool.map(ask, reversed(queries)), strict=True))
    assert forward == scattered
    assert 6 < list(forward.values()).count(500) < 30


def test_a_body_read_ahead_still_reaches_the_service(breakable):
    set_faults(breakable, {"service": "tavily", "kind": "latency", "seconds": 0.01, "rate": 1.0})
    response = breakable.http.post("/tavily/search", json={"query": "Lyon"}, headers=KEY)
    assert response.json()["query"] == "Lyon"


def test_no_rules_cost_no_memory():
    faults = Faults()
    for i in range(100):
        faults.strike("tavily", str(i))
    assert not faults._repeat


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({"service": "tavily", "kind": "latency", "seconds": -1}, "seconds"),
        ({"service": "tavily", "kind": "drift", "how": "melt"}, "how"),
        ({"service": "mapillary", "kind": "changed", "ids": ["1"]}, "mapillary-cdn, panoramax or * is needed"),
        ({"service": "openai", "kind": "deleted", "rate": 0.1}, "has no images to be deleted"),
    ],
)
def test_wrong_rules_are_explained(breakable, rule, word):
    response = breakable.http.post("/control/faults", json={"rules": [rule]})
    assert response.status_code == 400 and word in response.json()["error"]


def test_an_outage_in_mapillarys_own_words(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "status", "status": 500, "rate": 1.0})
    response = breakable.graph("/1")
    error = response.json()["error"]
    assert response.status_code == 500
    assert error.keys() == {"message", "type", "code", "is_transient", "fbtrace_id"}
    assert (error["type"], error["code"], error["is_transient"]) == ("MLYApiException", 2, True)
    assert "temporarily unavailable" in error["message"]


TROUBLE = [
    ("opencage", 402, 402, lambda body: body["status"]["message"] == "quota exceeded" and "rate" in body),
    ("opencage", 429, 429, lambda body: body["status"] == {"code": 429, "message": "too many requests"}),
    ("google", 403, 200, lambda body: body["status"] == "REQUEST_DENIED"),
    ("google", 500, 500, lambda body: body["status"] == "UNKNOWN_ERROR"),
    ("you", 429, 429, lambda body: body == {"message": "Limit Exceeded"}),
    ("maps", 429, 200, lambda body: (body["status"], body["infocode"]) == ("0", "10021")),
]


@pytest.mark.parametrize(("service", "status", "seen", "fits"), TROUBLE)
def test_each_service_tells_trouble_in_its_own_way(breakable, service, status, seen, fits):
    set_faults(breakable, {"service": service, "kind": "status", "status": status, "rate": 1.0})
    response = breakable.http.get(f"/{service}/anything")
    assert response.status_code == seen
    assert fits(response.json())


def test_an_answer_nobody_waits_for_is_no_answer(breakable):
    breakable.http.post("/control/journal", headers=JSON)
    set_faults(breakable, {"service": "mapillary", "kind": "latency", "seconds": 1.0, "rate": 1.0})
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=breakable.url, timeout=0.3) as impatient:
        impatient.get(
            f"/mapillary/{breakable.world.images(0)[0].image_id}", params={"access_token": TOKEN, "fields": "id"}
        )
    deadline = time.monotonic() + 300
    while not (rows := breakable.http.get("/control/journal").json()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [row[3] for row in rows] == ["gone"]
    breakable.http.delete("/control/journal")
