"""Parallel scaling and the swarm on pictures of the offline world: accuracy with intervals, tokens and seconds.

Pictures are drawn from the world straight into a lake, so that the figures are of the methods alone: clear panoramas
in which the town's name can be read, as curation would leave them. First `answerer-base` is tried four times at each
and the verifier answers (pass@1, verifier@4, best@4). Then six agents discuss that differ in their eyes (small, base,
large) and in what they know of the map (travelers know one continent, elsewhere large cities), as unequal as the
paper's thirteen; without web search, which would tell all of them the same (the left half of Table 1). Whom to elect
is learned on pictures of another split. The swarm is measured beside each agent alone, the swarm before it learned
(fixed election), the majority vote and a debate of all. A second run in the same `--lake` goes on where the first
stopped.

    python -m bench ensembles
    python -m bench.ensembles --pictures 150 --learn 80 --rounds 3 --lake FOLDER
    python -m bench.ensembles --only swarm --baselines single,vote,debate,blender,php,reflexion,dylan,fixed
"""

import argparse
import collections
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from bench.goals import Goal, judge
from bench.offline_models import LEAST_FREE, tells
from bench.offline_server import offline_server
from infra.offline.render import encode, paint
from infra.offline.render.signs import SeenSign
from infra.offline.world import World
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.services import ServicesSettings
from tasks.evaluate.ensembles import ENSEMBLES, METHODS
from tasks.evaluate.scores import PAIRS
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.recipes.evaluation import training_steps
from tasks.recipes.smilegeo.evaluation import SWARM, agent_alone, baseline
from tasks.runtime.runner import Context, run
from tasks.services import connect

PICTURES, LEARN, ROUNDS = 150, 80, 3
SEED, SIZE, WIDTH = 7, 20_000, 2048  # pixels of a panorama: at 1024 hardly a sign can be read
LEGIBLE_PX = 8.0  # height of letters in a picture 1,024 px wide: `answerer-large` reads seven such panoramas of eight
POLICY, N = "answerer-base", 4
PERSONAS = {
    name: f"You are a traveler around {name.title().replace('_', ' ')}."
    for name in ("africa", "asia", "europe", "north_america")
}
AGENTS = (
    *("answerer-small", "answerer-small as asia", "answerer-small as europe"),
    *("answerer-base as africa", "answerer-large as north_america", "answerer-large"),
)
BASELINES = "single,fixed,vote,debate"
FIXED, VOTE, DEBATE = (baseline(name) for name in ("fixed", "vote", "debate"))
THRESHOLDS = ("acc@25km", "acc@50km", "acc@200km", "acc@750km")


def services(url: str) -> ServicesSettings:
    """Every service of an offline world at this address."""
    names = {"mapillary": "mapillary", "geocoder": "nominatim", "search": "tavily", "maps": "maps", "chat": "openai/v1"}
    return ServicesSettings.model_validate(
        {name: {"base_url": f"{url}/{path}", "timeout_s": 300, "total_timeout_s": 600} for name, path in names.items()}
    )


def fill(lake: Lake, pictures: int, learning: int) -> None:
    """Pictures of the world, one a place: the first for the benchmark, the rest to learn from."""
    if lake.version("snapshots") >= 0:
        return
    world = _world()
    labels, images = [], []
    for index, data in itertools.islice(_pictures(world), pictures + learning):
        record, sha256 = world.first_image(index), lake.images.put(data, "jpg")
        place = world.place(index)
        key = {"image_id": f"picture-{index:04d}", "sha256": sha256, "lat": record.lat, "lon": record.lon}
        split = "benchmark" if len(labels) < pictures else "train"
        labels.append({**key, "split": split, "country": place.facts.name, "region": None, "city": place.city.name})
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


@lru_cache(maxsize=1)
def _world() -> World:
    return World(SEED, SIZE, WIDTH)


def _pictures(world: World) -> Iterator[tuple[int, bytes]]:
    """Places whose first picture is a clear panorama with the town's name, and the picture; painted on all cores."""
    records = ((index, world.first_image(index)) for index in range(world.size))
    clear = (index for index, record in records if record.is_pano and record.condition == "clear")
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as painters:
        while batch := list(itertools.islice(clear, 64)):
            painted = zip(batch, painters.map(_legible_picture, batch, chunksize=4), strict=True)
            yield from ((index, data) for index, data in painted if data is not None)


def _legible_picture(index: int) -> bytes | None:
    """The first picture of a place as JPEG, if the town's name can be read in it."""
    world, signs = _world(), list[SeenSign]()
    image, place = paint(world, world.first_image(index), signs), world.place(index)
    lines = [
        line for sign in signs if sign.free >= LEAST_FREE for line in zip(sign.lines, sign.letters_px, strict=True)
    ]
    legible = [line for line, letters_px in lines if letters_px * 1024 >= LEGIBLE_PX * image.width]
    return encode(image) if "town" in {tells(place, line) for line in legible} else None


