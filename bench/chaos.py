"""Kill the running pipeline with SIGKILL at random moments, run it again, and compare its tables.

Two lakes: one made undisturbed, one made by a pipeline that is killed again and again. At the end every table must hold
the same live rows, apart from the columns that say when and by which run a row was written.

    python -m bench.chaos --kills 20 [--places 16] [--seed 1] [--keep]
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from schemas.tables import TABLES
from tasks.errors import LakeError
from tasks.lake import Lake
from tasks.names import KEY_FILE

# What names a run, a moment or a version number, not a fact about the data.
PASSING = {"run_id", "written_at", "fetched_at", "reviewed_at", "table_versions_json", "checks_json"}
LOGS = {"runs", "failures"}
READY_S = 300
LONGEST_WAIT_S = 15.0
# Kills are dealt out over the pipeline: each falls into the first seconds after one of these has ended.
AFTER = ("", "plan ", "collect ", "curate.judge ", "review ", "synthesize ", "difficulty ", "train.samples ",
         "train.sft ", "train.cold_start ", "train.grpo ")  # fmt: skip


def command(lake: Path, places: int) -> list[str]:
    settings = {
        "plan.places": places,
        "plan.countries": "[DE, FR, GB, US]",  # signs the offline world's models read well: every part gets work
        "offline.port": 8790,
        "train.sft.max_steps": 20,
        "train.cold_start.max_steps": 3,
        "train.grpo.max_steps": 3,
        "train.save_steps": 5,  # so that a kill falls between checkpoints
    }
    program = [sys.executable, "-m", "flows.cli", "demo", "--lake", str(lake)]
    return [*program, *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]


def run_whole(lake: Path, places: int) -> float:
    """Run to the end; returns the seconds it took."""
    start = time.monotonic()
    done = subprocess.run(command(lake, places), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the pipeline failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return time.monotonic() - start


def run_and_kill(lake: Path, places: int, chance: random.Random, after: str, log: Path) -> str:
    """Start the pipeline, kill it at a random moment once `after` has ended; returns what it said last."""
    with log.open("wb") as output:
        process = subprocess.Popen(command(lake, places), stdout=output, stderr=output)
    end = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < end and after.encode() not in log.read_bytes():
        time.sleep(0.05)
    moment = time.monotonic() + chance.uniform(0, LONGEST_WAIT_S)
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.01)
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    lines = log.read_text(errors="replace").strip().splitlines()
    return ("killed" if alive else f"ended with {process.returncode}") + f" after: {lines[-1][:90] if lines else '-'}"


def differences(left: Lake, right: Lake) -> list[str]:
    """Tables that differ, with a word on how."""
    found = []
    for name in TABLES:
        if name in LOGS:
            continue
        columns = [c for c in TABLES[name].schema.names if c not in PASSING]
        one, other = (lake.read(name).select(columns).sort(list(TABLES[name].key)) for lake in (left, right))
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
    time.sleep(3)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # it ended while we looked, or is not ours
        if str(folder).encode() in said:
            found.append(f"process {process.name} is still there")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--places", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the two lakes where they are")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="geofix-chaos-"))
    chance = random.Random(options.seed)
    # Names are keyed by the lake: to compare two lakes row by row, both have the same key.
    for name in ("undisturbed", "killed"):
        (folder / name).mkdir()
        (folder / name / KEY_FILE).write_text("5eed" * 16)
    print(f"undisturbed run with {options.places} places …", flush=True)
    seconds = run_whole(folder / "undisturbed", options.places)
    print(f"  {seconds:.0f} s", flush=True)
    kills = 0
    for number in range(options.kills):
        after = AFTER[number * len(AFTER) // options.kills]
        said = run_and_kill(folder / "killed", options.places, chance, after, folder / "log")
        kills += said.startswith("killed")
        print(f"  {kills:>2}: {said}", flush=True)
    print("last run, undisturbed …", flush=True)
    run_whole(folder / "killed", options.places)
    undisturbed, killed = Lake(folder / "undisturbed"), Lake(folder / "killed")
    found = differences(undisturbed, killed) + stray_files(killed) + stray_processes(folder)
    for line in found:
        print(f"  DIFFERENT {line}")
    rows = sum(killed.read(name).height for name in TABLES if name not in LOGS)
    if not options.keep:
        shutil.rmtree(folder)
    else:
        print(f"  lakes: {folder}")
    if found:
        raise SystemExit(1)
    print(f"{kills} kills: {rows} rows in {len(TABLES) - len(LOGS)} tables, equal to the undisturbed run's")


if __name__ == "__main__":
    main()
