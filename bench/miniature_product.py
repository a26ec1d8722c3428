"""The miniature by the product's own stages: plan, collect, curate, review, synthesize, train, Pass@K, GRPO, evaluate.

`python -m bench.miniature --product [--set KEY=VALUE] [--minutes 25]`: `geofix` commands on one lake in the folder
`geofix-miniature` (GEOFIX_MINIATURE), with recipe spotmini and profile miniature. Every command goes on where it was
stopped, so the benchmark may be killed and begun again; each phase's weights are packed beside the lake. What is read
from the lake at the end is judged: each phase against the one before and against controls.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from bench.goals import Goal, judge
from infra.pretrain.rehearsal import write_rehearsal
from tasks import review
from tasks.geo.distance import distance_km
from tasks.lake import Lake
from tasks.recipes.spotagent.reward import reward_at
from tasks.reward.metrics import share
from tasks.train.packaged import SHARED, pack_base

HELD_OUT = 1000  # places, at least
RECIPE = "spotmini"
RESAMPLES = 2000
REHEARSED = 2400  # plates read and results quoted among the lessons, of another world
PHASES = ("sft", "cold_start", "grpo")


def commands(lake: Path, changed: Sequence[str]) -> list[tuple[str, list[str]]]:
    """(name, arguments) of every command, in order: Pass@K asks the model after its cold start."""
    processes = max(1, (os.cpu_count() or 1) - 2)
    common = ["--lake", str(lake), "--profile", "miniature", "--recipe", RECIPE]
    for one in (f"offline.processes={processes}", *changed):
        common += ["--set", one]
    with_tools = ["--set", "evaluate.policies=[cold_start, grpo]"]  # after SFT it knows no tools
    without_tools = ["--set", "evaluate.tools=[]"]
    return [
        ("data", ["run", "--to", "review", *common]),
        ("synthesize", ["synthesize", *common]),
        ("sft and cold start", ["train", *common, "--set", "train.phases=[sft, cold_start]"]),
        ("Pass@K", ["difficulty", *common]),
        ("GRPO", ["train", *common]),
        ("evaluate", ["evaluate", *common, *with_tools]),
        ("evaluate without tools", ["evaluate", *common, *without_tools]),
    ]


def run(changed: Sequence[str], minutes: float) -> int:
    """Every command that is not done yet, then the figures; the exit code says whether they hold."""
    root = Path(os.environ.get("GEOFIX_MINIATURE") or Path(tempfile.gettempdir()) / "geofix-miniature") / "product"
    root.mkdir(parents=True, exist_ok=True)
    lake, until = root / "lake", time.monotonic() + 60 * minutes
    file = root / "rehearsal.parquet"
    if not file.exists():
        write_rehearsal(file, REHEARSED, seed=101)
    changed = [f"train.rehearsal.file={file}", *changed]
    for name, arguments in commands(lake, changed):
        mark = root / f"{name.replace(' ', '-')}.done"
        if mark.exists():
            continue
        began = time.monotonic()
        left = until - began
        if left <= 0:
            print(f"   {name}: not begun within {minutes:g} minutes; run the same command again", flush=True)
            return 1
        with (root / "log.txt").open("a", encoding="utf-8") as log:
            code = subprocess.run([sys.executable, "-m", "flows.cli", *arguments], stdout=log, stderr=log).returncode
        if code not in (0, 3):
            tail = (root / "log.txt").read_text(encoding="utf-8").splitlines()[-5:]
            print(f"   {name}: exit code {code}\n   " + "\n   ".join(tail), flush=True)
            return 1
        if name == "data":
            approve_newest(Lake(lake))
        if "train" in arguments:
            write_weights(Lake(lake), root)
        mark.write_text(f"{time.monotonic() - began:.0f} s\n", encoding="utf-8")
        print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)
    return report(Lake(lake))


def approve_newest(lake: Lake) -> None:
    """Approve the snapshot that review did not, saying which checks it failed."""
    newest = lake.read("snapshots").sort("written_at").to_dicts()[-1]
    if newest["status"] != "approved":
        print(f"   snapshot {newest['snapshot_id'][:12]} is {newest['status']}, approved by force", flush=True)
        review.approve(lake, newest["snapshot_id"], "bench miniature", "to measure training", force=True)


def write_weights(lake: Lake, folder: Path) -> None:
    """Every trained model as a file of a few MB, as the packaged agent is one: a lent machine may be gone tomorrow."""
    for row in lake.read("models").iter_rows(named=True):
        file = folder / f"{row['training_stage']}.safetensors"
        if not file.exists():
            pack_base(lake.blobs.pull(row["checkpoint"]), file, leave_out=SHARED)


def report(lake: Lake) -> int:
    """The figures of every phase and control on the benchmark, judged."""
    trajectories = lake.read("trajectories").filter(pl.col("recipe") == RECIPE)
    kept = trajectories.filter(pl.col("verdict") == "kept").height
    regimes = lake.read("regimes")
    print(f"   trajectories: {kept} kept of {trajectories.height}; Pass@K kept {regimes.filter('kept').height} of "
          f"{regimes.height} pictures")  # fmt: skip
    asked = predictions(lake)
    goals: list[Goal] = []
    before: dict[str, float] | None = None
    for phase in PHASES:
        errors = asked.get((phase, phase != "sft"))  # after SFT it answers at once
        if errors is None:
            goals.append(Goal(f"{phase} was measured", 0, at_least=1))
            continue
        found = share("acc@25km", int((errors["km"] <= 25).sum()), errors.height)
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
        if phase != "sft":
            goals += controls(phase, errors, asked.get((phase, False)), found.low or 0.0)
    return judge(goals)


def controls(phase: str, errors: pl.DataFrame, without: pl.DataFrame | None, low: float) -> list[Goal]:
    """A phase against its answers to pictures of other places, and against itself without tools.

    An answer follows from the picture alone, so the answer to another place's picture is the answer that is there
    already: it is measured against this place.
    """
    goals = []
    turned = np.roll(np.arange(errors.height), errors.height // 2)
    lat, lon = (errors[name].to_numpy() for name in ("lat", "lon"))
    others = distance_km(lat[turned], lon[turned], errors["true_lat"].to_numpy(), errors["true_lon"].to_numpy())
    swapped = share("acc@25km", int((np.nan_to_num(others, nan=np.inf) <= 25).sum()), errors.height)
    print(f"      pictures of other places: {swapped.value:.1%} (to {swapped.high:.1%})")
    goals.append(Goal(f"{phase}: low end above pictures of other places", low, at_least=(swapped.high or 0.0) + 1e-9))
    if without is not None:
        alone = share("acc@25km", int((without["km"] <= 25).sum()), without.height)
        print(f"      no tools: {alone.value:.1%} (to {alone.high:.1%})")
        goals.append(Goal(f"{phase}: low end above no tools", low, at_least=(alone.high or 0.0) + 1e-9))
    return goals


def predictions(lake: Lake) -> dict[tuple[str, bool], pl.DataFrame]:
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


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
