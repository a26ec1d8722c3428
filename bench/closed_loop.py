"""Does collecting where the agent fails help? Three refreshes with `plan.focus` against as many plain pictures.

Both arms start from the same lake: a plain plan of twelve countries, panoramas collected from an offline world over
its Mapillary API, curated. Then three times: the learner answers the validation pictures, the product scores them, and
the product plans, collects and curates more: the focused arm where slices were weak, the control as many training
places by the plain plan (`plan.focus_bound: 1`, every slice weighs alike). A control that grew its whole plan would
lose training pictures to its growing benchmark, whose creators they share.

Plan, collection, curation (pixels, addresses, duplicates, labels) and scores are the product's own stages. Two things
are not. The judge is left out, every picture is `localizable`: its verdicts are the same for both arms and would take
most of the time. And the learner is small: over the embeddings that curation makes, a linear classifier of countries,
then the place of the most alike training picture of that country. It learns from the training pictures alone.

Both arms then answer the same held-out pictures, the benchmark split, with as many training pictures: the arm with more
leaves some out, by their bytes. Shown are GeoScore and accuracy, paired, by refresh and country. Which pictures an arm
happened to collect moves its figures as much as which were held out, so both are drawn anew for the intervals. The goal
is the GeoScore over all held-out pictures, spread as the plain plan spreads them.

    python -m bench closed_loop
    python -m bench.closed_loop --places 1200 --added 300 --seed 11 --keep FOLDER
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

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
from tasks.evaluate.scores import SLICES
from tasks.evaluate.scores import STAGE as SCORES
from tasks.geo.distance import distance_km
from tasks.lake import Commit, Lake
from tasks.plan.stage import STAGE as PLAN
from tasks.reward.metrics import geoscore
from tasks.runtime.ray_start import stop_ray
from tasks.runtime.runner import Context, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

PLACES, ADDED, REFRESHES = 4000, 500, 3
COUNTRIES = ("BR", "FR", "IN", "JP", "KE", "MX", "NO", "PL", "US", "ZA", "AU", "ID")
SPLIT = {"train": 0.5, "validation": 0.2, "benchmark": 0.3}
WORLD = ("--size", "200000", "--pano-width", "512")
COLLECT = CollectSettings.model_validate(
    {"photos": 0, "panorama_width": 512, "panorama_min_pixels": 1, "satellite": {"enabled": False}}
)
VALIDATE = EvaluateSettings(policies=("nearest",), trained=False, split="validation", resamples=200)
SHRINKAGE = 30.0  # of the classifier's weights
DRAWS, HELD_OUT_DRAWS = 300, 5  # of training pictures, and for each as many of held-out ones, for the intervals
KM = (200, 750, 2500)
LEAST = 15  # held-out pictures of a slice that is compared


class Arm:
    """A lake that is refreshed, and its learner."""

    def __init__(self, folder: Path, url: str) -> None:
        self.lake = Lake(folder)
        services = ServicesSettings.model_validate({"mapillary": {"base_url": f"{url}/mapillary", "timeout_s": 300}})
        self.context = Context(self.lake, connect(services, {}))
        self.commits = 0

    def refresh(self, plan: PlanSettings) -> None:
        """Plan, collect and curate what is new."""
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
        found = self.lake.read("labels").filter(pl.col("split") == split).join(marks, on="image_id")
        return found.sort("sha256", "image_id")

    def evaluate(self) -> None:
        """The learner's answers to the validation pictures, scored by the product."""
        self.answer(self.snapshot(), VALIDATE)
        for stage in (SCORES, SLICES):
            run(stage, VALIDATE, self.context)

    def snapshot(self) -> str:
        """An approved snapshot of what is there."""
        now = datetime.now(UTC)
        versions = {name: self.lake.version(name) for name in ("places", "images", "labels")}
        row = {"table_versions_json": json.dumps(versions), "status": "approved", "reviewer": "bench", "report": ""}
        name = f"refresh-{now:%H%M%S%f}"
        self.write(
            "snapshots", [{**row, "snapshot_id": name, "checks_passed": True, "created_at": now, "reviewed_at": now}]
        )
        return name

    def answer(self, snapshot: str, settings: EvaluateSettings) -> None:
        """The learner's answers to the pictures of the settings' split."""
        asked = items(open_inputs(SCORES, self.lake), settings).select("image_id")
        held, known = self.pictures(settings.split).join(asked, on="image_id", how="semi"), self.pictures("train")
        lat, lon = Learner(known, held).answers(np.arange(known.height))
        [policy] = settings.policies
        key = {"evaluation_id": evaluation_id(policy, settings), "snapshot_id": snapshot, "policy": policy}
        said = zip(held["image_id"], lat.tolist(), lon.tolist(), strict=True)
        self.write(
            "predictions",
            [{**key, "image_id": image, "lat": y, "lon": x, "answer": f"{y}, {x}"} for image, y, x in said],
        )


