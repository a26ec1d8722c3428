"""Synthesis under SIGKILL, with a money budget: only what was in flight is asked again.

The stage `synthesize` runs over pictures of the offline world with prices set. Undisturbed it says what it costs; a
budget of one dollar is compared with that. Then the same is made by processes
that are killed with SIGKILL again and again while they work. The world's own journal has every request it was sent,
with a hash of its body: one that is there twice is repeated. At most as many may be as were in flight at the kills:
those that the world was still answering, or had answered within the last moment before a kill. Two workers may ask the
same of a tool at once, without any kill; calls to models wait for each other also between processes.

    python -m bench paid_calls
    python -m bench.paid_calls --kills 20 --pictures 60
    python -m bench paid_calls --recipe geoagent    # GRPO whose reward asks models, until a budget ends it
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge
from bench.offline_server import OfflineServer, offline_server
from bench.training_lake import small_settings
from infra.offline.render import render_jpeg
from infra.offline.world import World
from schemas.errors import GeofixError
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from schemas.settings.synthesize import SynthesizeSettings
from schemas.settings.train import GrpoSettings, TunerSettings
from tasks.lake import Commit, Lake
from tasks.lake.names import KEY_FILE
from tasks.recipes.rewards import reward_roles
from tasks.runtime.calls import call_store, spent_usd
from tasks.runtime.on_ray.start import stop_ray
from tasks.runtime.runner import Context, StageResult, run
from tasks.services import connect
from tasks.synthesize import STAGE
from tasks.train import PHASES as TRAIN

KILLS, PICTURES = 20, 60
SEED, SIZE, WIDTH = 7, 3_000, 1024
PRICE = {"prompt": 3.0, "completion": 12.0}
LATENCY_S = 1.0  # so that a kill finds requests under way
LONGEST_RUN_S = 1.5  # from a run's first answer to its kill
MOMENT_S = 0.1  # in which an answer that was sent may not have been read and written down
BUDGET_USD = 1.0
SETTINGS = SynthesizeSettings(view_max_pixels=120_000, view_min_pixels=784)
PASSING = ("run_id", "written_at")
REWARD_PRICE = {"prompt": 4000.0, "completion": 0.0}  # a few tokens a call: dear, so that the budget ends training
KEPT = re.compile(r"^train.grpo stopped: the money budget is used up: .*the checkpoint of step \d+ is kept[^\n]*$")
WHAT_IT_GOT = re.compile(r"money budget is used up: .* kept and .* rejected are saved, .* left")


def make_lake(folder: Path, count: int) -> Lake:
    """A lake with labelled pictures and an approved snapshot."""
    world = World(SEED, SIZE, WIDTH)
    lake = Lake(folder)
    images, labels = list[dict[str, Any]](), list[dict[str, Any]]()
    for index in range(SIZE):
        record = next((one for one in world.images(index) if one.condition == "clear" and not one.is_pano), None)
        if record is None:
            continue
        sha256 = lake.images.put(render_jpeg(world, record), "jpg")
        where = {"image_id": f"i{index}", "sha256": sha256, "lat": record.lat, "lon": record.lon}
        about = {"kind": "photo", "source": "bench", "source_id": str(index), "licence": "CC0", "attribution": "-"}
        images.append({**where, **about, "extension": "jpg"})
        city = world.place(index).city
        labels.append({**where, "split": "train", "country": city.country, "region": city.admin1, "city": city.name})
        if len(images) == count:
            break
    lake.upsert("images", images, Commit("bench", 1))
    lake.upsert("labels", labels, Commit("bench", 1))
    versions = {name: lake.version(name) for name in ("images", "labels")}
    snapshot = {
        "snapshot_id": "bench-snapshot",
        "table_versions_json": str(versions).replace("'", '"'),
        "status": "approved",
        "reviewer": "bench",
        "report": "reports/bench/index.html",
        "checks_passed": True,
    }
    lake.upsert("snapshots", [snapshot], Commit("bench", 1))
    return lake


def context_of(
    lake: Lake,
    url: str,
    budget: float | None = None,
    paid: Sequence[str] = ("observer", "planner", "agent"),
    price: Mapping[str, float] = PRICE,
) -> Context:
    """What the stage runs in, with the offline world at this address."""
    quick = {"timeout_s": 300, "total_timeout_s": 300}
    services = ServicesSettings.model_validate(
        {
            "chat": {"base_url": f"{url}/openai/v1", **quick},
            "search": {"base_url": f"{url}/tavily", **quick},
            "geocoder": {"base_url": f"{url}/nominatim", **quick},
        }
    )
    roles = {name: {"price": price} for name in paid}
    models = ModelsSettings.model_validate({"roles": roles, "budget_usd": budget})
    return Context(lake, connect(services, {}, models=models), SpreadSettings(workers=2))


def work(folder: str, url: str) -> None:
    """One process of the campaign: `python -m bench.paid_calls --work LAKE URL`."""
    result = run(STAGE, SETTINGS, context_of(Lake(folder), url))
    print(f"done {result.kept} {result.rejected} {result.failed}", flush=True)


def campaign(folder: Path, server: OfflineServer, kills: int, seed: int = 1) -> tuple[list[float], list[str]]:
    """When it was killed until the stage was done, and the requests that were in flight at the kills."""
    chance, killed, in_flight = random.Random(seed), list[float](), list[str]()
    server.ask("/control/journal", "POST")
    while True:
        command = [sys.executable, "-m", "bench.paid_calls", "--work", str(folder), server.url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if len(killed) >= kills:
            told, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"the run after the kills ended with {process.returncode}")
            print(f"   the last run: {told.strip().splitlines()[-1]}")
            break
        before = len(chats(server))
        while process.poll() is None and len(chats(server)) <= before:
            time.sleep(0.2)  # until it asks models: a kill before that proves nothing
        time.sleep(chance.uniform(0.0, LONGEST_RUN_S))
        if process.poll() is not None:
            print(f"   done after {len(killed)} kills")
            break
        killed.append(time.time())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        in_flight += after(server, killed[-1] - MOMENT_S)
    return killed, in_flight


def after(server: OfflineServer, moment_s: float) -> list[str]:
    """Requests that were answered after a moment, when no more are."""
    found: list[str] = []
    while True:
        time.sleep(1.5 * LATENCY_S)
        entries = server.ask("/control/journal")
        now = [f"{service} {request}" for at_s, service, request, _ in entries if at_s > moment_s]
        if len(now) == len(found):
            return now
        found = now


def chats(server: OfflineServer) -> list[str]:
    """Requests to models in the world's journal, those whose client had gone included."""
    return [request for request in asked(server) if "completions" in request]


