"""GRPO with recorded tools, by the product's commands: two runs bit by bit the same, and not one request.

    python -m bench frozen_tools [--nearest]

The packaged agent `finds-2` is trained on pictures of the offline world with live tools that are recorded, the
recording is exported, and two copies of the lake are trained with it alone: every service is where nothing listens.
The weights of all three, and the figures of their steps, must be the same.

With `--nearest` the recording is changed before: of each three questions one is put in other words and one is left out.
The two copies must be the same again, and how many calls were exact, near and missed is printed.
The reward falls with the distance, so that answers far off differ too and each step moves the weights.
"""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge
from tasks.lake import Lake
from tasks.lake.names import KEY_FILE
from tasks.services.response_store import digest_key, unpack

UNREACHABLE = "http://127.0.0.1:9"  # the port of `discard`, where nothing listens
RECIPE, PLACES, STEPS = "spotmini", 24, 2
SETTINGS = (
    "train.base=finds-2", "train.phases=[grpo]", "train.grpo.pictures=all", f"train.grpo.max_steps={STEPS}",
    "train.grpo.prompts_per_generation=2", "train.grpo.prompts_per_step=2", "train.grpo.group_size=4",
    "train.grpo.tau_km=[10000, 10000]",
    "train.threads=1",  # of several, sums differ in their last bits from run to run
)  # fmt: skip


def main() -> int:
    """Record, export, train twice without services; the exit code says whether the goals hold."""
    is_nearest = "--nearest" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data, recording = root / "data", root / "tools.sqlite"
        few = (f"plan.places={PLACES}", "plan.split={train: 1.0, validation: 0, benchmark: 0}")
        Lake(data).blobs.put(KEY_FILE, b"5eed" * 16)  # the same pictures every time
        geofix(data, "run", "--to", "review", *sets(*few))
        for name in ("recorded", "frozen", "again"):
            shutil.copytree(data, root / name)
        fewer = ("train.grpo.max_steps=1",) if is_nearest else ()
        recorded = train(root / "recorded", "services.tools.mode=record", *fewer)
        told = json.loads(
            geofix(root / "recorded", "export", "--as", "frozen-tools", "--out", str(recording), "--json")
        )
        print(f"   {told['answers']} answers recorded, {recording.stat().st_size / 1e3:.0f} kB")
        if is_nearest:
            change_questions(recording)
        elsewhere = [f"services.{one}.base_url={UNREACHABLE}" for one in ("search", "geocoder", "maps", "chat")]
        frozen = (
            f"services.tools.mode={'nearest' if is_nearest else 'frozen'}",
            f"services.tools.recording={recording}",
            "offline.serve=false",
            *elsewhere,
            *fewer,
        )
        runs = [recorded, train(root / "frozen", *frozen), train(root / "again", *frozen)]
    if is_nearest:
        return judge_nearest(told["answers"], *runs[1:])
    calls = sum(step["tool_calls"] for step in recorded["steps"])
    same = {what: sum(one[what] == recorded[what] for one in runs) for what in ("weights", "steps")}
    misses = sum(step.get("tool_misses", 0) for one in runs for step in one["steps"])
    return judge([
        Goal("answers recorded", told["answers"], at_least=1),
        Goal("tool calls of a rollout", calls, at_least=1e-9),
        Goal("runs with the weights of the first", same["weights"], at_least=3),
        Goal("runs with the figures of the first", same["steps"], at_least=3),
        Goal("questions that were not recorded", misses, at_most=0),
        Goal("norm of the gradient", recorded["steps"][0]["grad_norm"], at_least=1e-9),
    ])  # fmt: skip


def judge_nearest(answers: int, first: dict[str, Any], again: dict[str, Any]) -> int:
    """Two runs on one recording; calls that ask no service are exact too."""
    calls, near, missed = (
        sum(step["tool_calls"] * (1 if name is None else step.get(name, 0.0)) for step in first["steps"])
        for name in (None, "tool_near", "tool_misses")
    )
    print(f"   of {calls:.2f} calls a rollout: exact {calls - near - missed:.2f}, near {near:.2f}, missed {missed:.2f}")
    return judge([
        Goal("answers recorded", answers, at_least=2),
        Goal("tool calls of a rollout", calls, at_least=1e-9),
        Goal("runs with the weights of the other", int(first["weights"] == again["weights"]), at_least=1),
        Goal("runs with the figures of the other", int(first["steps"] == again["steps"]), at_least=1),
        Goal("norm of the gradient", first["steps"][0]["grad_norm"], at_least=1e-9),
        Goal("calls answered by the nearest question", near, at_least=1e-9),
    ])  # fmt: skip


def change_questions(recording: Path) -> None:
    """Of each three recorded questions put one in other words, and leave one out."""
    with sqlite3.connect(recording) as file:
        rows = file.execute("SELECT key, tool, value FROM answers ORDER BY key").fetchall()
        for number, (key, tool, value) in enumerate(rows):
            if number % 3:
                file.execute("DELETE FROM answers WHERE key = ?", (key,))
            if number % 3 == 1:
                _, asked, *limits = unpack(value)[0]["asked"]
                other = {name: f"{text} please" for name, text in asked.items()}
                row = (digest_key(tool, other, *limits), tool, json.dumps(other), value)
                file.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", row)


def train(lake: Path, *changed: str) -> dict[str, Any]:
    """GRPO on this lake: the hash of its weights and the figures of its steps."""
    began = time.monotonic()
    geofix(lake, "train", *sets(*SETTINGS, *changed))
    opened = Lake(lake)
    [model] = opened.read("models").to_dicts()
    rows = opened.read("training_steps").filter(kind="step").sort("step")["figures_json"]
    steps = [{key: value for key, value in json.loads(row).items() if not key.endswith("_s")} for row in rows]
    print(f"   {lake.name}: {len(steps)} steps in {time.monotonic() - began:.0f} s, reward {steps[-1]['reward']:.3f}, "
          f"{steps[-1]['tool_calls']:.1f} calls a rollout", flush=True)  # fmt: skip
    weights = (lake / model["checkpoint"] / "model.safetensors").read_bytes()
    return {"weights": hashlib.sha256(weights).hexdigest(), "steps": steps}


def sets(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


def geofix(lake: Path, *arguments: str) -> str:
    """What a command prints; its end is shown where it fails."""
    command = [sys.executable, "-m", "flows.cli", *arguments, "--lake", str(lake), "--profile", "miniature"]
    done = subprocess.run([*command, "--recipe", RECIPE], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"geofix {arguments[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
