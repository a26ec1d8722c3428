"""What docs/extend.md promises: a provider is one folder, and no other room names one."""

import ast
import io
import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import polars as pl
import pytest
from PIL import Image

from schemas.errors import InputError
from schemas.load import ConfigError, load_config
from schemas.providers import provider_packages
from schemas.settings.collect import CollectSettings
from schemas.settings.services import ServicesSettings
from tasks.collect import recheck, street_view
from tasks.collect.previous import prepared_with
from tasks.collect.providers.provider import open_providers
from tasks.collect.worker import VERSION
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context, digest, run
from tasks.services import connect

ROOT = Path(__file__).resolve().parents[4]
TASKS = ROOT / "tasks"
LAT, LON = 50.0, 8.0

PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
(PROVIDER,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@dataclass
class Cameras:
    """The server of the page, on loopback."""

    url: str = ""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def put(self, *rows: dict[str, Any]) -> None:
        self.rows = {row["id"]: {"picture": f"{self.url}/{row['id']}.jpg", **row} for row in rows}

    def handler(self) -> type[BaseHTTPRequestHandler]:
        cameras = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)
                query = dict(parse_qsl(address.query))
                name = address.path.strip("/").removesuffix(".jpg")
                if address.path == "/cameras":
                    body, kind = json.dumps(cameras.matching(query)).encode(), "application/json"
                elif name in cameras.rows:
                    body, kind = painted(list(cameras.rows).index(name)), "image/jpeg"
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        return Handler

    def matching(self, query: dict[str, str]) -> list[dict[str, Any]]:
        if "ids" in query:
            return [row for name, row in self.rows.items() if name in query["ids"].split(",")]
        west, south, east, north = map(float, query["bbox"].split(","))
        return [row for row in self.rows.values() if south <= row["lat"] <= north and west <= row["lon"] <= east]


def painted(number: int) -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").rotate(90 * number).resize((2000, 1000)).convert("RGB").save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def balconies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cameras]:
    """A third provider in one folder of a user's own, on the Python path; gives the server of its pictures."""
    folder = tmp_path / "mine" / "geofix_providers" / "balcony_cameras"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    cameras = Cameras()
    with ThreadingHTTPServer(("127.0.0.1", 0), cameras.handler()) as server:
        cameras.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield cameras
        server.shutdown()
    for name in [name for name in sys.modules if name.startswith("geofix_providers")]:
        del sys.modules[name]


def context(lake: Lake, cameras: Cameras) -> Context:
    services = ServicesSettings.model_validate({"street_view": {"balcony-cameras": {"base_url": cameras.url}}})
    return Context(lake, connect(services, {}))


def test_the_page_counts_its_lines() -> None:
    assert f"({len(PROVIDER.splitlines())} lines)" in PAGE


def test_a_third_provider_is_one_folder(balconies: Cameras, tmp_path: Path, in_process: None) -> None:
    """Found, searched, chosen, stored, credited, checked again and ended as the others are."""
    facts = {"lon": LON, "licence": "CC BY 4.0", "owner": "a neighbour", "floor": 3, "pixels": 2_000_000}
    here = {"lat": LAT + 0.001, **facts}
    balconies.put({"id": "b1", **here}, {"id": "b2", **here, "licence": None})
    lake = Lake(tmp_path / "lake")
    place = {"place_id": "p", "country": "DE", "lat": LAT, "lon": LON, "split": "train", "cell": "p"}
    lake.upsert("places", [place], Commit("plan", 1))
    settings = CollectSettings(
        providers=("balcony-cameras",), panoramas=2, photos=0, panorama_width=1024, refresh={"after_days": 0}
    )
    assert run(street_view.STAGE, settings, context(lake, balconies)).kept == 1
    (row,) = lake.read("images").to_dicts()
    assert row["image_id"] == lake.name("balcony-cameras", "b1", "p") and row["source"] == "balcony-cameras"
    assert row["attribution"] == "Image b1 by a neighbour on Balconies, CC BY 4.0"
    assert json.loads(row["metadata_json"])["floor"] == 3
    (gap,) = lake.read("gaps").to_dicts()
    assert json.loads(gap["evidence_json"])["no_licence"] == 1, "what nobody licensed is not taken"
    balconies.put()
    run(recheck.STAGE, settings, context(lake, balconies))
    assert lake.read("checks").filter(pl.col("subject") == "image")["status"].to_list() == ["deleted"]
    assert lake.read("images").is_empty()


def test_a_provider_is_known_by_its_folder(balconies: Cameras) -> None:
    assert set(provider_packages()) >= {"mapillary", "balcony-cameras"}
    with pytest.raises(ConfigError, match="must be a list of balcony-cameras, mapillary"):
        load_config(overrides=["collect.providers=[balcony-camera]"])
    with pytest.raises(ValueError, match="each once"):
        CollectSettings(providers=("mapillary", "mapillary"))
    with pytest.raises(InputError, match=r"services\.street_view\.balcony-cameras\.base_url"):
        open_providers(connect(ServicesSettings(), {}), CollectSettings(providers=("balcony-cameras",)))


def test_a_provider_of_ones_own_gets_what_all_clients_get() -> None:
    data = {"client": {"max_attempts": 7}, "street_view": {"mine": {"base_url": "https://streets.example/api"}}}
    assert ServicesSettings.model_validate(data).street_view["mine"].max_attempts == 7


def test_lakes_of_the_one_provider_there_was_stay_valid() -> None:
    """Names of pictures and digests of items as they were before there were others."""
    settings = CollectSettings()
    assert digest(settings.identity()) == "c3872731ca284c38e56bca17"
    assert prepared_with(settings, VERSION) == "692ba858c48545bd5a09940a"
    assert street_view.STAGE.name == "collect" and recheck.STAGE.name == "collect.recheck"
    assert "providers" not in settings.identity() and "prefer" not in settings.identity()
    assert "prefer" in CollectSettings(prefer="nearest").identity()


def test_no_other_room_names_a_provider() -> None:
    """Only what a dataset's own credit line says is about a provider elsewhere."""
    named = []
    for path in sorted(TASKS.rglob("*.py")):
        if (TASKS / "collect/providers") in path.parents or path == TASKS / "ingest/layouts.py":
            continue
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        names = [node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)]
        words = " ".join(str(text) for text in (*texts, *names)).lower()
        named += [f"{path.relative_to(ROOT)}: {name}" for name in ("mapillary", "panoramax") if name in words]
    assert named == []