class Learner:
    """Says where pictures were taken: country by a linear classifier, there the place of the most alike known one."""

    def __init__(self, known: pl.DataFrame, asked: pl.DataFrame) -> None:
        marks, self.wanted = (np.array(one["embedding"].to_list(), dtype=np.float64) for one in (known, asked))
        self.marks, self.alike = marks, self.wanted @ marks.T
        self.lat, self.lon = known["lat"].to_numpy(), known["lon"].to_numpy()
        names, self.country = np.unique(known["country"].fill_null("").to_numpy(), return_inverse=True)
        self.one_hot = np.eye(len(names))[self.country]

    def answers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latitudes and longitudes, learned from these of the known pictures."""
        marks = self.marks[rows]
        mean, scale = marks.mean(axis=0), marks.std(axis=0) + 1e-6
        seen, new = (np.column_stack(((one - mean) / scale, np.ones(len(one)))) for one in (marks, self.wanted))
        squares = seen.T @ seen + SHRINKAGE * np.eye(seen.shape[1])
        said = (new @ np.linalg.solve(squares, seen.T @ self.one_hot[rows])).argmax(axis=1)
        there = np.where(self.country[rows] == said[:, None], self.alike[:, rows], -np.inf).argmax(axis=1)
        return self.lat[rows][there], self.lon[rows][there]


class Errors:
    """Kilometres from the truth of held-out pictures, and with the training pictures drawn anew."""

    def __init__(self, known: pl.DataFrame, held_out: pl.DataFrame, seed: int) -> None:
        self.learner, self.truth = Learner(known, held_out), (held_out["lat"].to_numpy(), held_out["lon"].to_numpy())
        self.km = self._km(np.arange(known.height))
        rng = np.random.default_rng(seed)
        self.drawn = [self._km(rng.integers(0, known.height, known.height)) for _ in range(DRAWS)]

    def _km(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(distance_km(*self.learner.answers(rows), *self.truth))


def with_as_many(plain: pl.DataFrame, focused: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Training pictures of both arms, equal in number: what is left out follows from the bytes."""
    n = min(plain.height, focused.height)
    return plain.head(n), focused.head(n)


