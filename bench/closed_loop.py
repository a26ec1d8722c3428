"""Does collecting where the agent fails help? Three refreshes with `plan.focus` against as many plain pictures.

Both arms start from the same lake: a plain plan of twelve countries, panoramas collected from an offline world over
its Mapillary API, curated. Then three times: the learner answers the validation pictures, the product scores them, and
the product plans, collects and curates more: the focused arm where slices were weak, the control by the plain plan,
grown by as many training places. Plan, collection, curation (pixels, addresses, duplicates, labels) and scores are the
product's own stages. Two things are not. The judge is left out, every picture is `localizable`: its verdicts are the
same for both arms and would take most of the time. And the learner is small: nearest neighbours over the embeddings
that curation makes, the answer being the place, among those of the five nearest training pictures, with the least
distance to the others. It learns honestly, from the training pictures alone, and in no time.

Both arms then answer the same held-out pictures, the benchmark split of the control's last plan, with as many training
pictures: the arm with more leaves some out, by their bytes. Shown are GeoScore and accuracy, paired, by refresh and
country; the goal is the GeoScore over all held-out pictures, which are spread as the plain plan spreads them.

    python -m bench closed_loop
    python -m bench.closed_loop --places 240 --added 60 --keep FOLDER
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
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
from tasks.reward.metrics import compare, geoscore
from tasks.runtime.ray_start import stop_ray
from tasks.runtime.runner import Context, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

PLACES, ADDED, REFRESHES = 240, 60, 3
COUNTRIES = ("BR", "FR", "IN", "JP", "KE", "MX", "NO", "PL", "US", "ZA", "AU", "ID")
SPLIT = {"train": 0.5, "validation": 0.2, "benchmark": 0.3}
WORLD = ("--size", "200000", "--pano-width", "512")
COLLECT = CollectSettings.model_validate(
    {"photos": 0, "panorama_width": 512, "panorama_min_pixels": 1, "satellite": {"enabled": False}}
)
VALIDATE = EvaluateSettings(policies=("nearest",), trained=False, split="validation", resamples=200)
NEIGHBOURS = 5
METRICS = ("acc@200km", "acc@750km", "acc@2500km")
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
        now = datetime.now(UTC)
        versions = {name: self.lake.version(name) for name in ("places", "images", "labels")}
        row = {"table_versions_json": json.dumps(versions), "status": "approved", "reviewer": "bench", "report": ""}
        name = f"refresh-{now:%H%M%S%f}"
        self.write(
            "snapshots", [{**row, "snapshot_id": name, "checks_passed": True, "created_at": now, "reviewed_at": now}]
        )
        asked = items(open_inputs(SCORES, self.lake), VALIDATE).select("image_id")
        held = self.pictures("validation").join(asked, on="image_id", how="semi")
        lat, lon = nearest(self.pictures("train"), held)
        key = {"evaluation_id": evaluation_id("nearest", VALIDATE), "snapshot_id": name, "policy": "nearest"}
        said = zip(held["image_id"], lat.tolist(), lon.tolist(), strict=True)
        self.write(
            "predictions",
            [{**key, "image_id": image, "lat": y, "lon": x, "answer": f"{y}, {x}"} for image, y, x in said],
        )
        for stage in (SCORES, SLICES):
            run(stage, VALIDATE, self.context)


def nearest(known: pl.DataFrame, asked: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Where the learner places pictures: of the places of the most alike training pictures, the most central."""
    marks, wanted = (np.array(one["embedding"].to_list(), dtype=np.float32) for one in (known, asked))
    alike = np.argsort(-(wanted @ marks.T), axis=1, kind="stable")[:, :NEIGHBOURS]
    lat, lon = known["lat"].to_numpy()[alike], known["lon"].to_numpy()[alike]
    apart = distance_km(lat[:, :, None], lon[:, :, None], lat[:, None, :], lon[:, None, :]).sum(axis=2)
    best = apart.argmin(axis=1)
    rows = np.arange(len(best))
    return lat[rows, best], lon[rows, best]


