"""Do radii hold? Answers of a learner to pictures of an offline world, radii calibrated by the product.

Plan, collection, curation, calibration, radii and scores are the product's stages. The judge is left out, every picture
is `localizable`. The learner is small: over the embeddings that curation makes, a linear classifier of countries, then
the place of the most alike training picture of that country. It learns from the training split, radii are calibrated on
its answers to the validation split, and how many of its benchmark answers lie within their radius is counted, in all
and by slice. A slice is large from LARGE answers on; what a slice of fewer shows is chance as much as calibration. How
many of the answers to come a radius covers is itself luck of the n answers it was calibrated on, Beta distributed (Vovk
2012): its 95 % range is printed.

    python -m bench radius_coverage
    python -m bench.radius_coverage --lake FOLDER      # one with curated pictures
"""

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.special import betaincinv

from bench.goals import Goal, judge
from bench.offline_server import offline_server
from schemas.config import Config, section_of
from schemas.settings.collect import CollectSettings
from schemas.settings.curate import CurateSettings
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from tasks.collect import street_view
from tasks.curate import address, duplicates, labels, quality
from tasks.evaluate.answers import evaluation_id, items
from tasks.evaluate.radius import CALIBRATIONS, RADII
from tasks.evaluate.scores import SLICES
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.plan.stage import STAGE as PLAN
from tasks.runtime.on_ray.start import stop_ray
from tasks.runtime.runner import Context, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

PLACES, LARGE = 6000, 400
COUNTRIES = ("BR", "FR", "IN", "JP", "KE", "MX", "NO", "PL", "US", "ZA", "AU", "ID")
SPLIT = {"train": 0.22, "validation": 0.48, "benchmark": 0.3}  # 900 validation answers and more, as radius.least wants
WORLD = ("--size", "200000", "--pano-width", "512")
COLLECT = CollectSettings.model_validate(
    {"photos": 0, "panorama_width": 512, "panorama_min_pixels": 1, "satellite": {"enabled": False}}
)
VALIDATE = EvaluateSettings(policies=("nearest",), trained=False, split="validation", resamples=200)
SHRINKAGE = 30.0  # of the classifier's weights
BETWEEN = (0.88, 0.92)
ASK = VALIDATE.model_copy(update={"split": "benchmark"})
COLUMNS = ("value", "low", "high", "n")


class Arm:
    """A lake that is filled by the product's stages, and its learner."""

    def __init__(self, folder: Path, url: str) -> None:
        self.lake = Lake(folder)
        services = ServicesSettings.model_validate({"mapillary": {"base_url": f"{url}/mapillary", "timeout_s": 300}})
        self.context = Context(self.lake, connect(services, {}))
        self.commits = 0

    def fill(self, plan: PlanSettings) -> None:
        """Plan, collect and curate."""
        run(PLAN, plan, self.context)
        run(street_view.STAGE, COLLECT, self.context)
        for stage in (quality.STAGE, address.STAGE, duplicates.STAGE):
            self.curate(stage)
        verdict = {"model": "judge", "localizability": "localizable", "score": 7.0, "reason": "left out"}
        self.write(
            "judgements",
            [{**row, **verdict} for row in self.lake.read("images").select("image_id", "sha256").to_dicts()],
        )
        self.curate(labels.STAGE)

    def curate(self, stage: Any) -> None:
        run(stage, section_of(Config(curate=CurateSettings()), stage.section or "curate"), self.context)

    def write(self, table: str, rows: list[dict[str, Any]]) -> None:
        self.commits += 1
        self.lake.upsert(table, rows, Commit(f"bench-{time.time_ns()}", self.commits))

    def pictures(self, split: str) -> pl.DataFrame:
        """The labelled pictures of a split with their embeddings, in the order of their bytes."""
        marks = self.lake.read("fingerprints").select("image_id", "embedding")
        labelled = self.lake.read("labels").filter(pl.col("split") == split).join(marks, on="image_id")
        return labelled.sort("sha256", "image_id")

    def snapshot(self) -> str:
        """An approved snapshot of what is there."""
        now = datetime.now(UTC)
        versions = {name: self.lake.version(name) for name in ("places", "images", "labels")}
        row = {"table_versions_json": json.dumps(versions), "status": "approved", "reviewer": "bench", "report": ""}
        name = f"bench-{now:%H%M%S%f}"
        self.write(
            "snapshots", [{**row, "snapshot_id": name, "checks_passed": True, "created_at": now, "reviewed_at": now}]
        )
        return name

    def answer(self, snapshot: str, settings: EvaluateSettings) -> None:
        """The learner's answers to the pictures of the settings' split."""
        pictures = items(open_inputs(SCORES, self.lake), settings).select("image_id")
        held, known = self.pictures(settings.split).join(pictures, on="image_id", how="semi"), self.pictures("train")
        lat, lon = Learner(known, held).answers(np.arange(known.height))
        [policy] = settings.policies
        key = {"evaluation_id": evaluation_id(policy, settings), "snapshot_id": snapshot, "policy": policy}
        points = zip(held["image_id"], lat.tolist(), lon.tolist(), strict=True)
        self.write(
            "predictions",
            [{**key, "image_id": image, "lat": y, "lon": x, "answer": f"{y}, {x}"} for image, y, x in points],
        )


