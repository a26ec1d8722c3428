"""Parallel scaling and the swarm on pictures of the offline world: accuracy with intervals, tokens and seconds.

Pictures are drawn from the world straight into a lake, so that the figures are of the methods alone. First
`answerer-base` is tried four times at each and the verifier answers (pass@1, verifier@4, best@4). Then three answerers
discuss: the swarm's election is learned on pictures of another split, and measured beside each agent alone, the
majority vote and a debate of all. A second run in the same `--lake` goes on where the first stopped.

    python -m bench ensembles
    python -m bench.ensembles --pictures 300 --learn 100 --lake FOLDER
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from bench.agent_pictures import services
from bench.goals import Goal, judge
from bench.offline_server import offline_server
from infra.offline.render import render_jpeg
from infra.offline.world import World
from schemas.settings.evaluate import EvaluateSettings
from tasks.evaluate.ensembles import ENSEMBLES
from tasks.evaluate.scores import PAIRS
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.recipes.smilegeo.outcomes import DEBATE, VOTE, agent_alone, learn
from tasks.runtime.runner import Context, run
from tasks.services import connect

PICTURES, LEARN = 300, 100
SEED, SIZE, WIDTH = 7, 20_000, 1024
POLICY, N = "answerer-base", 4
AGENTS = ("answerer-small", "answerer-base", "answerer-large")
THRESHOLDS = ("acc@25km", "acc@50km", "acc@200km", "acc@750km")


def fill(lake: Lake, pictures: int, learning: int) -> None:
    """Pictures of the world, one a place: the first for the benchmark, the rest to learn from."""
    if lake.version("snapshots") >= 0:
        return
    world = World(SEED, SIZE, WIDTH)
    labels, images = [], []
    for index in range(pictures + learning):
        record = world.first_image(index)
        sha256 = lake.images.put(render_jpeg(world, record), "jpg")
        place = world.place(index)
        key = {"image_id": f"picture-{index:04d}", "sha256": sha256, "lat": record.lat, "lon": record.lon}
        split = "benchmark" if index < pictures else "train"
        labels.append({**key, "split": split, "country": None, "region": None, "city": place.city.name})
        known = {"kind": "photo", "source": "offline", "source_id": record.image_id, "licence": "CC0"}
        images.append({**key, **known, "attribution": "offline world", "extension": "jpg"})
    lake.upsert("labels", labels, Commit("bench", 1))
    lake.upsert("images", images, Commit("bench", 2))
    now = datetime.now(UTC)
    snapshot: dict[str, Any] = {
        "snapshot_id": "bench",
        "table_versions_json": json.dumps({name: lake.version(name) for name in ("places", "images", "labels")}),
        "status": "approved",
        "reviewer": "bench",
        "report": "",
        "checks_passed": True,
        "created_at": now,
        "reviewed_at": now,
    }
    lake.upsert("snapshots", [snapshot], Commit("bench", 3))


def measure(lake: Lake, url: str, learning: int, folder: Path) -> EvaluateSettings:
    """Ask everything that is not yet in the lake; returns the settings of the evaluation."""
    context = Context(lake, connect(services(url), {}))
    plain: dict[str, Any] = {"policies": [], "trained": False, "max_tokens": 512, "view_max_pixels": 786_432}
    swarm: dict[str, Any] = {"agents": AGENTS, "rounds": 3}
    if learning:
        settings = EvaluateSettings.model_validate({**plain, "split": "train", "swarm": swarm})
        _told("swarm on pictures to learn from", run(ENSEMBLES["swarm"], settings, context))
        found = learn(lake, AGENTS, "train", settings.swarm.same_km, folder / "election.pt")
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.right.items())
        print(f"   learned from {found.pictures} pictures, right within 50 km: {shares}", flush=True)
        swarm["network"] = str(folder / "election.pt")
    settings = EvaluateSettings.model_validate(
        {**plain, "scaling": {"policies": [POLICY], "n": N}, "swarm": swarm, "resamples": 2000}
    )
    _told("parallel scaling", run(ENSEMBLES["scaling"], settings, context))
    _told("swarm", run(ENSEMBLES["swarm"], settings, context))
    for stage in (SCORES, PAIRS):
        run(stage, settings, context)
    return settings


def _told(what: str, result: Any) -> None:
    usage = result.usage
    print(
        f"   {what}: {result.kept} pictures, {result.failed} failed, {usage.prompt_tokens + usage.completion_tokens:,} "
        f"tokens, {time.strftime('%H:%M:%S')}",
        flush=True,
    )


def show(lake: Lake) -> dict[str, dict[str, dict[str, Any]]]:
    """The table of methods; metric rows by policy and metric."""
    scores = lake.read("scores").sort("written_at")
    newest = scores.group_by("policy").agg(pl.col("evaluation_id").last())
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in scores.join(newest, on=["policy", "evaluation_id"], how="semi").to_dicts():
        found.setdefault(row["policy"], {})[row["metric"]] = row
    print(f"   {'':<30}" + "".join(f"{name:>24}" for name in THRESHOLDS) + f"{'tokens':>10}{'n':>6}")
    for policy in sorted(found):
        cells = "".join(f"{_share(found[policy][name]):>24}" for name in THRESHOLDS)
        tokens = found[policy]["tokens_mean"]["value"] or 0.0
        print(f"   {policy:<30}{cells}{tokens:>10,.0f}{found[policy]['acc@25km']['n']:>6}")
    return found


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['value']:.1f} ({100 * row['low']:.1f}..{100 * row['high']:.1f})"


def paired(lake: Lake, first: str, second: str, metric: str) -> None:
    """The paired comparison of two methods, as the table has it."""
    rows = lake.read("score_pairs").filter((pl.col("metric") == metric) & pl.col("policy").is_in([first, second]))
    for row in rows.filter(pl.col("other_policy").is_in([first, second])).sort("written_at").tail(1).to_dicts():
        sign = 1 if row["policy"] == first else -1
        low, high = sorted((sign * row["low"], sign * row["high"]))
        test = "" if row["p"] is None else f"McNemar p {row['p']:.3g}, "
        print(
            f"   {second} less {first}, {metric}: {100 * sign * row['difference']:+.1f} points "
            f"({100 * low:+.1f}..{100 * high:+.1f}), {test}{row['n']} pictures"
        )


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--learn", type=int, default=LEARN)
    parser.add_argument("--lake", default=None)
    given = parser.parse_args(list(arguments))
    with tempfile.TemporaryDirectory() as folder, offline_server("--size", str(SIZE), "--seed", str(SEED)) as server:
        home = Path(given.lake or folder)
        lake = Lake(home / "lake")
        fill(lake, given.pictures, given.learn)
        measure(lake, server.url, given.learn, home)
    found = show(lake)
    first, verified, best = (f"{POLICY} {name}" for name in ("pass@1", f"verifier@{N}", f"best@{N}"))
    single = max((agent_alone(agent) for agent in AGENTS), key=lambda name: found[name]["acc@50km"]["value"])
    print(f"   the best single agent is {single}")
    paired(lake, first, verified, "acc@25km")
    for other in (single, VOTE, DEBATE):
        paired(lake, other, "swarm", "acc@50km")
    at = {name: found[name]["acc@25km"]["value"] for name in (first, verified, best)}
    swarm, alone_at, debate = (found[name] for name in ("swarm", single, DEBATE))
    return judge(
        [
            Goal("pictures", found[first]["acc@25km"]["n"], at_least=PICTURES),
            Goal(f"verifier@{N} less pass@1 at 25 km", at[verified] - at[first], at_least=0.0),
            Goal(
                f"best@{N} less the better of the two at 25 km", at[best] - max(at[first], at[verified]), at_least=0.0
            ),
            Goal(
                "swarm less the best single agent at 50 km",
                swarm["acc@50km"]["value"] - alone_at["acc@50km"]["value"],
                at_least=0.0,
            ),
            Goal(
                "tokens of the swarm, as a share of the debate's",
                swarm["tokens_mean"]["value"] / debate["tokens_mean"]["value"],
                at_most=1.0,
            ),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
