"""`geofix refresh --profile open` against real servers: Panoramax, pgstac and Nominatim, from plan to review."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks.geo.distance import distance_km
from tasks.lake import Lake

pytestmark = pytest.mark.real
PLACES = 5


MUNICH = (48.1371, 11.5754)  # as the map has it


class GuessesMunich(BaseHTTPRequestHandler):
    """A model that answers every picture with one address, as GeoAgent's models do."""

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "guesser", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        text = json.dumps({"ChainOfThought": {}, "FinalAnswer": "Germany; Bavaria; Munich"})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "guesser"}
        self._answer({**body, "choices": [choice], "usage": usage})

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def geofix(command: str, lake: Path, overrides: list[str]) -> str:
    """What the command prints; it has to end well, with no key in its environment."""
    settings = [word for override in overrides for word in ("--set", override)]
    words = [sys.executable, "-m", "flows.cli", *command.split(), "--profile", "open", "--lake", str(lake), *settings]
    env = {name: value for name, value in os.environ.items() if not name.endswith(("_KEY", "_TOKEN"))}
    ended = subprocess.run(words, capture_output=True, text=True, env=env, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stderr + ended.stdout


def test_from_plan_to_review_and_a_second_look(
    instance: Any, archive: Any, nominatim_url: str, tmp_path: Path, move: Any
) -> None:
    """The profile as it is, but for the addresses; then a deletion and other bytes upstream, and nothing else anew."""
    folder = tmp_path / "lake"
    overrides = [
        *("plan.countries=[FR]", f"plan.places={PLACES}", "spread.workers=1", "collect.panorama_min_pixels=1"),
        *(f"services.panoramax.base_url={instance.server.url}", "services.panoramax.requests_per_minute=null"),
        *(f"services.stac.base_url={archive.server.url}", "services.stac.requests_per_minute=null"),
        *("services.stac.files_per_minute=null", "services.geocoder.protocol=nominatim"),
        *(f"services.geocoder.base_url={nominatim_url}", "services.geocoder.requests_per_minute=null"),
        *("curate.confirm.enabled=true", "collect.satellite.size_px=128", "collect.panorama_width=1024"),
        *("collect.satellite.start=2023-07-01", "collect.satellite.end=2023-07-20"),
        "collect.satellite.max_cloud_percent=60",
        "curate.duplicates.by_creator=false",  # one account has uploaded all
    ]
    geofix("plan", folder, overrides)
    lake = Lake(folder)
    places = lake.read("places").sort("place_id").to_dicts()
    names = [place["place_id"] for place in places]
    records = [image for index in range(60) for image in instance.world.images(index)]
    spheres = [record for record in records if record.is_pano and record.condition == "clear"]
    for number, place in enumerate(places):
        points = [(place["lat"] + 0.001 * step, place["lon"]) for step in range(2)]
        instance.upload([move(spheres[3 * number + step], *point) for step, point in enumerate(points)])
    points = [(place["lat"], place["lon"]) for place in places]
    archive.load_like_earth_search(points, "2023-07-01T00:00:00Z", "2023-07-20T00:00:00Z")

    printed = geofix("refresh", folder, overrides)
    assert f"panoramax, for collect.recheck, collect: {instance.server.url}, no key, no limit" in printed
    images = lake.read("images").sort("place_id")
    street, above = (images.filter(pl.col("source") == name) for name in ("panoramax", "sentinel-2-l2a"))
    assert street["place_id"].to_list() == above["place_id"].to_list() == names and images.height == 2 * PLACES
    assert set(street["licence"]) == {"CC BY-SA 4.0"} and set(above["licence"].str.head(10)) == {"Copernicus"}
    assert all("boa_offset" not in row and "sig=" not in row for row in above["metadata_json"])
    assert lake.read("snapshots").height == 1 and lake.read("labels").height == PLACES
    confirmations = lake.read("confirmations")
    assert confirmations.height == PLACES and set(confirmations["country_code"]) == {"FR"}

    assert "Nothing to redo: all" in geofix("refresh", folder, overrides), "nothing is asked again"

    guesser = ThreadingHTTPServer(("127.0.0.1", 0), GuessesMunich)
    threading.Thread(target=guesser.serve_forever, daemon=True).start()
    [snapshot] = lake.read("snapshots")["snapshot_id"]
    geofix(f"approve {snapshot}", folder, [])
    answering = [
        *(f"services.chat.base_url=http://127.0.0.1:{guesser.server_port}/v1", "services.chat.key_env=null"),
        *("services.chat.public_key=null", "models.roles.answerer-base.model=guesser", "evaluate.split=train"),
        *("services.answer_geocoder.protocol=nominatim", f"services.answer_geocoder.base_url={nominatim_url}"),
        "services.answer_geocoder.requests_per_minute=null",
    ]
    geofix("evaluate --recipe geoagent", folder, [*overrides, *answering])
    guesser.shutdown()
    where = {row["image_id"]: (row["lat"], row["lon"]) for row in lake.read("labels").to_dicts()}
    guesses = lake.read("predictions").to_dicts()
    assert guesses and all(
        row["error_km"] == pytest.approx(distance_km(*where[row["image_id"]], *MUNICH), abs=1) for row in guesses
    ), guesses

    deleted, changed = street["source_id"][0], street["source_id"][1]
    instance.delete(deleted)
    instance.replace_bytes(changed, instance.painted(spheres[-1]))
    geofix("collect", folder, [*overrides, "collect.refresh.after_days=0", "collect.satellite.enabled=false"])
    checks = lake.read("checks").filter(pl.col("subject") == "image")
    assert Counter(checks["status"]) == {"same": PLACES - 2, "deleted": 1, "changed": 1}
    after = lake.read("images").filter(pl.col("source") == "panoramax").sort("place_id")
    assert deleted not in set(after["source_id"]) and after["place_id"].to_list() == names
    of_changed = pl.col("source_id") == changed
    assert after.filter(of_changed)["sha256"][0] != images.filter(of_changed)["sha256"][0]
