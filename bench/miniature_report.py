"""What the miniature's pieces found, as tables, judged against the goals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from bench.goals import Goal, judge
from bench.miniature_picture import draw
from bench.miniature_pieces import attempts_of, difficulty, learnable
from infra.pretrain.agent_figures import gain, joined

LADDER = (
    ("base", "untrained", "base, at once"),
    ("+ SFT", "sft-{}", "at once"),
    ("+ cold start", "cold-{}", "agent"),
    ("+ GRPO", "grpo-{}", "agent"),
)


def report(folder: Path, seeds: Sequence[int]) -> int:
    """Print what is there and judge it."""
    parts = with_further_worlds(
        {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    )
    goals: list[Goal] = []
    if "signs" in parts.get("base", {}):
        signs, shuffled = parts["base"]["signs"], parts["base"]["signs_shuffled"]
        print(f"   signs read exactly {signs['latin_exact']:.1%}, with other pictures {shuffled['latin_exact']:.2%}")
        goals += [
            Goal("signs read exactly", signs["latin_exact"], at_least=0.8),
            Goal("signs with other pictures", shuffled["latin_exact"], at_most=0.01),
        ]
    for name, found in parts.get("untrained", {}).get("rows", {}).items():
        print(f"   {name}: {line(found)}")
    for seed in seeds:
        print(f"   seed {seed}")
        for piece in ("sft", "cold", "more", "controls", "random", "grpo", "controls-grpo"):
            for name, found in parts.get(f"{piece}-{seed}", {}).get("rows", {}).items():
                print(f"      {piece} | {name}: {line(found)}")
        for name, (more, low, high) in gains(parts, seed):
            print(f"      {name}: {more:+.3f} ({low:+.3f} to {high:+.3f}) of reward on the same places")
        if f"random-{seed}" in parts and not at_equal_steps(parts, seed):
            print("      learnable and random pictures: not compared, their steps are not equal")
        goals += ladder_goals(parts, seed)
        errors = attempts_of(folder, seed)
        if errors:
            found = difficulty(list(errors.values()))
            print(f"      Pass@K: {len(errors)} pictures, {len(learnable(errors))} learnable at 25 km")
            for row in (*found["table8"], *found["groups"]):
                print("      " + ", ".join(f"{name} {value}" for name, value in row.items()))
            goals += [
                Goal(
                    f"seed {seed}: groups without variance after the filter, in per cent", row["share_pct"], at_most=30
                )
                for row in found["groups"]
                if row["groups"] == "kept" and row["number"]
            ]
    both = [(parts[f"grpo-{seed}"], parts[f"random-{seed}"]) for seed in seeds if at_equal_steps(parts, seed)]
    if both:
        rewards = [[mean(arm["rows"][name]["reward"] for arm in arms) for arms in zip(*both, strict=True)]
                   for name in ("agent", "agent, sampled")]  # fmt: skip
        print(f"   mean reward, filtered and random: {rewards[0]}; of sampled replies {rewards[1]}")
        goals.append(Goal("reward of sampled replies, filtered against random", rewards[1][0], at_least=rewards[1][1]))
    draw(folder, parts, seeds, folder / "it-learns.svg")
    return judge(goals)


def gains(parts: dict[str, Any], seed: int) -> list[tuple[str, list[float]]]:
    """What each stage earns more than the one before, and filtered pictures more than random ones, place by place."""
    steps = rungs(parts, seed)
    found = [(name, on_the_same(before, after)) for (_, before), (name, after) in pairwise(steps)]
    if at_equal_steps(parts, seed):
        arms = [parts[f"{arm}-{seed}"]["rows"]["agent"] for arm in ("random", "grpo")]
        found.append(("filtered against random pictures", on_the_same(*arms)))
    return found


def on_the_same(before: dict[str, Any], after: dict[str, Any]) -> list[float]:
    """The gain at the places where both were measured: those of the first world come first."""
    both = min(before["places"], after["places"])
    return gain(before["rewards"][:both], after["rewards"][:both])


def at_equal_steps(parts: dict[str, Any], seed: int) -> bool:
    """Whether both arms of GRPO are there, within a tenth of each other's steps: else nothing is said of the filter."""
    arms = ("grpo", "random")
    if not all(f"{arm}-{seed}" in parts for arm in arms):
        return False
    steps = [parts[f"{arm}-train-{seed}"]["steps"] for arm in arms]
    return bool(max(steps) <= 1.1 * min(steps))


def with_further_worlds(parts: dict[str, Any]) -> dict[str, Any]:
    """The same, each agent's figures over the places of all worlds it was measured in."""
    for name in [name for name in parts if "-in-held-" in name]:
        rows = parts[name.partition("-in-")[0]]["rows"]
        rows["agent"] = joined(rows["agent"], parts[name]["rows"]["agent"])
    return parts


def rungs(parts: dict[str, Any], seed: int) -> list[tuple[str, dict[str, Any]]]:
    """The stages that were measured, in order."""
    return [
        (name, parts[piece.format(seed)]["rows"][row]) for name, piece, row in LADDER if piece.format(seed) in parts
    ]


def ladder_goals(parts: dict[str, Any], seed: int) -> list[Goal]:
    """Each stage beats the one before outside the intervals, in reward; a cold start beats its controls."""
    steps = rungs(parts, seed)
    goals = [
        Goal(f"seed {seed}: reward {name}, low end", after["reward_interval"][0], above(before["reward_interval"][1]))
        for (_, before), (name, after) in pairwise(steps)
    ]
    for stage, piece in (("cold", "controls"), ("grpo", "controls-grpo")):
        agent, controls = parts.get(f"{stage}-{seed}"), parts.get(f"{piece}-{seed}")
        if not agent or not controls:
            continue
        low, success = agent["rows"]["agent"]["acc_25km"][1], agent["rows"]["agent"]["call_success"]
        goals += [
            Goal(f"seed {seed}: {stage}, Acc@25 km, low end, against {name}", low, above(found["acc_25km"][2]))
            for name, found in controls["rows"].items()
        ]
        goals.append(
            Goal(f"seed {seed}: {stage}, calls that can be executed", success[0] if success else 0.0, at_least=0.9)
        )
    return goals


def above(figure: float) -> float:
    """The least that is more than this: two stages that find nothing are not better than one another."""
    return math.nextafter(figure, math.inf)


def line(found: dict[str, Any]) -> str:
    """One line of an agent's figures."""
    at_25, success, (low, high) = found["acc_25km"], found["call_success"], found["reward_interval"]
    calls = "none" if success is None else f"{success[0]:.1%} (with a result {found['call_found'][0]:.1%})"
    return (
        f"25 km {at_25[0]:.1%} ({at_25[1]:.1%}-{at_25[2]:.1%}), 750 km {found['acc_750km'][0]:.1%}, reward "
        f"{found['reward']:.3f} ({low:.3f}-{high:.3f}), street read {found['read_exactly'][0]:.1%}, "
        f"with calls {found['with_calls'][0]:.1%}, calls executed {calls}, {found['places']} places"
    )
