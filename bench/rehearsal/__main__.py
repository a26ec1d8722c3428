"""The profile `production`, its five recipes the whole way, with loopback servers in the place of each vendor.

    python -m bench.rehearsal [--recipes spotagent,geovista] [--folder FOLDER]

Nothing is offline but the addresses: keys come from the environment, models are asked by their vendors' names, the bases
lie in a model hub's cache as several shards, scenes are read with SAS tokens, calls have prices and a budget. `CUTS` are
all settings that are smaller than the paper's. It fails if a command does, if a key goes astray or is written anywhere,
or if a setting that production has to itself was never read.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from bench.rehearsal.bases import fill_cache
from bench.rehearsal.downloads import write_downloads
from bench.rehearsal.reads import RECORDER, named_by_recipe, never_read, production_only, recorded
from bench.rehearsal.vendors import KEYS, Vendor, served, settings_of_addresses, vendors
from schemas.load import SHIPPED

RECIPES = ("spotagent", "geovista", "geoagent", "thinking-with-map", "smilegeo")
WORLD_SIZE = 200_000
BUDGET_USD = 200
# Every setting that is not the paper's or the profile's, but for addresses, and why.
CUTS = {
    "plan.places=30": "pictures that two cores paint, read and judge in minutes",
    "plan.seed=12": "few places, and yet some in each split",
    "plan.split={train: 0.6, validation: 0.15, benchmark: 0.25}": "likewise",
    "collect.providers=[mapillary, panoramax]": "one more vendor than the profile has, as it may be set",
    "collect.crowded_rows=20": "boxes of the offline Earth are thinner",
    "collect.satellite.size_px=256": "the offline Earth paints every scene",
    "services.chat.requests_per_minute=6000": "a new account's limits are for days",
    "services.chat.tokens_per_minute=6000000": "likewise",
    "models.endpoints.anthropic.requests_per_minute=6000": "likewise",
    "models.endpoints.anthropic.tokens_per_minute=6000000": "likewise",
    "train.image_max_pixels=50176": "64 tokens a picture: a vision tower on two cores",
    "train.grpo.max_completion_tokens=48": "random weights do not stop by themselves",
    "train.grpo.max_reply_tokens=16": "likewise, of each reply with tools",
    "difficulty.max_tokens=64": "likewise",
    "evaluate.max_tokens=640": "likewise; three levels of reasoning as JSON fit in",
    "evaluate.swarm.rounds=2": "smileGeo: Z",
    "evaluate.swarm.learning.rounds=2": "smileGeo's network on two cores",
    "evaluate.swarm.learning.max_images=6": "likewise",
    "evaluate.swarm.learning.side=64": "likewise",
    "evaluate.swarm.learning.width=32": "likewise",
    "evaluate.swarm.learning.epochs=50": "likewise",
    "evaluate.swarm.learning.average_epochs=5": "likewise",
}
# What the profile leaves to its user: the prices of models that the user serves, without which a budget is refused.
PRICES = ("answerer-base", "answerer-small", "qwen3-vl-235b", "swarm-llava", "swarm-gemini", "swarm-qwen")
POLICIES = "evaluate.policies=[answerer-small, answerer-base, answerer-large]"
# The published sets that a recipe has settings for, as docs/reproduce.md brings them in.
INGESTED = {
    "spotagent": [
        ["mp16-pro/MP16_Pro_filtered.csv", "--images", "mp16-pro/images", "--as", "training", "--split", "train",
         "--licence", "CC BY 4.0"],
    ],
    "thinking-with-map": [
        ["mapbench/pois.csv", "--images", "mapbench/images", "--name", "mapbench", "--as", "benchmark",
         "--set", "ingest.draw=6", "--set", "ingest.draw_by=cities"],
    ],
}  # fmt: skip
# Production-only settings that a run has no use for.
UNUSED: dict[str, str] = {}


class Rehearsal:
    """One lake, and what its commands said."""

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        self.folder = folder
        own = [f"models.roles.{name}.price={{prompt: 0.2, completion: 0.6}}" for name in PRICES]
        self.settings = [*addresses, *CUTS, *own]
        self.commands = 0

    def geofix(self, recipe: str, *words: str, records: bool = True) -> str:
        """What a command printed; SystemExit with its last words where it failed. One that shows settings records none."""
        reads = self.folder / "reads" / recipe
        reads.mkdir(parents=True, exist_ok=True)
        self.commands += 1
        log = self.folder / f"{self.commands:02}-{recipe}-{words[0]}.log"
        command = [sys.executable, "-m", "flows.cli", *words, "--recipe", recipe, "--profile", "production"]
        command += ["--lake", str(self.folder / "lake")]
        command += [word for setting in self.settings for word in ("--set", setting)]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_CACHE")}
        environment = kept | KEYS | {"HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        if records:
            environment |= {"PYTHONPATH": str(RECORDER), "GEOFIX_READS": str(reads)}
        begin_s = time.monotonic()
        with log.open("w") as errors:
            done = subprocess.run(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=errors)
        out = done.stdout.decode()
        with log.open("a") as errors:
            errors.write(out)
        print(f"{time.monotonic() - begin_s:6.0f} s  {recipe}: geofix {' '.join(words)}", flush=True)
        if done.returncode:
            raise SystemExit(f"ended with {done.returncode}: {log}\n{log.read_text()[-3000:]}")
        return out

    def run(self, recipe: str) -> None:
        """The whole way: pictures, a person's approval, training, evaluation."""
        self.geofix(recipe, "models", "--json", records=False)
        for ingested in INGESTED.get(recipe, ()):
            self.geofix(recipe, "ingest", *ingested)
        self.geofix(recipe, "run", "--to", "review", "--redo", "--budget", str(BUDGET_USD))
        newest = json.loads(self.geofix(recipe, "show", "snapshots", "--limit", "1", "--json", records=False))
        snapshot = newest[0]["snapshot_id"]
        with contextlib.suppress(SystemExit) if recipe != RECIPES[0] else contextlib.nullcontext():
            self.geofix(recipe, "approve", snapshot, "--reviewer", "rehearsal")
        policies = ["--set", POLICIES] if recipe == "spotagent" else []
        self.geofix(recipe, "run", "--from", "synthesize", "--redo", "--budget", str(BUDGET_USD), *policies)
        if recipe == "spotagent":
            self.geofix(recipe, "verl", "--out", str(self.folder / "verl"))


