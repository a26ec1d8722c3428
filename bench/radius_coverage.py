"""Do radii hold? Answers of a learner to pictures of an offline world, radii calibrated by the product.

Plan, collection, curation, calibration, radii and scores are the product's stages; the learner is that of
`bench closed_loop`. It learns from the training split, radii are calibrated on its answers to the validation split, and
how many of its benchmark answers lie within their radius is counted, in all and by slice. A slice is large from LARGE
answers on; what a slice of fewer shows is chance as much as calibration. How many of the answers to come a radius
covers is itself luck of the n answers it was calibrated on, Beta distributed (Vovk 2012): its 95 % range is printed.

    python -m bench radius_coverage
    python -m bench.radius_coverage --lake FOLDER      # pictures of an earlier run, or of closed_loop --keep
"""

import argparse
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from scipy.special import betaincinv

from bench.closed_loop import COUNTRIES, SPLIT, VALIDATE, WORLD, Arm
from bench.goals import Goal, judge
from bench.offline_server import offline_server
from schemas.settings.plan import PlanSettings
from tasks.evaluate.answers import evaluation_id
from tasks.evaluate.radius import CALIBRATIONS, RADII
from tasks.evaluate.scores import SLICES
from tasks.evaluate.scores import STAGE as SCORES
from tasks.runtime.ray_start import stop_ray
from tasks.runtime.runner import run

PLACES, LARGE = 6000, 400
BETWEEN = (0.88, 0.92)
ASK = VALIDATE.model_copy(update={"split": "benchmark"})
COLUMNS = ("value", "low", "high", "n")


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
        arm.refresh(
            PlanSettings.model_validate({"places": places, "countries": COUNTRIES, "split": SPLIT, "seed": seed})
        )
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
