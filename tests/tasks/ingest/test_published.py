"""A published set stays whole: every row is labelled and can be scored, or it is said why not."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.curate import CurateSettings
from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.curate import STAGES
from tasks.evaluate.coverage import benchmark_coverage
from tasks.ingest import dataset_name, ingest_table, survey_table
from tasks.lake import Lake
from tasks.runtime.runner import Context, run
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")


def ingest(path: Path, lake: Lake, **settings: Any) -> None:
    chosen = IngestSettings(licence="CC0", attribution="Photo {id}", **settings)
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1))
    ingest_table(survey_table(path, chosen), dataset_name(path, chosen), chosen, PlanSettings(), context)


def curate(lake: Lake, settings: CurateSettings) -> None:
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1))
    for step in STAGES:
        section: Any = settings
        for part in (step.section or "curate").split(".")[1:]:
            section = getattr(section, part)
        run(step, section, context)


@pytest.fixture
def table(darkroom: Any) -> Path:
    """Rows in the columns of Im2GPS3k: copies, tiny and dark pictures, points at sea, and one broken file."""
    rows = []
    for n in range(12):
        seed = 3 if n in (3, 4) else n  # two rows with the same bytes
        data = darkroom.jpeg(seed, 30, 20) if n == 5 else darkroom.jpeg(seed)
        darkroom.save(f"p{n}.jpg", data[:200] if n == 7 else data)
        rows.append((f"p{n}.jpg", "ana", *((0.5, -30.0) if n == 6 else (48.0 + n / 100, 2.0))))
    path: Path = darkroom.table(rows, ("IMG_ID", "AUTHOR", "LAT", "LON"), "im2gps3k_places365.csv")
    return path


def test_a_benchmark_is_labelled_whole(table: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(table, lake, picture={"min_pixels": 1})
    curate(lake, CurateSettings())
    labels = lake.read("labels")
    refused = lake.read("rejects").filter(pl.col("stage") == "ingest")
    assert set(labels["split"]) == {"benchmark"} and labels["localizability"].null_count() == labels.height
    assert labels.height + refused.height == 12
    [covered] = benchmark_coverage(lake)
    assert str(covered) == f"im2gps3k_places365: {labels.height} of 12 pictures (not: {_reasons(refused)})"
    assert "truncated" in covered.left_out


def _reasons(refused: pl.DataFrame) -> str:
    counts = refused["reason"].value_counts(sort=True).rows()
    return ", ".join(f"{count} {reason}" for reason, count in counts)


def test_a_pool_is_judged_and_a_judge_may_be_left_out(table: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(table, lake, purpose="pool", split="train", picture={"min_pixels": 1})
    blurry: Any = {"quality": {"max_blur": 1, "max_clipped": 1, "least_brightness": 0, "max_sky": 1, "max_road": 1}}
    curate(lake, CurateSettings(judge="off", labels=blurry))  # type: ignore[arg-type]
    labels = lake.read("labels")
    assert labels["localizability"].null_count() == labels.height
    assert lake.read("judgements").is_empty() and benchmark_coverage(lake) == []
    reasons = set(lake.read("rejects").filter(pl.col("stage") == "curate.labels")["reason"])
    assert {"exact_duplicate", "too_small"} <= reasons, "a pool is chosen from"
    assert labels.height + lake.read("rejects").filter(pl.col("stage") != "curate.judge").height == 12