def errors(known: pl.DataFrame, held_out: pl.DataFrame) -> np.ndarray:
    """Kilometres from the truth."""
    lat, lon = nearest(known, held_out)
    return np.asarray(distance_km(lat, lon, held_out["lat"].to_numpy(), held_out["lon"].to_numpy()))


def with_as_many(plain: pl.DataFrame, focused: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Training pictures of both arms, equal in number: what is left out follows from the bytes."""
    n = min(plain.height, focused.height)
    return plain.head(n), focused.head(n)


def report(plain: np.ndarray, focused: np.ndarray, held_out: pl.DataFrame) -> list[Goal]:
    """Print the paired differences, in all and by country; the goals."""
    found = {one.metric: one for one in compare(plain, focused, 2000)}
    for name in (*METRICS, "geoscore_mean", "median_km"):
        one = found[name]
        scale = 100 if name in METRICS else 1
        told = (scale * value for value in (one.first, one.second, one.difference, one.low, one.high))
        print("   {:<14} plain {:8.2f}  focused {:8.2f}  difference {:+8.2f} ({:+.2f} to {:+.2f})".format(name, *told))
    worse = 0
    for country in held_out["country"].drop_nulls().unique().sort():
        mine = (held_out["country"] == country).to_numpy()
        if mine.sum() < LEAST:
            continue
        [one] = [one for one in compare(plain[mine], focused[mine], 2000) if one.metric == "geoscore_mean"]
        worse += one.high < 0
        told = f"{one.difference:+8.1f} ({one.low:+.1f} to {one.high:+.1f})"
        print(f"   {country:<24} {mine.sum():4d} pictures, GeoScore {told}")
    change, low, high = balanced(plain, focused, held_out["country"].fill_null(""))
    print(f"   GeoScore with all countries alike: {change:+.1f} ({low:+.1f} to {high:+.1f})")
    gain = found["geoscore_mean"]
    return [
        Goal("lower end of the GeoScore's gain", gain.low, at_least=0.0),
        Goal("slices that are worse", worse, at_most=0),
    ]


def balanced(plain: np.ndarray, focused: np.ndarray, country: pl.Series) -> tuple[float, float, float]:
    """The gain of the GeoScore, mean of the countries' means, with its bootstrap interval."""
    gain, names = geoscore(focused) - geoscore(plain), country.to_numpy()
    groups = [gain[names == name] for name in sorted(set(names))]
    rng = np.random.default_rng(0)
    drawn = [np.mean([rng.choice(group, len(group)).mean() for group in groups]) for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean([group.mean() for group in groups])), float(low), float(high)


def measure(folder: Path, url: str, places: int, added: int) -> int:
    base = PlanSettings.model_validate({"places": places, "countries": COUNTRIES, "split": SPLIT})
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
        focused.evaluate()
        focused.refresh(base.model_copy(update={"focus": "last-evaluation", "focus_places": added}))
        plain.refresh(base.model_copy(update={"places": places + round(number * added / SPLIT["train"])}))
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
    held_out = plain.pictures("benchmark")
    goals: list[Goal] = []
    for number, (control, arm) in enumerate(course, 1):
        a, b = errors(control, held_out), errors(arm, held_out)
        print(
            f"   after refresh {number}, {held_out.height} held-out pictures, {control.height} training pictures each"
        )
        goals = report(a, b, held_out)
    control = course[-1][0]
    mixed = control.with_columns(pl.col("lat", "lon").gather(np.random.default_rng(0).permutation(control.height)))
    chance, learned = (float(geoscore(errors(one, held_out)).mean()) for one in (mixed, control))
    print(f"   GeoScore of the control {learned:.0f}, with its training places exchanged (chance) {chance:.0f}")
    print(f"   {time.monotonic() - start:.0f} s in all")
    return judge(goals)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=PLACES, help="of the plain plan that both arms begin with")
    parser.add_argument("--added", type=int, default=ADDED, help="training places of each refresh")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty folder for the lakes, which stay")
    given = parser.parse_args([] if arguments is None else arguments)
    with tempfile.TemporaryDirectory() as folder, offline_server(*WORLD) as server:
        try:
            return measure(given.keep or Path(folder), server.url, given.places, given.added)
        finally:
            stop_ray()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
