"""The packaged agent watched at 100 places with a readable plate: how many it finds, by `geofix locate` itself.

`--all` takes every clear panorama of a held-out place, readable or not; `--teacher` asks the pair of models that writes
trajectories in place of an agent: what can be found at all.

Places come from another world (seed 8: the same Earth, other streets, signs and pictures), from cells of which nothing
was trained on in any world, so no agent has seen them. A plate is readable where the painter left it free and its
letters have 14 pixels or more; whether the geocoder's first street of that name is the right one is not asked.
Controls: the same pictures whose boards are without a word, and every answer measured against another place.

    python -m bench locate_plates
    python -m bench.locate_plates --pictures 20 --model trained:finds-2
    python -m bench.locate_plates --all --teacher --pictures 300
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.goals import Goal, judge
from flows.agents import AgentSession, agent_session
from infra.offline.render import encode, paint
from infra.offline.render.signs import SeenSign
from infra.offline.world import ImageRecord, World
from infra.pretrain.boards import readable
from infra.pretrain.pictures import FREE, clear_images, is_held_out
from schemas.load import load_config
from tasks.agent.attempt import Sampling
from tasks.agent.environment import Environment, run_agent
from tasks.agent.picture import open_picture
from tasks.geo.distance import distance_km
from tasks.recipes import spotmini
from tasks.recipes.spotagent.observer_pair import ObserverPair
from tasks.reward.answer import ParsedAnswer, parse_answer
from tasks.reward.metrics import share
from tasks.services import Chat
from tasks.train.packaged import AGENT

SEED, WORLD_SIZE, PICTURES, NEAR_KM = 8, 20_000, 100, 25.0
LEAST_LETTERS_PX = 14.0
GOAL, CEILING = 0.30, 0.45
PORT = 18_760  # not the one at which a world of seed 7 may be running


@lru_cache(maxsize=1)
def _world() -> World:
    return World(SEED, WORLD_SIZE)


def held_out_panoramas(count: int, any_script: bool = False) -> list[ImageRecord]:
    """One panorama each of `count` places of held-out cells, with a street name in Latin letters or in any script."""
    order = list(range(_world().size))
    random.Random("0 True").shuffle(order)
    chosen: list[ImageRecord] = []
    for index in order:
        place = _world().sign_texts(index)
        if len(chosen) < count and is_held_out(place) and (any_script or readable(place.street)):
            panoramas = [image for image in clear_images(_world(), index) if image.is_pano]
            chosen += [image for image in panoramas if image.condition == "clear"][:1]
    return chosen


def painted(task: tuple[str, str, bool]) -> str | None:
    """Write a panorama, and the same without a word on its boards, if its street's plate can be read or any is wanted;
    its id."""
    image_id, folder, is_any = task
    record = _world().image(image_id)
    assert record is not None
    signs: list[SeenSign] = []
    picture, street = paint(_world(), record, signs), _world().place(record.place).street
    plates = [one.letters_px[0] for one in signs if one.lines == (street,) and one.free >= FREE]
    if max(plates, default=0.0) < LEAST_LETTERS_PX and not is_any:
        return None
    (Path(folder) / f"{image_id}.jpg").write_bytes(encode(picture))
    (Path(folder) / f"{image_id}-blank.jpg").write_bytes(encode(paint(_world(), record, text=False)))
    return image_id


def pictures(folder: Path, count: int, is_any: bool = False) -> list[str]:
    """Ids of the first `count` held-out panoramas, those with a readable plate or any, their files in the folder."""
    records = held_out_panoramas(count if is_any else 4 * count, is_any)
    found: list[str] = []
    with ProcessPoolExecutor(mp_context=get_context("fork")) as painters:
        for start in range(0, len(records), 16):
            tasks = [(one.image_id, str(folder), is_any) for one in records[start : start + 16]]
            found += [one for one in painters.map(painted, tasks) if one is not None]
            if len(found) >= count:
                return found[:count]
    return found


def located(folder: Path, files: Sequence[str], model: str) -> list[dict[str, Any]]:
    """What `geofix locate --json` says of each file."""
    command = [sys.executable, "-m", "flows.cli", "locate", *(str(folder / one) for one in files), "--model", model]
    command += ["--lake", str(folder / "lake"), "--profile", "miniature", "--json"]
    for one in (f"offline.seed={SEED}", f"offline.size={WORLD_SIZE}", f"offline.port={PORT}"):
        command += ["--set", one]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.strip():
        raise SystemExit(f"geofix locate ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def taught(folder: Path, files: Sequence[str]) -> list[dict[str, Any]]:
    """What the models that write trajectories answer for each file."""
    changed = [f"offline.seed={SEED}", f"offline.size={WORLD_SIZE}", f"offline.port={PORT}"]
    config = load_config(spotmini.RECIPE.name, "miniature", lake=str(folder / "lake"), overrides=changed)
    settings = config.synthesize

    async def one(session: AgentSession, chat: Chat, file: str) -> dict[str, Any]:
        picture = open_picture((folder / file).read_bytes(), settings.view_max_pixels, settings.view_min_pixels)
        prompt = spotmini.PROMPT
        pair = ObserverPair(chat, prompt.helpers, settings.observer, settings.planner, Sampling(0.0), tells_all=False)
        trajectory = await run_agent(Environment(picture, session.tools, prompt), pair)
        answer = parse_answer(trajectory.final_text)
        where = (answer.lat, answer.lon) if isinstance(answer, ParsedAnswer) else (None, None)
        calls = [call for message in trajectory.messages for call in message.get("tool_calls", ())]
        return {"lat": where[0], "lon": where[1], "calls": [call["function"]["arguments"] for call in calls]}

    async def every() -> list[dict[str, Any]]:
        with agent_session(config, settings.planner) as session:
            chat = session.chat()
            try:
                return [await one(session, chat, file) for file in files]
            finally:
                await chat.close()

    return asyncio.run(every())


def errors(rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> np.ndarray:
    """Kilometres from each place; infinite where nothing was answered."""
    found = []
    for row, image_id in zip(rows, ids, strict=True):
        record = _world().image(image_id)
        assert record is not None
        answered = row["lat"] is not None
        found.append(float(distance_km(row["lat"], row["lon"], record.lat, record.lon)) if answered else np.inf)
    return np.array(found)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.locate_plates", description=__doc__)
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--model", default=f"trained:{AGENT}")
    parser.add_argument("--all", action="store_true", help="every clear panorama, its plate readable or not")
    parser.add_argument("--teacher", action="store_true", help="ask the models that write trajectories")
    parser.add_argument("--folder", type=Path, help="for pictures and answers, kept")
    options = parser.parse_args(list(arguments))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        ids = pictures(folder, options.pictures, options.all)
        name = "teacher" if options.teacher else options.model
        rows, blank = (
            taught(folder, files) if options.teacher else located(folder, files, options.model)
            for files in ([f"{one}.jpg" for one in ids], [f"{one}-blank.jpg" for one in ids])
        )
        (folder / "answers.json").write_text(json.dumps({"ids": ids, "rows": rows, "blank": blank}), encoding="utf-8")
    found, nothing = errors(rows, ids) <= NEAR_KM, errors(blank, ids) <= NEAR_KM
    others = errors(rows, [*ids[len(ids) // 2 :], *ids[: len(ids) // 2]]) <= NEAR_KM
    one = share("acc@25km", int(found.sum()), len(ids))
    answered = sum(row.get("lat") is not None for row in rows)
    print(f"   {name}: {found.sum()} of {len(ids)} within 25 km, {one.value:.1%} "
          f"({one.low:.1%}-{one.high:.1%}); {answered} answered")  # fmt: skip
    print(f"   boards without a word: {nothing.sum()}; another place: {others.sum()}")
    return judge([
        Goal("held-out places", len(ids), at_least=PICTURES),
        Goal("share within 25 km", float(found.mean()), at_least=CEILING if options.teacher else GOAL),
        Goal("boards without a word, within 25 km", int(nothing.sum()), at_most=0),
        Goal("another place, within 25 km", int(others.sum()), at_most=0),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
