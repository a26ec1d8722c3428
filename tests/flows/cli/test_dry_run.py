"""`geofix collect --dry-run` as it is called: a table for a person, JSON for a machine, one line when it cannot."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.cli.command import Call, UsageError
from flows.cli.dry_run import dry_run
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.errors import GeofixError
from tasks.lake import Commit, Lake

PLACES = 4


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=100, pano_width=512)


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with serving(create_app(world, warm=False)) as address:
        yield address


@pytest.fixture
def call(url: str, world: World, tmp_path: Path) -> Call:
    """A call on a lake with a few planned places, and services with budgets."""
    lake = Lake(tmp_path / "lake")
    spots = [world.place(k) for k in range(PLACES)]
    rows = [
        {"place_id": f"p{k}", "country": "FR", "lat": spot.lat, "lon": spot.lon, "split": "train"}
        for k, spot in enumerate(spots)
    ]
    lake.upsert("places", rows, Commit("plan", 1))
    overrides = [
        "offline.serve=false",
        f"services.mapillary.base_url={url}/mapillary",
        "services.mapillary.search_per_minute=6000",
        "services.mapillary.tiles_per_day=40",
        f"services.stac.base_url={url}/stac/api/stac/v1",
        "collect.photos=0",
        "collect.panorama_min_pixels=1",
        "collect.satellite.enabled=false",
    ]
    return Call(lake=str(lake.root), overrides=overrides, as_json=True, quiet=True)


def test_json_holds_figures_kinds_and_budgets(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(call) == 0
    found = json.loads(capsys.readouterr().out)
    stages = {stage["stage"]: stage for stage in found["stages"]}
    street = stages["collect"]
    assert stages["collect.recheck"]["items"] == 0
    assert street["items"] == street["sampled"] == PLACES
    requests, size = street["requests"], street["bytes"]
    assert requests["mapillary search"] >= PLACES and size["mapillary picture"] > 10_000
    assert street["requests_margin"] == 0  # all were sampled
    assert found["total"]["requests"] == pytest.approx(sum(requests.values()), abs=1)
    assert found["total"]["bytes"] == pytest.approx(sum(size.values()), abs=1)
    assert found["total"]["seconds"] == street["seconds"]
    assert street["seconds"] > 0 and street["bound_by"]
    [budget] = [one for one in found["budgets"] if one["kinds"] == ["mapillary search"]]
    assert budget["requests"] == requests["mapillary search"] and budget["per_minute"] == 6000
    assert found["asked"]["requests"]["mapillary search"] == requests["mapillary search"]
    lake = Lake(call.lake or "")
    assert lake.existing() == ["places"] and not (lake.root / "images").exists()


def test_a_person_sees_a_table(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(replace(call, as_json=False)) == 0
    shown = capsys.readouterr().out
    assert "collect.recheck" in shown and "nothing to do" in shown
    assert "searches by box" in shown and "pictures from their host" in shown
    assert "6,000 a minute" in shown
    assert "No picture was fetched and no table written." in shown


def test_without_a_plan_it_says_what_to_do(call: Call, tmp_path: Path) -> None:
    Lake(tmp_path / "empty")
    with pytest.raises(GeofixError, match="run `geofix plan` first"):
        dry_run(replace(call, lake=str(tmp_path / "empty")))
    with pytest.raises(UsageError, match="there is no lake"):
        dry_run(replace(call, lake=str(tmp_path / "nowhere")))
    assert not (tmp_path / "nowhere").exists()


def test_a_wrong_token_is_told_without_showing_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "MLY|42|deadbeefdeadbeefdeadbeefdeadbeef"
    monkeypatch.setenv("SOME_TOKEN", token)
    keys = ["services.mapillary.public_key=null", "services.mapillary.key_env=SOME_TOKEN"]
    with pytest.raises(GeofixError) as caught:
        dry_run(replace(call, overrides=[*(call.overrides or []), *keys]))
    assert "mapillary does not accept the key in SOME_TOKEN: put the right one" in str(caught.value)
    assert "deadbeef" not in str(caught.value) and "http" not in str(caught.value)