def written_keys(folder: Path) -> list[str]:
    """Files below a folder that hold a key."""
    keys = [key.encode() for key in KEYS.values()]
    files = [one for one in folder.rglob("*") if one.is_file() and not one.is_symlink()]
    return [str(one) for one in files if any(key in one.read_bytes() for key in keys)]


def problems(recipes: Sequence[str], folder: Path, doors: dict[str, Vendor]) -> list[str]:
    """What is wrong after all commands ended well."""
    reads = {recipe: recorded(folder / "reads" / recipe) for recipe in recipes}
    every = set().union(*reads.values())
    missed = set(never_read(production_only(recipes), every))
    for recipe in recipes:
        missed |= set(never_read(named_by_recipe(recipe), reads[recipe]))
    stale = [name for name in UNUSED if name not in missed]
    missed -= set(UNUSED)
    print("production settings never read:", ", ".join(sorted(m.replace("|", ".") for m in missed)) or "none")
    found = [f"never read: {name.replace('|', '.')}" for name in sorted(missed)]
    found += [f"named as unused, and read: {name}" for name in stale]
    for door in doors.values():
        print(f"  {door.name}: {sum(door.answered.values()):,} requests ({door.key_name or 'no key'})")
        found += [f"{door.name} refused {count}: {why}" for why, count in door.refused.items()]
        found += [f"{door.name} was never asked"] if not door.answered and len(recipes) == len(RECIPES) else []
    return found + [f"{file} holds a key" for file in written_keys(folder)]


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.rehearsal")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--folder", type=Path, help="kept; goes on with what is there")
    options = parser.parse_args(argv)
    recipes = options.recipes.split(",")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rehearsal-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "hf").exists():
        print("bases, as files of weights:", fill_cache(folder / "hf"))
        write_downloads(folder)
    doors = vendors(yaml.safe_load((SHIPPED / "profiles" / "production.yaml").read_text())["models"]["roles"])
    with served(doors, WORLD_SIZE) as addresses:
        rehearsal = Rehearsal(folder, settings_of_addresses(addresses))
        for recipe in recipes:
            rehearsal.run(recipe)
    found = problems(recipes, folder, doors)
    print(*found, sep="\n")
    if options.folder is None and not found:
        shutil.rmtree(folder)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
