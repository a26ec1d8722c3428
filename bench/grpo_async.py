"""GRPO that draws one generation ahead, beside the loop that waits for each: steps an hour of both, in one run.

The same model, vLLM process and questions; first the loop that waits (`train.grpo.ahead` off), then the other one.
On a GPU a model of a published shape with random weights (--model), pictures of 2 megapixels; --tiny: a tiny model, on
CPUs with .venv-vllm, where both would share the cores: no ratio is judged there. TRL's asynchronous trainer hands its
weights over by NCCL, which wants a second GPU: it cannot stand beside these on one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.goals import Goal
from bench.grpo_vllm import by_text, opened, run, settings_of
from bench.training_lake import fill_lake
from tasks.lake import Lake
from tasks.train.grpo import Grpo
from tasks.train.loop import Loop
from tasks.train.rollouts.source import EmbeddedRollouts
from tasks.train.rollouts.vllm_engines import VllmEngines

NEW_TOKENS = {False: 512, True: 64}
GOAL = 1.15  # times the steps of the loop that waits


def measure(steps: int, shape: str | None, eager: bool) -> list[Goal]:
    is_tiny = shape is None
    settings = settings_of(steps, is_tiny, eager)
    if is_tiny:
        torch.set_num_threads(1)
    hour: dict[str, float] = {}
    gaps: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="geofix-grpo-async-") as name:
        lake = Lake(Path(name) / "lake")
        fill_lake(lake, pictures=10)
        fast, encoder, rows = opened(lake, settings, shape)
        engines = VllmEngines(fast, encoder, encoder.end_tokens, settings.grpo.vllm)

        def encode(number: int) -> Any:
            return encoder.prompt(rows[number]["messages_json"])

        try:
            for kind, ahead in (("waits", False), ("ahead", True)):
                grpo = settings.grpo.model_copy(update={"ahead": ahead, "max_turns": 0})
                own = settings.model_copy(update={"grpo": grpo})
                rollouts = EmbeddedRollouts(engines, encoder.decode, grpo.group_size, NEW_TOKENS[is_tiny], 1.0)
                program = Grpo(fast, encode, rows, own, rollouts, by_text, None)
                history = Loop(fast.model, program, own, Path(name) / kind).run().history
                late = history[2:] or history  # the first start vLLM, and draw nothing ahead
                seconds = statistics.median(one["seconds"] for one in late)
                waited = statistics.median(one["rollout_seconds"] for one in late)
                hour[kind], gaps[kind] = 3600 / seconds, max(one["engine_gap"] for one in history)
                print(f"   {kind}: {seconds:.2f} s a step, {waited:.2f} s of them waiting for rollouts, "
                      f"{hour[kind]:,.0f} steps an hour, log-probabilities apart by {gaps[kind]:.4f} at most, share "
                      f"clipped {statistics.mean(one['clip_share'] for one in late):.4f}", flush=True)  # fmt: skip
        finally:
            engines.close()
    ratio = hour["ahead"] / hour["waits"]
    print(f"   ahead makes {ratio:.2f} times the steps", flush=True)
    return [
        Goal("steps of the loop that waits, an hour", hour["waits"], at_least=1e-9),
        Goal("steps ahead, times those of the loop that waits", ratio, at_least=1e-9 if is_tiny else GOAL),
    ]


def main(arguments: list[str] | None = None) -> int:
    return run("grpo_async", __doc__, 12, measure, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
