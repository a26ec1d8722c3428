"""Faults on demand over a real socket."""

import httpx
import pytest

from infra.offline.faults import Fault, Faults, parse
from infra.offline.server import main


def set_faults(served, *rules, seed=0):
    response = served.http.post("/control/faults", json={"seed": seed, "rules": list(rules)})
    assert response.status_code == 200, response.text


def ask(served):
    return served.graph(f"/{served.world.images(0)[0].image_id}", fields="id,geometry,creator,make,model,thumb_256_url")


@pytest.mark.parametrize("status", [403, 429, 500, 502, 504])
@pytest.mark.parametrize("service", ["mapillary", "nominatim", "tavily", "openai", "mapillary-cdn"])
def test_statuses(breakable, service, status):
    set_faults(breakable, {"service": service, "kind": "status", "status": status, "rate": 1.0})
    response = breakable.http.get(f"/{service}/x")
    assert response.status_code == status
    if service == "mapillary":
        assert response.json()["error"]["code"] == (4 if status in (403, 429) else 2)
    if service == "openai" and status == 429:
        assert response.headers["retry-after"] == "1"


def test_script_strikes_exactly_the_numbered_requests(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "status", "status": 500, "at": [1, 3]})
    assert [ask(breakable).status_code for _ in range(5)] == [200, 500, 200, 500, 200]
    log = breakable.http.get("/control/log").json()
    assert log["requests"]["mapillary"] == 5
    assert log["statuses"]["mapillary"] == {"200": 3, "500": 2}
    assert log["faults"] == {"mapillary:status": 2}


def test_reset(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "reset", "rate": 1.0})
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        ask(breakable)
    assert breakable.http.get("/health").status_code == 200


def test_truncated_body(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "truncate", "rate": 1.0})
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        ask(breakable)


def test_invalid_json_and_wrong_content_type(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "invalid_json", "rate": 1.0})
    with pytest.raises(ValueError):
        ask(breakable).json()
    set_faults(breakable, {"service": "mapillary", "kind": "content_type", "rate": 1.0})
    assert ask(breakable).headers["content-type"].startswith("text/html")


def test_latency_and_slow_drip_still_answer(breakable):
    whole = ask(breakable).json()
    for kind in ("latency", "slow_drip"):
        set_faults(breakable, {"service": "mapillary", "kind": kind, "seconds": 0.3, "rate": 1.0})
        response = ask(breakable)
        assert response.elapsed.total_seconds() >= 0.25 or kind == "slow_drip"
        assert response.json()["id"] == whole["id"]


def test_expired_urls(breakable):
    set_faults(breakable, {"service": "mapillary", "kind": "expired_url", "rate": 1.0})
    url = ask(breakable).json()["thumb_256_url"]
    assert breakable.http.get(url).status_code == 403
    breakable.http.delete("/control/faults")
    assert breakable.http.get(ask(breakable).json()["thumb_256_url"]).status_code == 200


def test_a_rate_is_drawn_from_the_request_not_from_the_order():
    rules = [Fault("mapillary", "status", rate=0.3)]
    asked = [f"GET /mapillary/{i}" for i in range(400)]
    forward, backward = Faults(rules, seed=5), Faults(rules, seed=5)
    one = {text: bool(forward.strike("mapillary", text)) for text in asked}
    other = {text: bool(backward.strike("mapillary", text)) for text in reversed(asked)}
    assert one == other
    assert 80 < sum(one.values()) < 160
    assert {t: bool(Faults(rules, seed=6).strike("mapillary", t)) for t in asked} != one
    struck = next(t for t in asked if one[t])
    assert not all(forward.strike("mapillary", struck) for _ in range(40)), "a retry must be able to pass"


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({"service": "mars", "kind": "reset"}, "service"),
        ({"service": "tavily", "kind": "smoke"}, "kind"),
        ({"service": "tavily"}, "kind"),
        ({"service": "tavily", "kind": "reset", "rate": 2}, "rate"),
        ({"service": "tavily", "kind": "status", "status": 418}, "status"),
        ({"service": "tavily", "kind": "reset", "colour": 1}, "allowed"),
    ],
)
def test_wrong_rules_are_explained(breakable, rule, word):
    response = breakable.http.post("/control/faults", json={"rules": [rule]})
    assert response.status_code == 400
    assert word in response.json()["error"]


def test_parse_reads_seed_and_scripts():
    assert parse({"seed": 3, "rules": [{"service": "*", "kind": "reset", "at": [1]}]}) == (
        [Fault("*", "reset", at=(1,))],
        3,
    )


def test_refuses_to_serve_other_machines(capsys):
    assert main(["--host", "0.0.0.0", "--size", "5"]) == 2
    assert "loopback" in capsys.readouterr().err


def test_wrong_size_or_faults_are_one_line(capsys):
    assert main(["--size", "0"]) == 2
    assert main(["--size", "5", "--faults", '{"rules": [{"service": "x", "kind": "reset"}]}']) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
