"""The demo on an object store: two machines at once, SIGKILLs, and the tables of a local lake to compare with.

    python -m bench object_store
    python -m bench.object_store --kills 4 --places 6 --to curate

One lake is made on local disk by one undisturbed run. The other lies on an S3-compatible server process on loopback
(`bench/s3_server.py`) and is made by two commands at once, each with a state folder of its own as on two machines;
both are killed again and again while a stage is under way. At the end every table must hold the same live rows,
`geofix verify` must find nothing, and no process may be left.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.chaos import Act, Chaos, deal
from bench.chaos_checks import LOGS, differences, stray_files, stray_processes
from bench.offline_server import offline_server
from bench.s3_server import s3_server
from schemas.load import load_config
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.lake.names import KEY_FILE
from tasks.lake.verify import verify

MACHINES = ("a", "b")
KEY = b"5eed" * 16  # image ids are keyed by the lake: to compare row by row, both have the same key


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--places", type=int, default=8)
    parser.add_argument("--to", default="evaluate", help="last part to run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="geofix-object-store-"))
    try:
        settings = load_config(profile="offline").offline
        world = ("--seed", str(settings.seed), "--size", str(settings.size))
        with s3_server() as variables, offline_server(*world, shared=True) as server:
            os.environ.update(variables)
            os.environ["GEOFIX_STATE"] = str(folder / "state")
            port = int(server.url.rpartition(":")[2])
            chaos = Chaos(folder, options.places, port, random.Random(options.seed))
            return _compare(chaos, options.to, options.kills)
    finally:
        shutil.rmtree(folder)


def _compare(chaos: Chaos, last: str, kills: int) -> int:
    local, remote = Lake(chaos.address("local")), Lake("s3://lake/killed")
    for lake in (local, remote):
        lake.blobs.put(KEY_FILE, KEY)
    act = Act(("run", "--profile", "offline", "--to", last))
    begin = time.monotonic()
    act = replace(act, stages=chaos.run("local", act))
    print(f"   local lake, undisturbed: {time.monotonic() - begin:.0f} s", flush=True)
    begin = time.monotonic()
    shares = [deal(kills, [name for name, seconds in act.stages.items() if seconds])[n::2] for n in range(2)]
    with ThreadPoolExecutor(len(MACHINES)) as pool:
        both = pool.map(lambda n: _machine(chaos, n, act, shares[n]), range(len(MACHINES)))
        fell = Counter(where for one in both for where in one)
    print(f"   object store, two machines: {time.monotonic() - begin:.0f} s; kills by stage: {dict(fell)}", flush=True)
    wrong = differences(local, remote) + stray_files(remote) + stray_processes(chaos.folder)
    wrong += [f"{one.table} {one.row_id}: {one.what}" for one in verify(remote)]
    for line in wrong:
        print(f"   DIFFERENT {line}", flush=True)
    rows = {name: remote.read(name).height for name in TABLES if name not in LOGS}
    real = sum(times for where, times in fell.items() if not where.startswith("ended with"))
    empty = not all(rows[name] for name in ("places", "images"))
    print(f"   {real} kills of {kills}, {sum(rows.values()):,} rows, {len(wrong)} differences", flush=True)
    return int(bool(wrong) or empty or real < kills)


def _machine(chaos: Chaos, number: int, act: Act, stages: list[str]) -> list[str]:
    """Run the pipeline as one of two machines, killed in each of these stages, then to its end."""
    name = MACHINES[number]
    folder = chaos.folder / f"machine-{name}"
    folder.mkdir()
    mine = replace(
        chaos,
        folder=folder,
        prefix="s3://lake",
        chance=random.Random(f"{name}{chaos.chance.random()}"),
        variables={"GEOFIX_STATE": str(folder / "state")},
    )
    fell = []
    for stage in stages:
        fell.append(mine.run_and_kill("killed", act, stage))
        print(f"     machine {name}, meant for {stage}: {fell[-1]}", flush=True)
    mine.run("killed", act)
    return fell


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
