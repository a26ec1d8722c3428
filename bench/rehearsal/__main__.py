"""docs/reproduce.md as written: the profile `production`, its five recipes the whole way, on loopback vendors.

    python -m bench.rehearsal [--recipes spotagent,geovista] [--folder FOLDER]

Nothing is offline but the addresses: keys come from the environment, models are asked by their vendors' names, the
bases lie in a model hub's cache as several shards, scenes are read with SAS tokens, calls have prices and a budget.
`CUTS` and `SMALLER` are all that is smaller than on the page. It fails if a command does, if a key goes astray or is
written anywhere, or if a setting that production has to itself was never read.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from bench.rehearsal.vendors import KEYS, Vendor, fill_cache, served, settings_of_addresses, vendors, write_downloads
from schemas.config import Config
from schemas.load import SHIPPED, load_config
from schemas.recipes import SETTINGS, recipe_folders
from schemas.settings.base import Settings

RECORDER = Path(__file__).parent / "recorder"


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """`section|field` -> value of everything that is set; a mapping of names counts by its entries."""
    if isinstance(value, Settings):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    return {
        name: one
        for key, inner in value.items()
        for name, one in leaves(inner, f"{path}|{key}" if path else str(key)).items()
    }


def named_by_recipe(recipe: str) -> set[str]:
    """The settings in a recipe's own file."""
    return _set_in((recipe_folders()[recipe] / SETTINGS).read_text())


def production_only(recipes: Iterable[str]) -> set[str]:
    """What the profile sets, and where a recipe under it differs from the same recipe offline."""
    found = _set_in((SHIPPED / "profiles" / "production.yaml").read_text())
    for recipe in recipes:
        here, offline = (leaves(load_config(recipe, profile)) for profile in ("production", "offline"))
        found |= {field_of(name) for name, value in here.items() if offline.get(name, value) != value}
    return found


def _set_in(text: str) -> set[str]:
    return {field_of(path) for path in leaves(yaml.safe_load(text))}