class Learner:
    """Says where pictures were taken: country by a linear classifier, there the place of the most alike known one."""

    def __init__(self, known: pl.DataFrame, held: pl.DataFrame) -> None:
        marks, self.wanted = (np.array(table["embedding"].to_list(), dtype=np.float64) for table in (known, held))
        self.marks, self.alike = marks, self.wanted @ marks.T
        self.lat, self.lon = known["lat"].to_numpy(), known["lon"].to_numpy()
        names, self.country = np.unique(known["country"].fill_null("").to_numpy(), return_inverse=True)
        self.one_hot = np.eye(len(names))[self.country]

    def answers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latitudes and longitudes, learned from these of the known pictures."""
        marks = self.marks[rows]
        mean, scale = marks.mean(axis=0), marks.std(axis=0) + 1e-6
        seen, new = (
            np.column_stack(((rows_of - mean) / scale, np.ones(len(rows_of)))) for rows_of in (marks, self.wanted)
        )
        squares = seen.T @ seen + SHRINKAGE * np.eye(seen.shape[1])
        country = (new @ np.linalg.solve(squares, seen.T @ self.one_hot[rows])).argmax(axis=1)
        there = np.where(self.country[rows] == country[:, None], self.alike[:, rows], -np.inf).argmax(axis=1)
        return self.lat[rows][there], self.lon[rows][there]


def measure(arm: Arm) -> list[Goal]:
    """Print how often radii hold, in all and by slice; the goals."""
    snapshot = arm.snapshot()
    for settings in (VALIDATE, ASK):
        arm.answer(snapshot, settings)
    for stage in (CALIBRATIONS, RADII, SCORES, SLICES):
        run(stage, ASK, arm.context)
    [policy] = ASK.policies
    mine = pl.col("evaluation_id") == evaluation_id(policy, ASK), pl.col("snapshot_id") == snapshot
    calibrated = arm.lake.read("calibrations").filter(*mine).drop_nulls("quantile").sort("answers")
    for group, answers, km in calibrated.select("radius_group", "answers", "quantile").rows():
        low, high = covers(answers, ASK.radius.share)
        print(f"   radius of {group:<28} {km:8.0f} km: {answers} validation answers, so it covers {low:.0%}-{high:.0%}")
    coverage = pl.col("metric") == "radius_coverage"
    [whole] = arm.lake.read("scores").filter(*mine, coverage).select(COLUMNS).rows()
    slices = arm.lake.read("score_slices").filter(*mine, coverage).sort("slice_by", "n", descending=[False, True])
    shown = [("all answers", whole)]
    shown += [(f"{row[0]} {row[1]}", row[2:]) for row in slices.select("slice_by", "slice", *COLUMNS).rows()]
    goals = []
    for name, (value, low, high, n) in shown:
        if n >= LARGE:
            print(f"   {name:<40} {value:6.1%} ({low:.1%}-{high:.1%}) of {n}")
            goals.append(Goal(f"{name}: answers within their radius", value, at_least=BETWEEN[0], at_most=BETWEEN[1]))
    return goals


def covers(answers: int, share: float) -> tuple[float, float]:
    """Between which shares of the answers to come a radius covers, with 95 %, that this many were calibrated on."""
    rank = math.ceil(round((answers + 1) * share, 9))
    low, high = betaincinv(rank, answers + 1 - rank, [0.025, 0.975])
    return float(low), float(high)


@contextlib.contextmanager
def lake_of(given: Path | None, places: int, seed: int) -> Iterator[Arm]:
    """An arm with pictures: those of a lake that is there, or of a new one."""
    if given is not None:
        yield Arm(given, "http://127.0.0.1:9")  # nothing is fetched
        return
    with tempfile.TemporaryDirectory() as folder, offline_server(*WORLD) as server:
        arm = Arm(Path(folder), server.url)
        arm.fill(PlanSettings.model_validate({"places": places, "countries": COUNTRIES, "split": SPLIT, "seed": seed}))
        yield arm


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=PLACES, help="of the plan")
    parser.add_argument("--seed", type=int, default=7, help="of the plan")
    parser.add_argument("--lake", type=Path, help="one with curated pictures")
    given = parser.parse_args([] if arguments is None else arguments)
    start = time.monotonic()
    try:
        with lake_of(given.lake, given.places, given.seed) as arm:
            goals = measure(arm)
    finally:
        stop_ray()
    print(f"   {time.monotonic() - start:.0f} s in all")
    return judge(goals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
