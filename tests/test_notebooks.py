"""The reviewer's notebooks, executed on one small lake with two snapshots."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tasks.lake import Commit, Lake

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parent.parent
NOW = datetime(2026, 3, 1, tzinfo=UTC)
WHERE = (("France", "Paris", 48.86, 2.35), ("Japan", "Kyoto", 35.01, 135.77), ("Kenya", "Nairobi", -1.29, 36.82))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three pictures, of which the second snapshot keeps two, one of them under another city."""
    folder = tmp_path_factory.mktemp("notebooks")
    found = Lake(folder / "lake")
    system = {"stage": "curate.labels", "made_from": "m", "run_id": "r", "written_at": NOW}
    for number, (country, city, lat, lon) in enumerate(WHERE):
        Image.new("RGB", (64, 32), (number * 60, 120, 160)).save(folder / "picture.jpg")
        sha256 = found.images.put((folder / "picture.jpg").read_bytes(), "jpg")
        both = {"image_id": f"picture{number}", "lat": lat, "lon": lon, "sha256": sha256, "item_id": f"picture{number}"}
        image = {"kind": "photo", "source": "mine", "source_id": f"s{number}", "licence": "CC0", "attribution": "Ada"}
        label = {"country": country, "city": city, "split": "train", "localizability": "localizable"}
        score = {"localizability_score": 5.0 + number, "judge_reason": "a sign"}
        found.upsert("images", [{**both, **image, **system, "extension": "jpg"}], Commit(f"image{number}", 1))
        found.upsert("labels", [{**both, **label, **score, **system}], Commit(f"label{number}", 1))
    _snapshot(found, "first-snapshot", NOW)
    reject = {"item_id": "picture2", "reason": "landmark", "evidence_json": "{}", **system}
    found.upsert("rejects", [reject], Commit("reject", 1))
    labels = found.read("labels").sort("image_id")
    found.tombstone("labels", labels.filter(image_id="picture2").select("image_id"), "rejected", Commit("gone", 1))
    moved = {**labels.row(1, named=True), "city": "Ōtsu"}
    found.upsert("labels", [moved], Commit("moved", 1))
    _snapshot(found, "second-snapshot", NOW + timedelta(days=1))
    return found


def _snapshot(lake: Lake, name: str, when: datetime) -> None:
    versions = {table: lake.version(table) for table in ("places", "images", "labels", "rejects")}
    check = {"table": "labels", "says": "one row", "passed": True, "checked": 3, "unexpected": 0, "examples": []}
    row = {
        **{"snapshot_id": name, "table_versions_json": json.dumps(versions), "counts_json": "{}", "status": "approved"},
        **{"checks_json": json.dumps([check]), "checks_passed": True, "report": f"reports/{name}/index.html"},
    }
    lake.upsert("snapshots", [{**row, "created_at": when, "reviewer": "Ada"}], Commit(name, 1))


def run(name: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything the notebook shows, as text."""
    monkeypatch.setenv("GEOFIX_LAKE", str(lake.root))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(str(output.get("text") or output.get("data")) for output in outputs)


def test_the_review_notebook(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("review.ipynb", lake, monkeypatch)
    assert "second-snapshot approved by Ada" in shown and "No marks of people yet" in shown
    assert "iconic sight" in shown and "image/jpeg" in shown


def test_the_compare_notebook(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("compare.ipynb", lake, monkeypatch)
    assert "first-snapshot (approved)  ->  second-snapshot (approved)" in shown
    assert "landmark" in shown and "Country" in shown and "0.3333" in shown
