"""JSON lines: every row's fields count, wherever in the file they come up first."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.ingest import TableRefused
from tasks.ingest.rows import item_batches
from tasks.ingest.survey import survey_rows

ROW = {"id": "a", "path": "a.jpg", "lat": 48.5, "lon": 2.5}
SETTINGS = IngestSettings(keep_lat_lon=True, licence="CC BY 4.0", attribution="Ana", split="train")


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "photos.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def items(path: Path) -> pl.DataFrame:
    return pl.concat(list(item_batches(survey_rows(path, SETTINGS), "set", SETTINGS, PlanSettings())))


def test_fields_that_come_late(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    rows = [{**ROW, "id": f"a{n}"} for n in range(1500)]
    late = [
        {**ROW, "id": "strict", "licence": "ALL RIGHTS RESERVED"},
        {**ROW, "id": "kept back", "split": "benchmark", "kind": "panorama"},
        {"id": "far", "url": "https://host/a.jpg", "lat": 48.5, "lon": 2.5},
    ]
    found = items(write(darkroom.folder, rows + late)).tail(3).to_dicts()
    assert [row["licence"] for row in found] == ["ALL RIGHTS RESERVED", "CC BY 4.0", "CC BY 4.0"]
    assert [(row["split"], row["kind"]) for row in found][1] == ("benchmark", "panorama")
    assert (found[2]["url"], found[2]["refusal"]) == ("https://host/a.jpg", None)


def test_rows_that_name_the_same_thing_differently(tmp_path: Path) -> None:
    path = write(tmp_path, [{**ROW, "licence": "CC0"}, {**ROW, "id": "b", "license": "ALL RIGHTS RESERVED"}])
    with pytest.raises(TableRefused, match="columns licence, license may each be the licence; delete or rename"):
        survey_rows(path, SETTINGS)
    (tmp_path / "t.csv").write_text("id,path,Latitude,Longitude,lat\na,a.jpg,48,2,10\n")
    with pytest.raises(TableRefused, match="columns lat, Latitude may each be the lat"):
        survey_rows(tmp_path / "t.csv", SETTINGS)