def gain(
    plain: Errors, focused: Errors, score: Callable[[np.ndarray], np.ndarray], groups: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """The mean over groups of the mean gain in each, and its interval."""
    own, rng, values = score(focused.km) - score(plain.km), np.random.default_rng(0), []
    for before, after in zip(plain.drawn, focused.drawn, strict=True):
        more = score(after) - score(before)
        values += [np.mean([more[rng.choice(one, len(one))].mean() for one in groups]) for _ in range(HELD_OUT_DRAWS)]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(np.mean([own[one].mean() for one in groups])), float(low), float(high)


def report(plain: Errors, focused: Errors, country: pl.Series) -> list[Goal]:
    """Print the paired differences, in all and by country; the goals."""
    names = country.fill_null("").to_numpy()
    groups = {name: np.flatnonzero(names == name) for name in sorted(set(names))}
    everything = [np.arange(len(names))]
    shown: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [("GeoScore", geoscore)]
    shown += [(f"within {km} km, %", partial(_within, km)) for km in KM]
    for name, score in shown:
        first, second = (score(one.km).mean() for one in (plain, focused))
        found = gain(plain, focused, score, everything)
        print(f"   {name:<18} plain {first:8.2f}  focused {second:8.2f}  {_told(found)}")
    worse = 0
    for name, group in groups.items():
        if len(group) >= LEAST:
            one = gain(plain, focused, geoscore, [group])
            worse += one[2] < 0
            print(f"   {name:<24} {len(group):4d} pictures, GeoScore {_told(one)}")
    print(f"   GeoScore with all countries alike: {_told(gain(plain, focused, geoscore, list(groups.values())))}")
    return [
        Goal("lower end of the GeoScore's gain", gain(plain, focused, geoscore, everything)[1], at_least=0.0),
        Goal("slices that are worse", worse, at_most=0),
    ]


def _within(km: float, distance: np.ndarray) -> np.ndarray:
    return 100.0 * (distance <= km)


def _told(found: Sequence[float]) -> str:
    return "{:+8.2f} ({:+.2f} to {:+.2f})".format(*found)


def measure(folder: Path, url: str, places: int, added: int, seed: int) -> int:
    base = PlanSettings.model_validate({"places": places, "countries": COUNTRIES, "split": SPLIT, "seed": seed})
    start = time.monotonic()
    first = Arm(folder / "focused", url)
    first.refresh(base)
    shutil.copytree(folder / "focused", folder / "plain")
    focused, plain = first, Arm(folder / "plain", url)
    print(
        f"   begun with {focused.pictures('train').height} training pictures, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    course: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    for number in range(1, REFRESHES + 1):
        for arm, bound in ((focused, base.focus_bound), (plain, 1.0)):
            arm.evaluate()
            more = {"focus": "last-evaluation", "focus_places": added, "focus_bound": bound}
            arm.refresh(base.model_copy(update=more))
        course.append(with_as_many(plain.pictures("train"), focused.pictures("train")))
        new = focused.lake.read("places").drop_nulls("focus")
        most = (
            new.filter(pl.col("focus") == new.sort("written_at")["focus"][-1])["country"]
            .value_counts(sort=True)
            .head(4)
        )
        print(
            f"   refresh {number}: {course[-1][0].height} training pictures each, focused mostly on "
            f"{', '.join(f'{code} {count}' for code, count in most.iter_rows())}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
    held_out = plain.pictures("benchmark").join(focused.pictures("benchmark"), on="sha256", how="semi")
    goals: list[Goal] = []
    for number, (control, chosen) in enumerate(course, 1):
        print(
            f"   after refresh {number}, {held_out.height} held-out pictures, {control.height} training pictures each"
        )
        goals = report(Errors(control, held_out, 1), Errors(chosen, held_out, 2), held_out["country"])
    control = course[-1][0]
    mixed = control.with_columns(pl.col("lat", "lon").gather(np.random.default_rng(0).permutation(control.height)))
    chance, learned = (float(geoscore(Errors(one, held_out, 0).km).mean()) for one in (mixed, control))
    print(f"   GeoScore of the control {learned:.0f}, with its training places exchanged (chance) {chance:.0f}")
    print(f"   {time.monotonic() - start:.0f} s in all")
    return judge(goals)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=PLACES, help="of the plain plan that both arms begin with")
    parser.add_argument("--added", type=int, default=ADDED, help="training places of each refresh")
    parser.add_argument("--seed", type=int, default=7, help="of the plan: another one draws other places and splits")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty folder for the lakes, which stay")
    given = parser.parse_args([] if arguments is None else arguments)
    with tempfile.TemporaryDirectory() as folder, offline_server(*WORLD) as server:
        try:
            return measure(given.keep or Path(folder), server.url, given.places, given.added, given.seed)
        finally:
            stop_ray()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