def asked(server: OfflineServer) -> list[str]:
    """All requests in the world's journal."""
    return [f"{service} {request}" for _, service, request, _ in server.ask("/control/journal")]


def repeated(requests: list[str]) -> int:
    """How many of them were sent before."""
    return len(requests) - len(set(requests))


def beyond(requests: list[str], in_flight: list[str]) -> int:
    """How many were sent more often than once and once for each kill that found them in flight."""
    sent, lost = Counter(requests), Counter(in_flight)
    return sum(max(0, times - 1 - lost[request]) for request, times in sent.items())


def unread_s(server: OfflineServer, killed: list[float]) -> list[float]:
    """Of every answer that was asked for again although it had been sent: seconds from then to the kill."""
    sent: dict[str, list[float]] = {}
    for at_s, service, request, _ in server.ask("/control/journal"):
        # What the world answers soon after a kill was in flight at it: no other run has begun to ask yet.
        if "completions" in request and not any(0 <= at_s - kill < 3 * LATENCY_S for kill in killed):
            sent.setdefault(f"{service} {request}", []).append(at_s)
    lost = (at_s for times in sent.values() for at_s in sorted(times)[:-1])
    return sorted((min((kill - at_s for kill in killed if kill > at_s), default=0.0) for at_s in lost), reverse=True)


def differing(one: Lake, other: Lake) -> list[str]:
    """Columns of the trajectories that differ between two lakes."""
    columns = [name for name in one.read("trajectories").columns if name not in PASSING]
    left, right = (lake.read("trajectories").select(columns).sort("trajectory_id") for lake in (one, other))
    if left.height != right.height:
        return [f"{left.height} rows undisturbed, {right.height} after the kills"]
    return [name for name in columns if not left[name].equals(right[name])]