def section_in(annotation: Any) -> tuple[type[Settings] | None, bool]:
    """The section an annotation stands for or holds, and whether by name in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation, False
    inner = next((found for one in get_args(annotation) if (found := section_in(one)[0])), None)
    return inner, get_origin(annotation) is dict


def field_of(path: str) -> str:
    """The field a path of a file leads to: `ingest|shares` of `ingest|shares|mp16-pro`, which is read whole."""
    kind: type[Settings] | None = Config
    parts = path.split("|")
    at = 0
    while kind is not None and at < len(parts):
        kind, is_mapping = section_in(kind.model_fields[parts[at]].annotation)
        at += 2 if is_mapping and kind else 1
    return "|".join(parts[:at])


def paths_of_classes() -> dict[str, list[str]]:
    """`Class` -> every section of that class, entries of mappings as `*`."""
    found: dict[str, list[str]] = {}

    def walk(kind: type[Settings], path: str) -> None:
        found.setdefault(kind.__name__, []).append(path)
        for name, info in kind.model_fields.items():
            inner, is_mapping = section_in(info.annotation)
            if inner:
                walk(inner, f"{path}|{name}{'|*' * is_mapping}".lstrip("|"))

    walk(Config, "")
    return found


def recorded(folder: Path) -> set[str]:
    """The paths that all processes wrote; of a section made anew every place where its class stands."""
    lines = {line for file in folder.glob("reads-*") for line in file.read_text().splitlines()}
    places = paths_of_classes()
    found = {line for line in lines if not line.startswith("?")}
    for line in lines - found:
        kind, _, field = line[1:].partition("|")
        found |= {f"{place}|{field}".lstrip("|") for place in places.get(kind, ())}
    return found


def never_read(wanted: Collection[str], reads: Collection[str]) -> list[str]:
    """The settings among `wanted` that no path of `reads` covers, in order."""
    patterns = [re.compile(re.escape(one).replace(r"\*", "[^|]+")) for one in reads if "*" in one]
    return sorted(one for one in wanted if one not in reads and not any(p.fullmatch(one) for p in patterns))


PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"
RECIPES = {
    "spotagent": "SpotAgent",
    "geovista": "GeoVista",
    "geoagent": "GeoAgent",
    "thinking-with-map": "Thinking with Map",
    "smilegeo": "smileGeo",
}
WORLD_SIZE = 200_000
# Every setting that is not the paper's or the profile's, but for addresses, and why.
CUTS = {
    "ingest.shares={mp16-pro: 0.5}": "a stand-in for MP16-Pro of forty pictures",
    "plan.places=30": "pictures that two cores paint, read and judge in minutes",
    "plan.seed=12": "few places, and yet some in each split",
    "plan.split={train: 0.6, validation: 0.15, benchmark: 0.25}": "likewise",
    "collect.providers=[mapillary, panoramax]": "one more vendor than the profile has, as it may be set",
    "collect.crowded_rows=20": "boxes of the offline Earth are thinner",
    "collect.satellite.size_px=1000": "the offline Earth paints every scene; GeoVista takes a million pixels and more",
    "synthesize.max_images=8": "long conversations in two layers on two cores",
    "services.chat.requests_per_minute=6000": "a new account's limits are for days",
    "services.chat.tokens_per_minute=6000000": "likewise",
    "models.endpoints.anthropic.requests_per_minute=6000": "likewise",
    "models.endpoints.anthropic.tokens_per_minute=6000000": "likewise",
    "train.image_min_pixels=3136": "16 tokens a picture: a vision tower on two cores",
    "train.image_max_pixels=12544": "likewise",
    "train.answer_decimals=2": "shorter answers for two layers of random weights",
    "train.sft.epochs=60": "random weights must learn to answer, or Pass@K keeps nothing for GRPO",
    "train.sft.batch_size=8": "likewise",
    "train.sft.learning_rate=0.002": "likewise",
    "difficulty.temperature=1.0": "likewise",
    "difficulty.max_tokens=64": "random weights do not stop by themselves",
    "train.grpo.max_completion_tokens=64": "likewise",
    "train.grpo.max_reply_tokens=16": "likewise, of each reply with tools",
    "evaluate.max_tokens=640": "likewise; three levels of reasoning as JSON fit in",
    "evaluate.swarm.rounds=2": "smileGeo: Z",
    "evaluate.swarm.learning.rounds=2": "smileGeo's network on two cores",
    "evaluate.swarm.learning.side=64": "likewise",
    "evaluate.swarm.learning.width=32": "likewise",
    "evaluate.swarm.learning.epochs=50": "likewise",
    "evaluate.swarm.learning.average_epochs=5": "likewise",
}
# Sizes in the page's own commands, for stand-ins of few rows.
SMALLER = {
    "ingest.draw=12500": "ingest.draw=8",
    "ingest.draw=7500": "ingest.draw=4",
    "ingest.draw=3000": "ingest.draw=3",
    "ingest.draw=5000": "ingest.draw=12",
    "ingest.held_out=2500": "ingest.held_out=3",
    "ingest.held_out=902": "ingest.held_out=2",
    "ingest.held_out=32": "ingest.held_out=4",
    "ingest.held_out=4000": "ingest.held_out=4",
    "learning.max_images=500": "learning.max_images=6",
}
# Commands that only show settings, or run what another recorded: what they read counts for `FOR_PEOPLE` alone. Prices
# count, for `geofix models` asks every role and says what that cost.
SHOWING = ("models", "show", "approve", "doctor", "reproduce")
FOR_PEOPLE = ("as_of", "source", "prompt", "completion")  # of prices
# Production-only settings that a run has no use for.
UNUSED: dict[str, str] = {
    "offline|size": "of the offline world, which production does not serve",
    "quality": "chooses a layer when settings are loaded",
    "plan|split|benchmark": "what train and validation leave; the three must sum to 1",
    "synthesize|also_images": "of `synthesize.also`, which production leaves empty",
    "train|tiny|family": "of the base `tiny`, likewise the offline profile's",
    "train|validation_attempts": "MAPBench and IMAGEO-2 are for training and test, none is for validation",
    "evaluate|swarm|learning|encoder_steps": "of the encoder `tiny`, which is the offline profile's",
}
# What stands for two programs: the extra that is installed exists, and the model that is downloaded is in the cache.
PIP = """import importlib.metadata, sys
assert sys.argv[1:] == ['install', 'geofix[train]']
assert 'train' in importlib.metadata.metadata('geofix').get_all('Provides-Extra')"""
HF = """import sys, huggingface_hub
assert sys.argv[1] == 'download'
huggingface_hub.snapshot_download(sys.argv[2])"""


def script_of(page: str, title: str) -> str:
    """The shell blocks under a heading."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/reproduce.md has no section {title}"
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL))
    for size, smaller in SMALLER.items():
        script = script.replace(size, smaller)
    return script


