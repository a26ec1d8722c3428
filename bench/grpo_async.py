"""GRPO that draws one generation ahead, beside the loop that waits for each: steps an hour of both, in one run.

The same model, vLLM process and questions; first the loop that waits (`train.grpo.ahead` off), then the other one.
On a GPU a model of a published shape with random weights (--model), pictures of 2 megapixels; --tiny: a tiny model, on
CPUs with .venv-vllm, where both share the cores. --tools 2: replies call tools that answer after two seconds. The
ratio is judged on a GPU alone: a tiny model trains for a tenth of a step. Then TRL's GRPO of a model of that shape,
vLLM in its own process, where the Python that has vLLM has TRL too (bench/grpo_trl.py). TRL's asynchronous trainer
hands its weights over by NCCL, which wants a second GPU: it cannot stand beside these on one.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from bench import grpo_trl
from bench.goals import Goal
from bench.grpo_vllm import REPLY_TOKENS, SIZE, by_text, opened, run, settings_of
from bench.tool_rollouts import Call, Scripted, numbered, services, tool_server
from bench.training_lake import fill_lake
from schemas.messages import texts_of
from tasks.lake import Lake
from tasks.runtime.on_ray.model_pools import vllm_python
from tasks.train.encoding import Encoder
from tasks.train.grpo import Grpo
from tasks.train.loop import Loop
from tasks.train.rollouts.source import EmbeddedRollouts
from tasks.train.rollouts.vllm_engines import MEMORY, VllmEngines
from tasks.train.with_tools import environment_maker, opening_prompt

NEW_TOKENS = {False: 512, True: 64}
TRL_STEPS = 3  # of over a minute each on an H200
MOST_APART = 0.1  # at one token: 0.076 on an H200, whose kernels add in another order
GOAL = 1.15  # times the steps of the loop that waits


def measure(steps: int, shape: str | None, eager: bool, tools_s: float) -> list[Goal]:
    is_tiny = shape is None
    if is_tiny:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="geofix-grpo-trl-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        hour, gap = ours(steps, shape, eager, tools_s, Path(name))
        gc.collect()
        torch.cuda.empty_cache()
        goals = [Goal("log-probabilities of vLLM and the trainer apart, where it waits", gap, at_most=MOST_APART)]
        if not tools_s:
            hour["TRL"] = trl(Path(name), TRL_STEPS, NEW_TOKENS[is_tiny])
            goals.append(Goal("steps of TRL, an hour", hour["TRL"], at_least=1e-9))
    ratio = hour["ahead"] / hour["waits"]
    print(f"   ahead makes {ratio:.2f} times the steps", flush=True)
    if not is_tiny:
        goals.append(Goal("steps ahead, times those that wait", ratio, at_least=GOAL))
    if not is_tiny and not tools_s:
        goals.append(
            Goal("steps of the loop that waits, times TRL's", hour["waits"] / (hour["TRL"] or 1e-9), at_least=1.0)
        )
    return goals


def ours(steps: int, shape: str | None, eager: bool, tools_s: float, folder: Path) -> tuple[dict[str, float], float]:
    """Steps an hour of the loop that waits and of the one ahead, and how far log-probabilities are apart where it
    waits; the folder gets what TRL needs for the same."""
    is_tiny = shape is None
    settings = settings_of(steps, is_tiny, eager)
    hour, gaps = dict[str, float](), dict[str, float]()
    turns = settings.grpo.max_turns if tools_s else 0
    with tempfile.TemporaryDirectory(prefix="geofix-grpo-async-") as name, tool_server() as server:
        lake = Lake(Path(name) / "lake")
        fill_lake(lake, pictures=10)
        fast, encoder, rows = opened(lake, settings, shape)
        write_for_trl(folder, fast.model, encoder, rows, lake)
        engines = VllmEngines(fast, encoder, encoder.end_tokens, settings.grpo.vllm)

        make = environment_maker(settings, lake.images, services(server))

        def encode(number: int) -> Any:
            if turns:
                return opening_prompt(make(rows[number]), encoder)
            return encoder.prompt(rows[number]["messages_json"])

        def searches(number: int, turn: int) -> Sequence[Call]:
            return [("search_web", {"query": f"wait {tools_s} {number}"})] if turn < turns - 1 else []

        try:
            for kind, ahead in (("waits", False), ("ahead", True)):
                grpo = settings.grpo.model_copy(update={"ahead": ahead, "max_turns": turns})
                own = settings.model_copy(update={"grpo": grpo})
                rollouts: Any = EmbeddedRollouts(engines, encoder.decode, grpo.group_size, NEW_TOKENS[is_tiny], 1.0)
                if turns:
                    tokens = grpo.max_completion_tokens
                    rollouts = Scripted(engines, encoder, numbered(make), SIZE, tokens, turns, 1.0, REPLY_TOKENS)
                    rollouts.script = searches
                program = Grpo(fast, encode, rows, own, rollouts, by_text, None)
                history = Loop(fast.model, program, own, Path(name) / kind).run().history
                late = history[2:] or history  # the first start vLLM, and draw nothing ahead
                seconds = statistics.median(one["seconds"] for one in late)
                waited = statistics.median(one["rollout_seconds"] for one in late)
                hour[kind], gaps[kind] = 3600 / seconds, max(one["engine_gap"] for one in history)
                print(f"   {kind}: {seconds:.2f} s a step, {waited:.2f} s of them waiting for rollouts, "
                      f"{hour[kind]:,.0f} steps an hour, log-probabilities apart by "
                      f"{gaps[kind]:.4f} at most, share clipped "
                      f"{statistics.mean(one['clip_share'] for one in late):.4f}", flush=True)  # fmt: skip
        finally:
            engines.close()
    return hour, gaps["waits"]


def write_for_trl(folder: Path, model: Any, encoder: Encoder, rows: Sequence[dict[str, Any]], lake: Lake) -> None:
    """The processor, the model's shape, the questions as texts and their pictures as the model sees them."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    encoder.save_processor(folder)
    told: list[dict[str, Any]] = []
    for row in rows:
        messages = json.loads(row["messages_json"])
        asked = [one for one in messages if one["role"] in ("system", "user")][:2]
        sample, names = encoder.prompt(row["messages_json"]), []
        for number, pixels in enumerate(encoder.pictures(sample)):
            names.append(f"{len(told)}-{number}.png")
            Image.fromarray(pixels).save(folder / names[-1])
        texts = [{"role": one["role"], "content": " ".join(texts_of(one))} for one in asked]
        told.append({"messages": texts, "pictures": names})
    (folder / "prompts.json").write_text(json.dumps(told), encoding="utf-8")


def trl(folder: Path, steps: int, new_tokens: int) -> float:
    """TRL's steps an hour, 0 where it did not run."""
    python = vllm_python(None) if torch.cuda.is_available() else sys.executable
    command = [python, "-m", grpo_trl.__name__, str(folder), str(steps), str(new_tokens)]
    code = subprocess.run(command, check=False).returncode
    if code:
        print(f"   TRL ended with {code}: it must be installed beside vLLM ({python})", flush=True)
        return 0.0
    seconds: list[float] = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
    step_s = statistics.median(seconds[1:])
    print(f"   TRL, vLLM in its process: {step_s:.2f} s a step, {3600 / step_s:,.0f} steps an hour", flush=True)
    return 3600 / step_s


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--tools", type=float, default=0.0)
    options, shared = parser.parse_known_args(arguments or [])
    return run("grpo_async", __doc__, 12, partial(measure, tools_s=options.tools), shared)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