def main(kills: int = KILLS, pictures: int = PICTURES) -> int:
    options = ("--seed", str(SEED), "--size", str(SIZE), "--pano-width", str(WIDTH))
    with tempfile.TemporaryDirectory() as name, offline_server(*options) as server:
        folder = Path(name)
        first = make_lake(folder / "undisturbed", pictures)
        whole: StageResult = run(STAGE, SETTINGS, context_of(first, server.url))
        print(f"   undisturbed: ${spent_usd(first):.4f}, {whole.kept} kept, {whole.rejected} rejected")
        poor = make_lake(folder / "poor", pictures)
        try:
            run(STAGE, SETTINGS, context_of(poor, server.url, BUDGET_USD))
            stopped = ""
        except GeofixError as error:
            stopped = str(error)
        spent = spent_usd(poor)
        print(f"   budget of ${BUDGET_USD:.2f}: spent ${spent:.4f}; {stopped}")
        stop_ray()
        second = make_lake(folder / "killed", pictures)
        (folder / "killed" / KEY_FILE).write_bytes((folder / "undisturbed" / KEY_FILE).read_bytes())
        server.latency(LATENCY_S)
        killed, in_flight = campaign(folder / "killed", server, kills)
        models, tools = chats(server), [one for one in asked(server) if "completions" not in one]
        rows = second.read("calls")
        open_models = sum("completions" in one for one in in_flight)
        open_tools = len(in_flight) - open_models
        unlike = differing(first, second)
        print(
            f"   {len(killed)} kills: the world was sent {len(models)} requests to models, "
            f"{rows.height} are in the table, {repeated(models)} were sent again, "
            f"{open_models} had been in flight at a kill ({call_store(second).close_abandoned()} by the store's own "
            f"count); {len(tools)} of tools, "
            f"{repeated(tools)} of them again, {open_tools} had been in flight; not in flight were "
            f"{beyond(models, in_flight)} and {beyond(tools, in_flight)} of the repeated; trajectories "
            f"{'differ in ' + ', '.join(unlike) if unlike else 'equal'}"
        )
        waits = ", ".join(f"{wait:.2f}" for wait in unread_s(server, killed)[:30])
        print(f"   seconds from an answer's sending to the kill after which it was asked for again, longest: {waits}")
    return judge(
        [
            Goal("dollars spent of a budget of one", spent, at_least=0.5, at_most=BUDGET_USD),
            Goal("stopped with a reason, and what it got", float(bool(WHAT_IT_GOT.search(stopped))), at_least=1),
            Goal("kills", len(killed), at_least=kills),
            Goal("requests to models repeated", repeated(models), at_most=open_models),
            Goal("requests of tools repeated", repeated(tools), at_most=open_tools),
            Goal("requests to models repeated that were not in flight", beyond(models, in_flight), at_most=0),
            Goal("columns that differ", len(unlike), at_most=0),
        ]
    )


def rewards(recipe: str) -> int:
    """Train a tiny model until its reward's models have used up a budget: is every call counted, is there a checkpoint?

    SFT teaches it the form of the answer by heart, so that its rollouts name addresses that the reward asks about.
    """
    taught = TunerSettings(max_steps=60, batch_size=4, micro_batch=4, learning_rate=3e-3)
    grpo = GrpoSettings(
        max_steps=400, group_size=4, prompts_per_generation=2, prompts_per_step=2, micro_batch=8, temperature=1.2,
        max_completion_tokens=32, pictures="all",
    )  # fmt: skip
    settings = small_settings(recipe=recipe, phases=("sft", "grpo"), validation_images=0, sft=taught, grpo=grpo)
    options = ("--seed", str(SEED), "--size", str(SIZE), "--pano-width", str(WIDTH))
    with tempfile.TemporaryDirectory() as name, offline_server(*options) as server:
        lake = make_lake(Path(name) / "lake", 4)
        roles = reward_roles(recipe, settings.grpo.reward)
        context = context_of(lake, server.url, BUDGET_USD, roles, REWARD_PRICE)
        stopped, began_s = "", time.monotonic()
        server.ask("/control/journal", "POST")
        try:
            for step in TRAIN:
                run(step, settings, context)
        except GeofixError as error:
            stopped = str(error)
        stop_ray()
        sent = [one for one in asked(server) if "completions" in one or "embeddings" in one]
        calls, spent = lake.read("calls"), spent_usd(lake)
        kept = list((lake.root / "models").glob(".*/checkpoint-*"))
        print(f"   {time.monotonic() - began_s:.0f} s; spent ${spent:.4f} of ${BUDGET_USD:.2f}; {stopped}")
        print(f"   {len(sent)} requests to models, {calls.height} rows in `calls`: {dict(Counter(calls['role']))}")
    return judge(
        [
            Goal("dollars spent of a budget of one", spent, at_least=0.5, at_most=BUDGET_USD),
            Goal("stopped with one line that names the checkpoint", float(bool(KEPT.search(stopped))), at_least=1),
            Goal("checkpoints", len(kept), at_least=1),
            Goal("requests of rewards that are not in the table", len(sent) - calls.height, at_most=0),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--recipe", help="train by the reward of this recipe instead")
    parser.add_argument("--work", nargs=2, metavar=("LAKE", "URL"), help="run the stage once, in this process")
    given = parser.parse_args()
    if given.work:
        work(*given.work)
    elif given.recipe:
        sys.exit(rewards(given.recipe))
    else:
        sys.exit(main(given.kills, given.pictures))
