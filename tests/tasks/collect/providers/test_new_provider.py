"""What docs/collect-street-view.md promises: a provider is one folder, and no other room names one."""

import ast
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

PROVIDER = '''
"""Balcony cameras: a folder of panoramas with a list of where they stand. It has boxes, and neither tiles nor ids."""

import json
from pathlib import Path

from tasks.collect.candidates import PictureRecord
from tasks.collect.providers.provider import FetchedBytes, Limits, Provider
from tasks.services import ServiceError


class Balconies:
    name, limits = "balcony-cameras", Limits()

    def __init__(self, connection, settings):
        self.server = connection.endpoint.base_url
        self.folder = Path(connection.endpoint.user_agent)

    def records(self):
        rows = json.loads((self.folder / "list.json").read_text())
        return {
            row["id"]: PictureRecord(
                self.name, row["id"], "panorama", (row["lat"], row["lon"]), url=row["id"] + ".jpg", pixels=2_000_000,
                creator="a neighbour", licence=row.get("licence"), platform="Balconies", more={"floor": 3},
            )
            for row in rows
        }

    async def in_box(self, box):
        return [record for record in self.records().values() if box.holds(*record.point)]

    async def by_id(self, ids):
        return {name: record for name, record in self.records().items() if name in ids}

    async def addresses(self, ids):
        return {name: record.url for name, record in (await self.by_id(ids)).items()}

    async def address(self, source_id):
        if source_id not in self.records():
            raise ServiceError(self.name, "not_found", "no such camera")
        return self.records()[source_id].url

    async def tile(self, name):
        raise AssertionError("it says that it has no tiles")

    async def fetch(self, url, etag=None):
        return FetchedBytes((self.folder / url).read_bytes(), "")


PROVIDER = Provider(Balconies)
'''


@pytest.fixture
def balconies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A third provider in one folder of a user's own, on the Python path; gives the folder of its pictures."""
    folder = tmp_path / "mine" / "geofix_providers" / "balcony_cameras"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    cameras = tmp_path / "cameras"
    cameras.mkdir()
    yield cameras
    for name in [name for name in sys.modules if name.startswith("geofix_providers")]:
        del sys.modules[name]


def put(cameras: Path, *rows: dict[str, Any]) -> None:
    (cameras / "list.json").write_text(json.dumps(rows))
    for number, row in enumerate(rows):
        out = io.BytesIO()
        Image.linear_gradient("L").rotate(90 * number).resize((2000, 1000)).convert("RGB").save(out, "JPEG")
        (cameras / f"{row['id']}.jpg").write_bytes(out.getvalue())


def context(lake: Lake, cameras: Path) -> Context:
    # Its pictures are files: the one free text that every endpoint has says where.
    endpoint = {"base_url": "http://127.0.0.1:1", "user_agent": str(cameras)}
    services = ServicesSettings.model_validate({"street_view": {"balcony-cameras": endpoint}})
    return Context(lake, connect(services, {}))


def test_a_third_provider_is_one_folder(balconies: Path, tmp_path: Path, in_process: None) -> None:
    """Found, searched, chosen, stored, credited, checked again and ended as the others are."""
    here = {"lat": LAT + 0.001, "lon": LON, "licence": "CC BY 4.0"}
    put(balconies, {"id": "b1", **here}, {"id": "b2", **here, "licence": None})
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
    put(balconies)
    run(recheck.STAGE, settings, context(lake, balconies))
    assert lake.read("checks").filter(pl.col("subject") == "image")["status"].to_list() == ["deleted"]
    assert lake.read("images").is_empty()


def test_a_provider_is_known_by_its_folder(balconies: Path) -> None:
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
