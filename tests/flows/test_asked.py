"""What a run says before its first request; and the profile that needs no account, from plan to review."""

import os
from pathlib import Path

import polars as pl
import pytest

from flows.asked import asked_lines
from flows.cli.command import Call
from flows.cli.running import run_flow
from flows.order import services_of, stages_of_flow
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.load import load_config
from tasks.lake import Lake
from tasks.services import connect

REFRESH = stages_of_flow("refresh")
FRANCE = ["plan.countries=[FR]", "plan.places=50"]


def test_profile_open_needs_no_key_and_says_whom_it_asks_at_which_pace() -> None:
    config = load_config(profile="open", overrides=FRANCE)
    assert services_of(config, REFRESH) == {"panoramax", "stac"}
    connections = connect(config.services, {}, services_of(config, REFRESH), config.models, [])
    assert all(connections.named(name).key is None for name in ("panoramax", "stac"))  # type: ignore[union-attr]
    assert asked_lines(config, REFRESH) == [
        "this run, for 50 places in FR (1 panorama, 1 photo, 1 satellite each), will ask:",
        "  panoramax, for collect.recheck, collect: https://api.panoramax.xyz/api, no key, requests_per_minute 120",
        "  stac, for collect.satellite: https://earth-search.aws.element84.com/v1, no key, requests_per_minute 120, "
        "files_per_minute 1,200",
        "  no model",
    ]


def test_a_judge_that_one_serves_is_said_too() -> None:
    chat = ["base_url=http://127.0.0.1:8000/v1", "key_env=null", "public_key=null"]
    overrides = ["curate.judge.pictures=all", *(f"services.chat.{one}" for one in chat)]
    lines = asked_lines(load_config(profile="open", overrides=overrides), REFRESH)
    assert lines[-1] == "  model judge: http://127.0.0.1:8000/v1, no key, no limit"


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPILLARY_TOKEN", "MLY|1|secret")
    text = "\n".join(asked_lines(load_config(profile="production"), REFRESH))
    assert "the key in MAPILLARY_TOKEN" in text and "secret" not in text and "search_per_minute 9,000" in text


def test_an_offline_run_asks_nobody_and_says_nothing() -> None:
    assert asked_lines(load_config(), REFRESH) == []
    assert asked_lines(load_config(profile="open"), ["plan"]) == []


@pytest.mark.slow
def test_profile_open_makes_a_snapshot_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over real sockets; the addresses are the offline world's, all else is the profile's."""
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    with serving(create_app(World(seed=7, size=100_000, pano_width=1024), warm=False)) as url:
        overrides = [
            *("plan.countries=[FR]", "plan.places=12", "spread.workers=1"),
            *("collect.panorama_min_pixels=1", "collect.satellite.size_px=256"),
            f"services.panoramax.base_url={url}/panoramax/api",
            *("services.panoramax.requests_per_minute=null", "services.stac.requests_per_minute=null"),
            *(f"services.stac.base_url={url}/stac/api/stac/v1", "services.stac.files_per_minute=null"),
        ]
        call = Call(profile="open", lake=str(tmp_path / "lake"), overrides=overrides)
        assert run_flow("refresh", call) == 0
    assert f"panoramax, for collect.recheck, collect: {url}/panoramax/api, no key, no limit" in capsys.readouterr().err
    lake = Lake(tmp_path / "lake")
    street = lake.read("images").filter(pl.col("kind") != "satellite")
    assert street.height > 3 and set(street["source"]) == {"panoramax"}
    assert set(lake.read("labels")["country_code"]) == {"FR"}
    assert lake.read("snapshots").height == 1 and lake.read("calls").is_empty()
