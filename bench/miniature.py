"""The miniature by the product's own stages: plan, collect, curate, review, synthesize, train, Pass@K, GRPO, evaluate.

`python -m bench miniature [--set KEY=VALUE] [--minutes 25]`: `geofix` commands on one lake in the folder
`geofix-miniature` (GEOFIX_MINIATURE), with recipe spotmini and profile miniature. Every command goes on where it was
stopped, so the benchmark may be killed and begun again. The models after SFT and cold start are evaluated beside
Pass@K, and GRPO takes as many steps as fit into the minutes. Tables and the phases' weights are written to the folder
`results` as they come, a few MB to take away from a lent machine; `--trained RESULTS` measures the models of such a
folder again, on places collected anew, in place of training. What is read from the lake at the end is judged: each
phase against the one before and against controls; `--report RESULTS` judges the tables of such a folder, without
running anything, and `--figure FILE.svg` draws them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl

from bench.goals import Goal, judge
from bench.offline_server import offline_server
from infra.pretrain.rehearsal import write_rehearsal
from schemas.load import load_config
from schemas.settings.models import TRAINED
from tasks import review
from tasks.geo.distance import distance_km
from tasks.lake import Commit, Lake
from tasks.recipes.spotagent.reward import reward_at
from tasks.reward.metrics import share
from tasks.train.packaged import FILES, NAME, SHARED, pack_base, packaged_folder, unpack_base

HELD_OUT = 1000  # places, at least
RECIPE = "spotmini"
RESAMPLES = 2000
REHEARSED = 2400  # plates read and results quoted among the lessons, of another world
PHASES = ("sft", "cold_start", "grpo")
BASE, FAR_KM = "base", 750.0
TAKEN = (
    "labels",
    "trajectories",
    "attempts",
    "regimes",
    "models",
    "training_steps",
    "predictions",
    "scores",
    "groundings",
    "deliberations",
    "score_pairs",
)
EVALUATION_S, STEP_S = 340.0, 3.0  # of a GPU machine: what is left for the end, and what a step of GRPO takes at most
LEAST_STEPS = 20
SMOOTHED = 9  # steps of GRPO
PORT = 18_780  # the same on every machine: pictures' ids follow from their server's address
SAMPLED = 4  # replies at temperature 1 for each place: GRPO raises their mean, and the luck of one weighs less


class Tables(Protocol):
    """A lake, or tables that were taken from one."""

    def read(self, name: str, version: int | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame: ...


@dataclass(frozen=True)
class Taken:
    """The tables of a folder `results`."""

    folder: Path

    def read(self, name: str, version: int | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        return pl.read_parquet(self.folder / f"{name}.parquet", columns=None if columns is None else list(columns))


@dataclass
class Chain:
    """Commands on one lake, each done once however often the benchmark is begun."""

    root: Path
    options: list[str]
    until: float  # of the monotonic clock

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    def run(self, name: str, verb: str, *settings: str) -> bool:
        """Whether the command is done."""
        mark = self.root / f"{name.replace(' ', '-')}.done"
        if mark.exists():
            return True
        began = time.monotonic()
        if began > self.until:
            print(f"   {name}: not begun in time; run the same command again", flush=True)
            return False
        words = [word for one in settings for word in ("--set", one)]
        command = [sys.executable, "-m", "flows.cli", *verb.split(), "--lake", str(self.lake), *self.options, *words]
        log = self.root / f"{name.replace(' ', '-')}.log"
        with log.open("a", encoding="utf-8") as file:
            code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
        if code not in (0, 3):
            tail = log.read_text(encoding="utf-8").splitlines()[-5:]
            print(f"   {name}: exit code {code}\n   " + "\n   ".join(tail), flush=True)
            return False
        mark.write_text(f"{time.monotonic() - began:.0f} s\n", encoding="utf-8")
        print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)
        return True

    def evaluate(self, name: str, policies: Sequence[str]) -> bool:
        """With tools, likeliest and sampled, but for SFT and the base, which know none; and without."""
        with_tools = ", ".join(one for one in policies if one in PHASES[1:])
        is_done = self.run(
            f"evaluate {name}",
            "evaluate",
            f"evaluate.policies=[{with_tools}]",
            f"evaluate.scaling.policies=[{with_tools}]",
            f"evaluate.scaling.n={SAMPLED}",
            "evaluate.scaling.top_p=1.0",
            "evaluate.scaling.top_k=1024",  # the base's whole vocabulary
        ) and self.run(
            f"evaluate {name} without tools",
            "evaluate",
            f"evaluate.policies=[{', '.join(policies)}]",
            "evaluate.tools=[]",
        )
        self.take()
        return is_done

    def grpo_steps(self) -> int:
        """Steps that fit into the time that is left, at most those of the profile; the same when begun again."""
        file = self.root / "grpo-steps"
        if not file.exists():
            fit = (self.until - time.monotonic() - EVALUATION_S) / STEP_S
            most = load_config(profile="miniature").train.grpo.max_steps or LEAST_STEPS
            file.write_text(str(max(LEAST_STEPS, min(most, int(fit)))), encoding="utf-8")
        return int(file.read_text(encoding="utf-8"))

    def bring(self, results: Path) -> None:
        """Put the models of an earlier run into the lake; SystemExit if they were taught pictures held out here."""
        lake = Lake(self.lake)
        # By their bytes: a picture's id holds the server's address, which is another one here.
        taught = pl.read_parquet(results / "labels.parquet").filter(pl.col("split") == "train")["sha256"]
        held_out = lake.read("labels").filter(pl.col("split") == "benchmark")["sha256"]
        if shared := len(set(taught) & set(held_out)):
            raise SystemExit(f"{results}: {shared} held-out pictures of this lake were among its training pictures")
        models = pl.read_parquet(results / "models.parquet").filter(pl.col("training_stage").is_in(PHASES))
        models = models.sort("written_at").unique("training_stage", keep="last")
        for phase, checkpoint in models.select("training_stage", "checkpoint").iter_rows():
            unpack_base(results / f"{phase}.safetensors", lake.blobs.local(checkpoint), FILES[NAME])
        lake.upsert("models", models.to_dicts(), Commit("bench-miniature", 1))

    def bring_base(self) -> None:
        """Put the packaged base among the models, to be asked beside what was made of it."""
        lake = Lake(self.lake)
        row = {"model_id": NAME, "training_stage": BASE, "recipe": BASE, "base": NAME, "checkpoint": f"models/{NAME}"}
        shutil.copytree(packaged_folder(), lake.blobs.local(row["checkpoint"]), dirs_exist_ok=True)
        lake.upsert("models", [row], Commit("bench-miniature-base", 1))

    def take(self) -> None:
        """Tables and weights as small files: a lent machine may be gone before the end."""
        results, lake = self.root / "results", Lake(self.lake, read_only=True)
        results.mkdir(exist_ok=True)
        for name in TAKEN:
            lake.read(name).write_parquet(results / f"{name}.parquet", compression="zstd")
        for row in lake.read("models").iter_rows(named=True):
            file = results / f"{row['training_stage']}.safetensors"
            if row["training_stage"] in PHASES and not file.exists():
                pack_base(lake.blobs.pull(row["checkpoint"]), file, leave_out=SHARED)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench miniature", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="after which no further command is begun")
    parser.add_argument("--trained", type=Path, metavar="RESULTS", help="measure models that were trained before")
    parser.add_argument("--report", type=Path, metavar="RESULTS", help="judge an earlier run's tables, run nothing")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="with --report: draw them")
    parser.add_argument("--prepare", action="store_true", help="data and trajectories alone, which need no GPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all commands")
    options = parser.parse_args(list(arguments))
    if options.figure and not options.report:
        parser.error("--figure wants --report RESULTS, whose tables it draws")
    if options.report:
        if options.figure:
            draw(Taken(options.report), options.figure)
        return report(Taken(options.report))
    return run(options.set, options.minutes, options.trained, options.prepare)


def run(changed: Sequence[str], minutes: float, trained: Path | None = None, is_prepared: bool = False) -> int:
    """Every command that is not done yet, then the figures; the exit code says whether they hold."""
    root = Path(os.environ.get("GEOFIX_MINIATURE") or Path(tempfile.gettempdir()) / "geofix-miniature") / "product"
    root.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * minutes
    rehearsal = root / "rehearsal.parquet"
    writing = threading.Thread(target=_rehearse, args=(rehearsal,))
    if trained is None:
        writing.start()  # training wants it first
    processes = str(max(2, (os.cpu_count() or 1) - 2))
    size = load_config(profile="miniature").offline.size
    # One world for all commands: two of them run at once, and each start takes seconds.
    with offline_server("--size", str(size), "--processes", processes, shared=True, port=PORT):
        own = [f"offline.port={PORT}", f"train.rehearsal.file={rehearsal}", *changed]
        options = ["--profile", "miniature", "--recipe", RECIPE]
        chain = Chain(root, options + [word for one in own for word in ("--set", one)], until)
        if not chain.run("data", "run --to review"):
            return 1
        approve_newest(Lake(chain.lake))
        if trained is not None:
            chain.bring(trained)
            return report(Lake(chain.lake)) if chain.evaluate("all", PHASES) else 1
        if not chain.run("synthesize", "synthesize"):
            return 1
        writing.join()
        if is_prepared:
            return 0
        if not chain.run("sft and cold start", "train", "train.phases=[sft, cold_start]"):
            return 1
        chain.bring_base()
        chain.take()
        asked = (f"{TRAINED}:{NAME}", "sft", "cold_start")
        beside = threading.Thread(target=chain.evaluate, args=("sft and cold start", asked))
        beside.start()
        try:
            is_done = chain.run("Pass@K", "difficulty") and chain.run(
                "GRPO", "train", f"train.grpo.max_steps={chain.grpo_steps()}"
            )
        finally:
            beside.join()
            chain.take()
        if not is_done or not chain.evaluate("all", PHASES):
            return 1
    return report(Lake(chain.lake))


def _rehearse(file: Path) -> None:
    if not file.exists():
        write_rehearsal(file, REHEARSED, seed=101)


def approve_newest(lake: Lake) -> None:
    """Approve the snapshot that review did not, saying which checks it failed."""
    newest = lake.read("snapshots").sort("written_at").to_dicts()[-1]
    if newest["status"] != "approved":
        print(f"   snapshot {newest['snapshot_id'][:12]} is {newest['status']}, approved by force", flush=True)
        review.approve(lake, newest["snapshot_id"], "bench miniature", "to measure training", force=True)


def report(lake: Tables) -> int:
    """The figures of every phase and control on the benchmark, judged."""
    trajectories = lake.read("trajectories").filter(pl.col("recipe") == RECIPE)
    if trajectories.height:  # models that were brought have none here
        kept = trajectories.filter(pl.col("verdict") == "kept").height
        regimes = lake.read("regimes")
        print(f"   trajectories: {kept} kept of {trajectories.height}; Pass@K kept {regimes.filter('kept').height} of "
              f"{regimes.height} pictures")  # fmt: skip
    asked, drawn = predictions(lake), sampled(lake)
    goals: list[Goal] = []
    before: dict[str, float] | None = None
    for phase in PHASES:
        errors = asked.get((phase, phase != "sft"))  # after SFT it answers at once
        if errors is None:
            goals.append(Goal(f"{phase} was measured", 0, at_least=1))
            continue
        found = share("acc@25km", int((errors["km"] <= 25).sum()), errors.height)
        if phase == "sft" and (BASE, False) in asked:
            goals += [far_better(errors, asked[BASE, False])]
        rewards = np.array([reward_at(one) if one is not None else 0.0 for one in errors["km"]])
        low, high = mean_interval(rewards)
        print(f"   {phase}: within 25 km {found.value:.1%} ({found.low:.1%}-{found.high:.1%}), reward "
              f"{rewards.mean():.3f} ({low:.3f}-{high:.3f}), {errors.height} places")  # fmt: skip
        goals.append(Goal(f"{phase}: held-out places", errors.height, at_least=HELD_OUT))
        if before is not None:
            # Places differ more than phases do, so what is judged is the difference at the same places.
            both = [
                (one, before[name]) for name, one in zip(errors["image_id"], rewards, strict=True) if name in before
            ]
            more = np.array([after - earlier for after, earlier in both])
            least, most = mean_interval(more)
            print(f"      reward over the phase before: {more.mean():+.3f} ({least:+.3f} to {most:+.3f})")
            goals.append(Goal(f"{phase}: reward over the phase before, low end", least, at_least=1e-9))
        before = dict(zip(errors["image_id"], rewards, strict=True))
        goals += sampled_gain(phase, drawn)
        if phase != "sft":
            goals += controls(phase, errors, asked.get((phase, False)), found.low or 0.0)
    return judge(goals)


def far_better(errors: pl.DataFrame, base: pl.DataFrame) -> Goal:
    """SFT against the base it was made of, within 750 km."""
    mine, before = (share("acc@750km", int((one["km"] <= FAR_KM).sum()), one.height) for one in (errors, base))
    print(f"      within 750 km {mine.value:.1%} ({mine.low:.1%}-{mine.high:.1%}), the base {before.value:.1%} (to "
          f"{before.high:.1%})")  # fmt: skip
    return Goal("sft: low end within 750 km above the base", mine.low or 0.0, at_least=(before.high or 0.0) + 1e-9)


def sampled_gain(phase: str, drawn: dict[str, pl.DataFrame]) -> list[Goal]:
    """What replies drawn at temperature 1 earn on average, and how much more than those of the phase before."""
    if phase not in drawn:
        return []
    mine = drawn[phase]
    found, earned = (mine[name].to_numpy() for name in ("found", "reward"))
    low, high = mean_interval(earned)
    print(f"      {SAMPLED} sampled replies a place: within 25 km {found.mean():.1%}, reward "
          f"{earned.mean():.3f} ({low:.3f}-{high:.3f})")  # fmt: skip
    earlier = drawn.get(PHASES[PHASES.index(phase) - 1])
    if earlier is None:
        return []
    more = mine.join(earlier, on="image_id", suffix="_before")
    difference = (more["reward"] - more["reward_before"]).to_numpy()
    low, high = mean_interval(difference)
    print(f"      their reward over the phase before: {difference.mean():+.3f} ({low:+.3f} to {high:+.3f})")
    return [Goal(f"{phase}: reward of sampled replies over the phase before, low end", low, at_least=1e-9)]


def controls(phase: str, errors: pl.DataFrame, without: pl.DataFrame | None, low: float) -> list[Goal]:
    """A phase against its answers to pictures of other places, and against itself without tools.

    An answer follows from the picture alone, so the answer to another place's picture is the answer that is there
    already: it is measured against this place.
    """
    goals = []
    swapped = share("acc@25km", int((np.nan_to_num(of_others(errors), nan=np.inf) <= 25).sum()), errors.height)
    print(f"      pictures of other places: {swapped.value:.1%} (to {swapped.high:.1%})")
    goals.append(Goal(f"{phase}: low end above pictures of other places", low, at_least=(swapped.high or 0.0) + 1e-9))
    if without is not None:
        alone = share("acc@25km", int((without["km"] <= 25).sum()), without.height)
        print(f"      no tools: {alone.value:.1%} (to {alone.high:.1%})")
        goals.append(Goal(f"{phase}: low end above no tools", low, at_least=(alone.high or 0.0) + 1e-9))
    return goals


def of_others(errors: pl.DataFrame) -> np.ndarray:
    """The km of each answer from the place half a table away."""
    turned = np.roll(np.arange(errors.height), errors.height // 2)
    lat, lon = (errors[name].to_numpy() for name in ("lat", "lon"))
    return distance_km(lat[turned], lon[turned], errors["true_lat"].to_numpy(), errors["true_lon"].to_numpy())


def predictions(lake: Tables) -> dict[tuple[str, bool], pl.DataFrame]:
    """(phase, with tools) -> picture, km, lat, lon and the truth of every answer, in one order of pictures."""
    phases = dict(lake.read("models").select("model_id", "training_stage").iter_rows())
    truth = lake.read("labels", columns=["image_id", "lat", "lon"]).rename({"lat": "true_lat", "lon": "true_lon"})
    rows = lake.read("predictions").join(truth, on="image_id").sort("image_id")
    found = {}
    for (policy, tools), some in rows.group_by("policy", "tools", maintain_order=True):
        phase = phases.get(str(policy).partition(":")[2])
        if phase is not None:
            figures = some.select("image_id", pl.col("error_km").alias("km"), "lat", "lon", "true_lat", "true_lon")
            found[phase, tools != "none"] = figures
    return found


def sampled(lake: Tables) -> dict[str, pl.DataFrame]:
    """Phase -> picture, and over the replies that were drawn at it the mean reward and the share within 25 km."""
    phases = dict(lake.read("models").select("model_id", "training_stage").iter_rows())
    truth = {row[0]: row[1:] for row in lake.read("labels", columns=["image_id", "lat", "lon"]).iter_rows()}
    rows: dict[str, list[dict[str, object]]] = {}
    told = lake.read("deliberations").filter(pl.col("method") == "pass@1").sort("image_id")
    for policy, image, text in told.select("policy", "image_id", "attempts_json").iter_rows():
        km = [
            float("inf") if one["lat"] is None else float(distance_km(one["lat"], one["lon"], *truth[image]))
            for one in json.loads(text)
        ]
        phase = phases[policy.partition(":")[2].partition(" ")[0]]
        earned = float(np.mean([reward_at(one) for one in km]))
        rows.setdefault(phase, []).append(
            {"image_id": image, "reward": earned, "found": float(np.mean([one <= 25 for one in km]))}
        )
    return {phase: pl.DataFrame(some) for phase, some in rows.items()}


def draw(lake: Tables, file: Path) -> None:
    """Places found by phase and control, and the reward of GRPO's rollouts by step."""
    import matplotlib.pyplot as plt

    asked, drawn = predictions(lake), sampled(lake)
    bars: list[tuple[str, float, tuple[float, float], bool]] = []  # name, per cent, interval, whether of GRPO

    def add(name: str, km: np.ndarray, is_last: bool = False) -> None:
        found = share("acc@25km", int((np.nan_to_num(km, nan=np.inf) <= 25).sum()), len(km))
        interval = (100 * (found.value - (found.low or 0)), 100 * ((found.high or 0) - found.value))
        bars.append((name, 100 * found.value, interval, is_last))

    places = asked["grpo", True]
    add("base", asked[BASE, False]["km"].to_numpy())
    add("SFT", asked["sft", False]["km"].to_numpy())
    add("cold\nstart", asked["cold_start", True]["km"].to_numpy())
    add("GRPO", places["km"].to_numpy(), is_last=True)
    both = drawn["grpo"].join(drawn["cold_start"], on="image_id", suffix="_before")  # at the same places
    count = "" if both.height == places.height else f"\n({both.height})"
    for name, column, is_last in (("cold start", "found_before", False), ("GRPO", "found", True)):
        found = 100 * both[column].to_numpy()
        low, high = mean_interval(found)
        bars.append((f"{name},\nsampled{count}", found.mean(), (found.mean() - low, high - found.mean()), is_last))
    add("GRPO, other\npictures", of_others(places), is_last=True)
    add("GRPO,\nno tools", asked["grpo", False]["km"].to_numpy(), is_last=True)

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 3.8), width_ratios=(3, 2), layout="constrained")
    for at, (_, height, (below, above), is_last) in enumerate(bars):
        left.bar(at, height, 0.66, color="#1d6080" if is_last else "#3e80a2")
        left.errorbar(at, height, [[below], [above]], color="#222222", capsize=4, linewidth=1.2)
        left.text(
            at, height + above + 1, f"{height:.1f} %" if height else "0", ha="center", va="bottom", color="#222222"
        )
    left.set_xticks(range(len(bars)), [name for name, *_ in bars], fontsize=8.5)
    left.set_ylim(0, 100)
    left.set_title(f"Within 25 km, {places.height:,} held-out places, 95 % intervals", loc="left", fontsize=11)
    steps = lake.read("training_steps").filter(training_stage="grpo", kind="step").sort("step")
    rewards = steps["reward"].to_numpy()
    right.plot(steps["step"].to_numpy(), rewards, color="#b4d2e0", linewidth=1)
    mean = np.convolve(rewards, np.ones(SMOOTHED) / SMOOTHED, "valid")
    right.plot(steps["step"].to_numpy()[SMOOTHED // 2 :][: len(mean)], mean, color="#1d6080", linewidth=2.2)
    right.set_ylim(0, max(0.8, float(rewards.max())))
    right.set_xlabel("GRPO step")
    right.set_title(f"Reward of GRPO's rollouts; mean of {SMOOTHED} steps", loc="left", fontsize=11)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e3e3e3")
        axes.set_axisbelow(True)
    figure.savefig(file, metadata={"Date": None})


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
