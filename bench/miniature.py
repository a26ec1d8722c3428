"""A miniature that learns: a base that sees, answers at once, then zoom, read, geocode and answer, Pass@K and GRPO.

`python -m bench.miniature [PIECE …] [--size tiny|gpu] [--base sees-1] [--seed 0]`; pieces are base, data, sft, cold,
passk, grpo and report, in this order. Each is kept when it is done (folder `geofix-miniature` among the temporary
files, or GEOFIX_MINIATURE) and left out the next time. `--size tiny` runs on a CPU in about three minutes of one core
and shows that the pieces work, not that anything is learned. docs/it-learns.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge
from bench.miniature_pieces import cold, data, grpo, passk, sft
from bench.qwen_gpu import NOT_RUN, no_gpu


@dataclass(frozen=True)
class Size:
    """How much of what is done."""

    name: str
    train: int  # panoramas with trajectories
    held_out: int
    base_s: float
    sft_s: float
    sft_pictures: int
    quote_s: float
    cold_s: float
    batch: int
    boards: int  # read again during quoting
    k: int
    passk_places: int
    grpo_steps: int
    grpo_prompts: int
    group: int
    tokens: int  # of one attempt, tool results among them


SIZES = {
    "tiny": Size("tiny", 8, 1, 0, 0, 0, 2, 2, 2, 4, 2, 1, 1, 1, 2, 40),
    "gpu": Size("gpu", 4000, 500, 480, 150, 4000, 150, 240, 32, 4000, 8, 400, 40, 16, 8, 640),
}
PIECES: dict[str, Callable[[Path, Any, int], dict[str, Any] | None]] = {
    "data": data, "sft": sft, "cold": cold, "passk": passk, "grpo": grpo
}  # fmt: skip
NAMES = ("base", *PIECES, "report")


def main(arguments: Sequence[str] = ()) -> int:
    """Run the pieces that are not done yet, in order; the exit code says whether the figures hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.miniature", description=__doc__)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(NAMES) + " (default: all)")
    parser.add_argument("--size", choices=SIZES, default="gpu")
    parser.add_argument("--base", help="sees-1: the packaged base, in place of pretraining one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(list(arguments))
    unknown = [name for name in options.pieces if name not in NAMES]
    if unknown:
        parser.error(f"no piece '{unknown[0]}'; there are {', '.join(NAMES)}")
    if options.size != "tiny" and no_gpu():
        return NOT_RUN
    size = SIZES[options.size]
    root = Path(os.environ.get("GEOFIX_MINIATURE") or Path(tempfile.gettempdir()) / "geofix-miniature")
    folder = root / size.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in [one for one in NAMES if one in (options.pieces or NAMES)]:
        if name == "report":
            return report(folder, options.seed)
        file = kept(folder, name, options.seed)
        if file.is_file() or (name == "sft" and not size.sft_s):
            continue
        began = time.monotonic()
        found = base(folder, size, options.base) if name == "base" else PIECES[name](folder, size, options.seed)
        if found is None:
            return 1
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}), encoding="utf-8")
        partial.rename(file)
        print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


def kept(folder: Path, name: str, seed: int) -> Path:
    """Where a piece's figures lie: base and data serve every seed."""
    return folder / (f"{name}.json" if name in ("base", "data") else f"{name}-{seed}.json")


def base(folder: Path, size: Size, named: str | None) -> dict[str, Any] | None:
    """The base in `folder/base`: the packaged one, or a newly pretrained one."""
    if named is None and size.base_s:
        from infra.pretrain.__main__ import main as pretrain

        shutil.rmtree(folder / "base", ignore_errors=True)  # of a run that ended before its figures were written
        if pretrain([str(folder / "base"), "--seconds", str(size.base_s)]):
            return None
        found: dict[str, Any] = json.loads((folder / "base" / "figures.json").read_text(encoding="utf-8"))
        return {name: found[name] for name in ("signs", "signs_shuffled", "attributes", "attributes_shuffled", "boxes")}
    from tasks.train.opening import base_folder

    shutil.copytree(base_folder(named or "sees-1"), folder / "base", dirs_exist_ok=True)
    return {"packaged": named or "sees-1"}


def report(folder: Path, seed: int) -> int:
    """Print what is there and judge it."""
    parts: dict[str, Any] = {
        name: json.loads(kept(folder, name, seed).read_text(encoding="utf-8"))
        for name in NAMES
        if kept(folder, name, seed).is_file()
    }
    goals: list[Goal] = []
    if "signs" in parts.get("base", {}):
        signs, shuffled = parts["base"]["signs"], parts["base"]["signs_shuffled"]
        print(f"   signs read exactly {signs['latin_exact']:.1%}, with other pictures {shuffled['latin_exact']:.2%}")
        goals += [
            Goal("signs read exactly", signs["latin_exact"], at_least=0.8),
            Goal("signs with other pictures", shuffled["latin_exact"], at_most=0.01),
        ]
    for name, found in parts.get("sft", {}).get("rows", {}).items():
        print(f"   sft, {name}: " + ", ".join(f"{key} {found[key][0]:.1%}" for key in ("country", "acc_750km")))
    rows: dict[str, Any] = {}
    for piece in ("cold", "grpo"):
        rows |= {f"{piece}, {name}": found for name, found in parts.get(piece, {}).get("rows", {}).items()}
    for name, found in rows.items():
        print(f"   {name}: {line(found)}")
    if "passk" in parts:
        print(f"   Pass@{parts['passk']['k']} at 25 km: {parts['passk']['regimes']}")
        for row in (*parts["passk"].get("table8", ()), *parts["passk"].get("groups", ())):
            print("   " + ", ".join(f"{name} {value}" for name, value in row.items()))
        goals += [
            Goal("groups without variance after the filter, in per cent", row["share_pct"], at_most=30)
            for row in parts["passk"].get("groups", ())
            if row["groups"] == "kept" and row["number"]
        ]
    if "cold" in parts:
        goals += cold_goals(rows)
    if "grpo" in parts:
        low, high = rows["grpo, filtered"]["reward_interval"][0], rows["cold, agent"]["reward_interval"][1]
        goals.append(Goal("reward of GRPO, low end", low, at_least=high))
        goals.append(
            Goal("reward, filtered against random", rows["grpo, filtered"]["reward"], rows["grpo, random"]["reward"])
        )
    return judge(goals)


def cold_goals(rows: dict[str, Any]) -> list[Goal]:
    """A cold start has to beat its base and its controls outside the intervals."""
    low = rows["cold, agent"]["acc_25km"][1]
    others = [name for name in rows if name.startswith("cold, ") and name not in ("cold, agent", "cold, ceiling")]
    success = rows["cold, agent"]["call_success"]
    return [
        *(Goal(f"Acc@25 km, low end, against {name}", low, at_least=rows[name]["acc_25km"][2]) for name in others),
        Goal("calls that succeed", success[0] if success else 0.0, at_least=0.9),
    ]


def line(found: dict[str, Any]) -> str:
    """One line of an agent's figures."""
    at_25, success = found["acc_25km"], found["call_success"]
    return (
        f"25 km {at_25[0]:.1%} ({at_25[1]:.1%}-{at_25[2]:.1%}), reward {found['reward']:.3f}, street read "
        f"{found['read_exactly'][0]:.1%}, with calls {found['with_calls'][0]:.1%}, calls that succeed "
        + ("none" if success is None else f"{success[0]:.1%}")
        + f", {found['places']} places"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