def measure(lake: Lake, url: str, given: argparse.Namespace) -> None:
    """Ask everything that is not yet in the lake."""
    context = Context(lake, connect(services(url), {}))
    plain: dict[str, Any] = {"policies": [], "trained": False, "max_tokens": 512, "resamples": 2000}
    if given.only != "swarm":
        scaling = EvaluateSettings.model_validate({**plain, "scaling": {"policies": [POLICY], "n": N}})
        _told("parallel scaling", run(ENSEMBLES["scaling"], scaling, context))
        _score(scaling, context)
    if given.only == "scaling":
        return
    swarm: dict[str, Any] = {
        "agents": AGENTS, "personas": PERSONAS, "rounds": 3, "election": "learned",
        "baselines": given.baselines.split(","),
        "learning": {"rounds": given.rounds, "side": 128, "width": 64, "epochs": 200, "average_epochs": 20,
                     "encoder_steps": 40, "learning_rate": 1e-3},
    }  # fmt: skip
    own = METHODS[SWARM].recipe
    settings = EvaluateSettings.model_validate({**plain, "agent_recipe": own, "swarm": swarm})
    for step in training_steps():
        _told(step.name, run(step, settings, context))
    _told("swarm", run(ENSEMBLES[SWARM], settings, context))
    _score(settings, context)


def _score(settings: EvaluateSettings, context: Context) -> None:
    for stage in (SCORES, PAIRS):
        run(stage, settings, context)


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


def paired(lake: Lake, first: str, second: str, metric: str) -> float:
    """The paired comparison of two methods, as the table has it; returns the interval's lower end."""
    rows = lake.read("score_pairs").filter((pl.col("metric") == metric) & pl.col("policy").is_in([first, second]))
    [row] = rows.filter(pl.col("other_policy").is_in([first, second])).sort("written_at").tail(1).to_dicts()
    sign = 1 if row["policy"] == first else -1
    low, high = sorted((sign * row["low"], sign * row["high"]))
    test = "" if row["p"] is None else f"McNemar p {row['p']:.3g}, "
    print(
        f"   {second} less {first}, {metric}: {100 * sign * row['difference']:+.1f} points "
        f"({100 * low:+.1f}..{100 * high:+.1f}), {test}{row['n']} pictures"
    )
    return float(low)


def _scaling_goals(lake: Lake, found: dict[str, dict[str, dict[str, Any]]]) -> list[Goal]:
    first, verified, best = (f"{POLICY} {name}" for name in ("pass@1", f"verifier@{N}", f"best@{N}"))
    paired(lake, first, verified, "acc@25km")
    at = {name: found[name]["acc@25km"]["value"] for name in (first, verified, best)}
    better = max(at[first], at[verified])
    return [
        Goal(f"verifier@{N} less pass@1 at 25 km", at[verified] - at[first], at_least=0.0),
        Goal(f"best@{N} less the better of the two at 25 km", at[best] - better, at_least=0.0),
    ]


def _swarm_goals(lake: Lake, found: dict[str, dict[str, dict[str, Any]]]) -> list[Goal]:
    single = max((agent_alone(agent) for agent in AGENTS), key=lambda name: found[name]["acc@50km"]["value"])
    print(f"   the best single agent is {single}")
    for other in (single, VOTE, DEBATE):
        paired(lake, other, SWARM, "acc@50km")
    swarm, debate = found[SWARM], found[DEBATE]
    for policy in (SWARM, FIXED):
        print(f"   {policy} let answer: {_elected(lake, policy)}")
    return [
        Goal("pictures", swarm["acc@50km"]["n"], at_least=PICTURES),
        Goal(
            "learned less fixed election at 50 km, lower end of the paired interval",
            paired(lake, FIXED, SWARM, "acc@50km"),
            at_least=1e-9,
        ),
        Goal(
            "tokens of the swarm, as a share of the debate's",
            swarm["tokens_mean"]["value"] / debate["tokens_mean"]["value"],
            at_most=1.0,
        ),
    ]


def _elected(lake: Lake, policy: str) -> str:
    """At how many pictures each agent was among the answerers."""
    rows = lake.read("deliberations").filter(pl.col("policy") == policy)
    counts = collections.Counter(agent for text in rows["answers_json"] for agent in json.loads(text)["answerers"])
    return ", ".join(f"{AGENTS[agent]} {count}" for agent, count in counts.most_common())


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--learn", type=int, default=LEARN)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="L of the learning")
    parser.add_argument("--only", choices=("scaling", "swarm"), default=None)
    parser.add_argument("--baselines", default=BASELINES)
    parser.add_argument("--lake", default=None)
    given = parser.parse_args(list(arguments))
    with tempfile.TemporaryDirectory() as folder, offline_server("--size", str(SIZE), "--seed", str(SEED)) as server:
        lake = Lake(Path(given.lake or folder) / "lake")
        fill(lake, given.pictures, given.learn)
        measure(lake, server.url, given)
        found = show(lake)
        goals = [] if given.only == "swarm" else _scaling_goals(lake, found)
        return judge(goals + ([] if given.only == "scaling" else _swarm_goals(lake, found)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
