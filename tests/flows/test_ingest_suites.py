"""`geofix ingest` holds the rows it wrote to their table's contract, as the stages do."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import ingest as flow_module
from tasks.lake import Commit, Lake
from tasks.review.suites import SuiteFailed

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_photo_outside_the_earth_stops_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    row = {
        **{"image_id": "a" * 24, "kind": "photo", "lat": 148.86, "lon": 2.35, "source": "trip", "source_id": "c"},
        **{
            "licence": "CC BY 4.0",
            "attribution": "x",
            "sha256": "b" * 64,
            "extension": "jpg",
            "bytes": 9,
            "width": 9,
            "height": 9,
        },
        **{"split": "train", "fetched_at": NOW, "stage": "ingest", "item_id": "c", "made_from": "m"},
        **{"run_id": "r1", "written_at": NOW},
    }

    def brings_in(*_: Any) -> Any:
        lake.upsert("images", [row], Commit("r1", 1))
        stage = SimpleNamespace(output_versions={"images": lake.version("images")}, run_id="r1")
        return SimpleNamespace(stage=stage, report="")

    monkeypatch.setattr(flow_module, "ingest_table", brings_in)
    config = SimpleNamespace(ingest=None, plan=None)
    session = SimpleNamespace(config=config, lake=lake, results=[], ready=None, context=lambda *_: None)
    with pytest.raises(SuiteFailed, match=r"images: lat .*148\.86"):
        flow_module._bring_in.fn(SimpleNamespace(session=session, found=None, dataset="trip", result=None))
