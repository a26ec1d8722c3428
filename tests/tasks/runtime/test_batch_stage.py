"""Frames through workers that hold a model: each item is accounted for, and one that breaks its batch fails alone."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import Field
from ray import cloudpickle

from schemas.errors import GeofixError, StageRefused
from schemas.messages import Usage
from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings, StageResources
from tasks.lake import Lake
from tasks.runtime.batch_stage import NO_OUTCOME, BatchOutcome, BatchStage
from tasks.runtime.ray_start import stop_ray
from tasks.runtime.runner import Context, Inputs, Resources, WorkerSetup, run
from tasks.services import connect

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class ModelSettings(Settings):
    odd: dict[str, str] = Field(default_factory=dict, json_schema_extra=OPERATIONAL)  # item -> what goes wrong with it


class Model:
    """A linear layer, and the sizes of the batches it saw."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings, self.weights = settings, np.array([[1.0, 0.0], [0.5, 2.0]])

    def __call__(self, points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return points @ self.weights


def points(inputs: Inputs, settings: ModelSettings) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"n{k:02d}" for k in range(30)], "lat": range(30), "lon": range(30)})


def open_model(settings: ModelSettings, setup: WorkerSetup) -> Model:
    return Model(settings)


def infer(frame: pl.DataFrame, model: Model) -> BatchOutcome:
    odd = {item: model.settings.odd[item] for item in frame["id"] if item in model.settings.odd}
    if "refuses" in odd.values():
        raise StageRefused("the weights are not those of this model")
    if "raises" in odd.values():
        raise FloatingPointError("not a number")
    if "kills" in odd.values():
        os.kill(os.getpid(), signal.SIGKILL)
    values = model(frame.select("lat", "lon").to_numpy().astype(float))
    is_rejected = frame["id"].is_in([item for item, what in odd.items() if what == "rejected"])
    is_left_out = frame["id"].is_in([item for item, what in odd.items() if what == "left out"])
    kept = frame.select(
        "id",
        pl.col("id").alias("place_id"),
        pl.lit("FR").alias("country"),
        pl.Series("lat", values[:, 0]),
        pl.Series("lon", values[:, 1]),
        pl.lit("train").alias("split"),
        pl.lit(str(frame.height)).alias("admin1"),
    )
    if "strange" in odd.values():
        kept = kept.with_columns(id=pl.lit("another"))
    rejects = frame.filter(is_rejected).select("id", pl.lit("too_far").alias("reason"), pl.col("lat").alias("at"))
    return BatchOutcome({"places": kept.filter(~(is_rejected | is_left_out))}, rejects, Usage(requests=1))


STAGE = BatchStage("infer", (), ("places",), points, infer, open_model, batch_size=8, resources=Resources(workers=2))


@pytest.fixture(scope="module", autouse=True)
def ray_ends() -> Iterator[None]:
    yield
    stop_ray()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}), SpreadSettings(workers=2))


def test_every_item_of_a_batch_is_kept_rejected_or_failed(context: Context) -> None:
    odd = {"n01": "rejected", "n05": "raises", "n12": "kills", "n20": "left out"}
    first = run(STAGE, ModelSettings(odd=odd), context)
    assert (first.items_in, first.kept, first.rejected, first.failed) == (30, 26, 1, 3)
    assert first.failures == {"FloatingPointError": 1, "worker_died": 1, NO_OUTCOME: 1}
    reject = context.lake.read("rejects").row(0, named=True)
    assert (reject["item_id"], reject["reason"], reject["evidence_json"]) == ("n01", "too_far", '{"at": 1}')
    rows = context.lake.read("places").sort("place_id")
    sizes = dict(rows.select("place_id", "admin1").iter_rows())
    assert sizes["n29"] == "6" and sizes["n24"] == "6", "the last batch is what is left of the items"
    assert sizes["n04"] == "1", "a batch that raised was done item by item"
    assert rows.filter(pl.col("place_id") == "n02").select("lat", "lon").row(0) == (3.0, 4.0)
    again = run(STAGE, ModelSettings(), context)
    assert (again.items_in, again.kept, again.skipped) == (3, 3, 27)
    assert again.usage.requests >= 1


def test_the_size_of_a_batch_is_a_setting(context: Context) -> None:
    spread = context.spread.model_copy(update={"stages": {"infer": StageResources(chunk=30, workers=1)}})
    changed = Context(context.lake, context.connections, spread)
    assert run(STAGE, ModelSettings(), changed).kept == 30
    assert context.lake.read("places")["admin1"].unique().to_list() == ["30"]


def test_what_every_item_would_meet_ends_the_stage(context: Context) -> None:
    with pytest.raises(GeofixError, match="infer stopped: the weights are not those of this model"):
        run(STAGE, ModelSettings(odd={"n03": "refuses"}), context)


def test_rows_of_what_is_no_item_of_the_batch_are_a_bug(context: Context) -> None:
    with pytest.raises(GeofixError, match="returned rows for 'places' of item 'another', not in its batch"):
        run(STAGE, ModelSettings(odd={"n03": "strange"}), context)
