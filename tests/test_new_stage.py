"""What the architecture page promises: a stage is one file in tasks/, one name in a list and one schema."""

import sys
from pathlib import Path

import polars as pl
import pytest
from pydantic import Field
from ray import cloudpickle

from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.tables import FLOAT, STRING, TABLES, Table
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context, Inputs, Kept, Outcome, Rejected, Row, Stage, WorkerSetup, run
from tasks.services import connect

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# the schema: settings and a table
class ElevationSettings(Settings):
    highest_m: float = Field(9000.0, gt=0, description="places above are rejected")


ELEVATIONS = Table("elevations", ("place_id",), {"place_id": STRING, "elevation_m": FLOAT}, about="height of places")


# the file in tasks/
def places(inputs: Inputs, settings: ElevationSettings) -> pl.DataFrame:
    return inputs.frame("places").select("lat", id="place_id")


def measure(item: Row, settings: ElevationSettings) -> Outcome:
    elevation_m = item["lat"] * 100
    if elevation_m > settings.highest_m:
        return Rejected("too_high", {"elevation_m": elevation_m})
    return Kept({"elevations": [{"place_id": item["id"], "elevation_m": elevation_m}]})


def open_context(settings: ElevationSettings, setup: WorkerSetup) -> ElevationSettings:
    # In this test only: a real table stands in schemas/tables/, which a worker imports.
    from schemas import tables

    tables.TABLES["elevations"] = ELEVATIONS
    return settings


STAGE = Stage("elevate", ("places",), ("elevations",), places, measure, open_context)


def test_a_new_stage_gets_everything_from_the_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "elevations", ELEVATIONS)
    lake = Lake(tmp_path / "lake")
    rows = [{"place_id": f"p{n}", "country": "FR", "lat": n * 10.0, "lon": 0.0, "split": "train"} for n in range(9)]
    lake.upsert("places", rows, Commit("test", 1))
    context = Context(lake, connect(ServicesSettings(), {}))
    result = run(STAGE, ElevationSettings(highest_m=5000), context)
    assert (result.items_in, result.kept, result.rejected, result.failed) == (9, 6, 3, 0)
    assert run(STAGE, ElevationSettings(highest_m=5000), context).nothing_to_do
    assert lake.read("elevations").height == 6
    assert lake.read("runs").height == 2
