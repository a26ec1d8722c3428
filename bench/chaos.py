"""Kill the running pipeline with SIGKILL at random moments, run it again, and compare its tables.

    python -m bench.chaos --kills 20 [--places 16] [--seed 1] [--keep]

Two lakes: one made undisturbed, one made by commands that are killed again and again. Both go through two acts. First
a table of photos is brought in (`geofix ingest`) and the whole pipeline runs, satellite pictures included. Then the
lake is made to look forty days older, some pictures are deleted or changed upstream, and everything up to the review
runs again: `collect.recheck` finds out, places are redone. Kills are dealt out over all stages; each falls while its
stage is under way, as long as the stage took undisturbed. At the end every table must hold the same live rows, apart
from the columns that say when and by which run a row was written.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from deltalake import DeltaTable
from PIL import Image

from flows.servers import free_port
from schemas.errors import LakeError
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.lake.names import KEY_FILE

# What names a run, a moment or a version number, not a fact about the data.
_TIMES = {"written_at", "fetched_at", "checked_at", "created_at", "reviewed_at"}
PASSING = {"run_id", "table_versions_json", "checks_json", "seconds", "tokens_per_s"} | _TIMES
LOGS = {"runs", "failures", "decisions", "calls"}
MADE_FROM_TIMES = {"scores": {"made_from"}}  # a hash of predictions, seconds included
TIMED = "seconds_mean"  # a metric: how long an answer took


def differences(left: Lake, right: Lake, but_for: frozenset[str] = frozenset()) -> list[str]:
    """Tables that differ, with a word on how; columns of `but_for` (NAME or TABLE.NAME) and their means may."""
    found = []
    for name in TABLES:
        if name in LOGS:
            continue
        passing = PASSING | but_for | MADE_FROM_TIMES.get(name, set())
        columns = [c for c in TABLES[name].schema.names if c not in passing and f"{name}.{c}" not in passing]
        one, other = (
            _facts(lake, name, but_for).select(columns).sort(list(TABLES[name].key)) for lake in (left, right)
        )
        if one.equals(other):
            continue
        if one.height != other.height:
            found.append(f"{name}: {one.height} rows undisturbed, {other.height} after the kills")
            continue
        wrong = [c for c in columns if not one[c].equals(other[c])]
        found.append(f"{name}: columns {', '.join(wrong)} differ")
    if right.read("failures").height:
        found.append(f"failures: {right.read('failures').height} rows are left")
    for name in TABLES:
        rows = right.read(name)
        if rows.select(TABLES[name].key).is_duplicated().any():
            found.append(f"{name}: a key stands twice")
    return found


def _facts(lake: Lake, name: str, but_for: frozenset[str]) -> pl.DataFrame:
    """The table's rows without those that hold a duration, and addresses without the world's own."""
    rows = lake.read(name)
    if "request_url" in rows.columns:
        rows = rows.with_columns(pl.col("request_url").str.replace("^https?://[^/]+", ""))
    left_out = [TIMED, *(f"{column}_mean" for column in but_for)]
    return rows.filter(~pl.col("metric").is_in(left_out)) if name == "scores" else rows


def stray_files(lake: Lake) -> list[str]:
    """Pictures that are not whole: none may exist, however the writer ended."""
    broken = []
    for row in lake.read("images").iter_rows(named=True):
        try:
            lake.images.read(row["sha256"], row["extension"])
        except LakeError as error:
            broken.append(f"{row['image_id']}: {error}")
    return broken


def stray_processes(folder: Path) -> list[str]:
    """Servers or workers that outlived the command they belonged to."""
    deadline = time.monotonic() + 30  # a busy machine takes its time to end them
    while (found := _of_folder(folder)) and time.monotonic() < deadline:
        time.sleep(1)
    return found


def _of_folder(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # it ended while we looked, or is not ours
        if str(folder).encode() in said:
            found.append(f"process {process.name} is still there")
    return found


READY_S = 900
SHORTEST_S = 1.5  # of the time in which a kill may fall: reports and commits come after the last item
UNDER_WAY = 0.8  # of the time a stage took undisturbed: this time it may be quicker
PHOTOS = 24
ENDED = re.compile(
    r"^([a-z_]+(?:\.[a-z_]+)?) +(?:nothing to do|\d[\d,]* (?:in = |\w+ made).*?([\d.]+) s$)", re.MULTILINE
)
CHANGES = {
    "seed": 3,
    "rules": [
        {"service": "mapillary", "kind": "deleted", "rate": 0.25},
        {"service": "mapillary-cdn", "kind": "changed", "rate": 0.4},
    ],
}


@dataclass(frozen=True)
class Act:
    """A command, what the world is like meanwhile, and how long its stages took undisturbed, in their order."""

    words: tuple[str, ...]
    world: str = ""
    stages: dict[str, float] = field(default_factory=dict)


@dataclass
class Chaos:
    """Where it takes place."""

    folder: Path
    places: int
    port: int
    chance: random.Random
    prefix: str = ""  # of the lakes' URIs; default: the folder
    variables: dict[str, str] = field(default_factory=dict)  # of the environment

    def address(self, lake: str) -> str:
        return f"{self.prefix or self.folder}/{lake}"

    def command(self, lake: str, act: Act) -> list[str]:
        settings = {
            "plan.places": self.places,
            "plan.countries": "[DE, FR, GB, US]",  # signs the offline world's models read well: every part gets work
            "offline.port": self.port,
            "collect.satellite.size_px": 128,
            "review.auto_approve": "true",
            "train.sft.max_steps": 20,
            "train.cold_start.max_steps": 3,
            "train.grpo.max_steps": 3,
            "train.save_steps": 5,  # so that a kill falls between checkpoints
        }
        program = [sys.executable, "-m", "flows.cli", *act.words, "--lake", self.address(lake)]
        return [*program, *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]

    def environment(self, act: Act) -> dict[str, str]:
        return {**os.environ, **self.variables, "GEOFIX_OFFLINE_FAULTS": act.world}

    def run(self, lake: str, act: Act) -> dict[str, float]:
        """Run to the end; returns how long each stage took."""
        done = subprocess.run(
            self.command(lake, act), env=self.environment(act), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"geofix {act.words[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
        return {stage: float(seconds or 0) for stage, seconds in ENDED.findall(done.stderr)}

    def run_and_kill(self, lake: str, act: Act, stage: str) -> str:
        """Start the command and kill it while this stage is under way; returns the stage it was in, or why not."""
        order = list(act.stages)
        before = order[: order.index(stage)]
        log = self.folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(self.command(lake, act), env=self.environment(act), stdout=output, stderr=output)
        deadline = time.monotonic() + READY_S
        while process.poll() is None and time.monotonic() < deadline and not set(before) <= _ended(log).keys():
            time.sleep(0.05)
        moment = time.monotonic() + self.chance.uniform(0, max(SHORTEST_S, UNDER_WAY * act.stages[stage]))
        while process.poll() is None and time.monotonic() < moment:
            time.sleep(0.01)
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().splitlines()
            return f"ended with {process.returncode}: {said[-1][:90] if said else '-'}"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        ended = _ended(log)
        return next((name for name in order if name not in ended), "the end")


def _ended(log: Path) -> dict[str, str]:
    return dict(ENDED.findall(log.read_text(errors="replace")))


def photos(folder: Path, chance: random.Random) -> Path:
    """A table of photos; one file is cut short, one is missing."""
    folder.mkdir()
    lines = ["id,path,lat,lon,licence,creator"]
    for number in range(PHOTOS):
        picture = Image.frombytes("RGB", (16, 12), chance.randbytes(16 * 12 * 3)).resize((2400, 1800))
        picture.save(folder / f"p{number}.jpg", quality=90)
        lat, lon = 47 + chance.random() * 5, 7 + chance.random() * 5
        lines.append(f"p{number},p{number}.jpg,{lat:.6f},{lon:.6f},CC BY 4.0,Jane Doe")
    (folder / "p1.jpg").write_bytes((folder / "p1.jpg").read_bytes()[:5000])
    (folder / "p2.jpg").unlink()
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    return folder / "photos.csv"


def age(lake: Lake) -> None:
    """Make what was collected look forty days older, so that all of it is due, once."""
    for table, columns in {"images": ("fetched_at", "written_at"), "rejects": ("written_at",)}.items():
        older = {column: f"{column} - INTERVAL '40 days'" for column in columns}
        DeltaTable(lake.tables_uri(table)).update(updates=older)


def deal(kills: int, stages: list[str]) -> list[str]:
    """Kills over the stages that had work, in their order, as evenly as can be."""
    counts = Counter({stage: kills // len(stages) for stage in stages})
    rest = kills % len(stages)
    for number in range(rest):
        counts[stages[number * len(stages) // rest]] += 1
    return [stage for stage in stages for _ in range(counts[stage])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--places", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the two lakes where they are")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="geofix-chaos-"))
    chaos = Chaos(folder, options.places, free_port(), random.Random(options.seed))
    # Names are keyed by the lake: to compare two lakes row by row, both have the same key.
    for name in ("undisturbed", "killed"):
        (folder / name).mkdir()
        (folder / name / KEY_FILE).write_text("5eed" * 16)
    table = photos(folder / "photos", chaos.chance)
    refresh = ("run", "--profile", "offline", "--from", "collect", "--to", "review")
    acts = [Act(("ingest", str(table), "--profile", "offline")), Act(("demo",)), Act(refresh, json.dumps(CHANGES))]
    acts = [_undisturbed(chaos, act) for act in acts]
    # Half of the kills for the long pipeline, the other half for bringing in and for the refresh.
    ingests, refreshes = max(1, options.kills // 8), max(1, 3 * options.kills // 8)
    kills: Counter[str] = Counter()
    for act, share in zip(acts, (ingests, options.kills - ingests - refreshes, refreshes), strict=True):
        if act.world:
            age(Lake(folder / "killed"))
        for stage in deal(share, [name for name, seconds in act.stages.items() if seconds]):
            fell = chaos.run_and_kill("killed", act, stage)
            kills[fell] += 1
            print(f"  {kills.total():>2}: geofix {act.words[0]}, meant for {stage}: {fell}", flush=True)
        print(f"  geofix {act.words[0]} once more, undisturbed …", flush=True)
        chaos.run("killed", act)
    _judge(folder, kills, options.keep)


def _undisturbed(chaos: Chaos, act: Act) -> Act:
    if act.world:
        age(Lake(chaos.folder / "undisturbed"))
    print(f"undisturbed: geofix {act.words[0]} with {chaos.places} places …", flush=True)
    begin = time.monotonic()
    stages = chaos.run("undisturbed", act)
    print(
        f"  {time.monotonic() - begin:.0f} s: {', '.join(f'{name} {s:.0f} s' for name, s in stages.items())}",
        flush=True,
    )
    return Act(act.words, act.world, stages)


def _judge(folder: Path, kills: Counter[str], keep: bool) -> None:
    undisturbed, killed = Lake(folder / "undisturbed"), Lake(folder / "killed")
    found = differences(undisturbed, killed) + stray_files(killed) + stray_processes(folder)
    for line in found:
        print(f"  DIFFERENT {line}")
    rows = sum(killed.read(name).height for name in TABLES if name not in LOGS)
    checks = dict(Counter(killed.read("checks")["status"].to_list()))
    print(f"  kills by stage: {dict(kills)}; checks: {checks}")
    if keep:
        print(f"  lakes: {folder}")
    else:
        shutil.rmtree(folder)
    if found:
        raise SystemExit(1)
    real = sum(times for fell, times in kills.items() if not fell.startswith("ended with"))
    print(f"{real} kills: {rows} rows in {len(TABLES) - len(LOGS)} tables, equal to the undisturbed run's")


if __name__ == "__main__":
    main()