class Rehearsal:
    """A folder in which the page is followed."""

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        self.folder, self.commands = folder, folder / "bin"
        self.commands.mkdir(exist_ok=True)
        settings = [word for setting in (*addresses, *CUTS) for word in ("--set", setting)]
        shown = "|".join(SHOWING)
        python = shlex.quote(sys.executable)
        (folder / "reads" / "shown").mkdir(parents=True, exist_ok=True)
        elsewhere = f"GEOFIX_READS={shlex.quote(str(folder / 'reads' / 'shown'))}"
        self._program(
            "geofix",
            f'case "$1" in {shown}) {elsewhere};; esac\ncase " $* " in *" --dry-run "*) {elsewhere};; esac\n'
            f'begin=$(date +%s)\n{python} -m flows.cli "$@" {shlex.join(settings)} || code=$?\n'
            f'printf "%6d s  geofix %s\\n" $(($(date +%s) - begin)) "$*" >> {shlex.quote(str(folder / "times"))}\n'
            "exit ${code:-0}",
        )
        self._program("pip", f'exec {python} -c {shlex.quote(PIP)} "$@"')
        self._program("hf", f'exec {python} -c {shlex.quote(HF)} "$@"')

    def _program(self, name: str, text: str) -> None:
        (self.commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.commands / name).chmod(0o755)

    def follow(self, recipe: str, script: str) -> list[str]:
        """Run a section; its last words where a command failed, and the next section follows."""
        reads, log = self.folder / "reads" / recipe, self.folder / f"{recipe}.log"
        reads.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_CACHE")}
        environment = kept | KEYS | {"PYTHONPATH": str(RECORDER), "GEOFIX_READS": str(reads)}
        environment |= {"HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment["PATH"] = os.pathsep.join([str(self.commands), os.environ["PATH"]])
        begin_s = time.monotonic()
        with log.open("w") as out:
            command = ["bash", "-xeuo", "pipefail", "-c", script]
            done = subprocess.run(command, cwd=self.folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
        print(f"{time.monotonic() - begin_s:6.0f} s  {recipe}", flush=True)
        return [f"{recipe} ended with {done.returncode}: {log}\n{log.read_text()[-3000:]}"] if done.returncode else []


def written_keys(folder: Path) -> list[str]:
    """Files below a folder that hold a key."""
    keys = [key.encode() for key in KEYS.values()]
    files = [one for one in folder.rglob("*") if one.is_file() and not one.is_symlink()]
    return [str(one) for one in files if any(key in one.read_bytes() for key in keys)]


def problems(recipes: Sequence[str], folder: Path, doors: dict[str, Vendor]) -> list[str]:
    """What is wrong after all commands ended well."""
    reads = {recipe: recorded(folder / "reads" / recipe) for recipe in recipes}
    is_whole = set(recipes) == set(RECIPES)  # of some recipes only their own settings are asked for
    missed = set(never_read(production_only(recipes), set().union(*reads.values()))) if is_whole else set()
    for recipe in recipes:
        missed |= set(never_read(named_by_recipe(recipe), reads[recipe]))
    shown = recorded(folder / "reads" / "shown")
    missed -= {name for name in missed & shown if name.rpartition("|")[2] in FOR_PEOPLE}
    found = [f"named as unused, and read: {name}" for name in UNUSED if is_whole and name not in missed]
    missed = {name.replace("|", ".") for name in missed - set(UNUSED)}
    print("production settings never read:", ", ".join(sorted(missed)) or "none")
    found += [f"never read: {name}" for name in sorted(missed)]
    for door in doors.values():
        print(f"  {door.name}: {sum(door.answered.values()):,} requests ({door.key_name or 'no key'})")
        found += [f"{door.name} refused {count}: {why}" for why, count in door.refused.items()]
        found += [] if door.answered or not is_whole else [f"{door.name} was never asked"]
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
        write_downloads(folder, WORLD_SIZE)
    doors = vendors(yaml.safe_load((SHIPPED / "profiles" / "production.yaml").read_text())["models"]["roles"])
    page, found = PAGE.read_text(encoding="utf-8"), list[str]()
    with served(doors, WORLD_SIZE) as addresses:
        rehearsal = Rehearsal(folder, settings_of_addresses(addresses))
        for recipe, title in {"once": "Once", **{name: RECIPES[name] for name in recipes}}.items():
            found += rehearsal.follow(recipe, script_of(page, title))
            if recipe == "once":  # `geofix doctor` knocks at every door, without a key
                for door in doors.values():
                    door.refused = Counter({why: n for why, n in door.refused.items() if why.startswith("carries")})
    found += problems(recipes, folder, doors)
    print(*found, sep="\n")
    if options.folder is None and not found:
        shutil.rmtree(folder)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
