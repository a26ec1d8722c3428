"""GRPO with vLLM's rollouts: steps with live tools, weights synced, log-probabilities against the trainer's.

On a GPU a model of a published shape with random weights (--model), pictures of 2 megapixels; --tiny: a tiny model, on
CPUs with .venv-vllm. The engine draws every token; which tools a reply calls is given, as random weights write no call,
and the tools answer over a socket. vLLM runs in the Python that GEOFIX_VLLM_PYTHON names, else .venv-vllm/bin/python.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import torch

from bench.goals import Goal, judge
from bench.qwen_gpu import NOT_RUN, SHAPES, model_with_tokenizer, no_gpu
from bench.tool_rollouts import Call, Scripted, numbered, services, tool_server
from bench.training_lake import fill_lake, small_settings
from schemas.settings.train import GrpoSettings, RolloutVllmSettings, TinySettings, TrainSettings
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.runtime.stage import open_inputs
from tasks.train.encoding import Encoder, Pictures, conversation_texts
from tasks.train.fast.families import fast_model
from tasks.train.fast.grouped import pack_groups
from tasks.train.fast.model import FastModel
from tasks.train.fast.padding import pad_vision
from tasks.train.grpo import Grpo
from tasks.train.loop import Loop, prepare_model
from tasks.train.rollouts.source import Episode, Judged
from tasks.train.rollouts.vllm_engines import VllmEngines
from tasks.train.samples import STAGE, compute
from tasks.train.tiny import build_model, build_processor
from tasks.train.token_samples import Group, Sample
from tasks.train.with_tools import environment_maker, opening_prompt

PROMPTS, SIZE, REPLY_TOKENS = 2, 8, 64
GAP = 0.05  # of log-probabilities, on average
RATE = {False: 5e-5, True: 1e-3}  # a step must move what the engine draws


def script(number: int, turn: int) -> Sequence[Call]:
    """Two turns with tools, then an answer; every fourth rollout looks closer first."""
    if turn > 2:
        return []
    look: Call = ("image_zoom_in_tool", {"bbox_2d": [0, 0, 60, 60]})
    return [look] if turn == 1 and number % 4 == 0 else [("search_web", {"query": f"wait 0.1 {number}"})]


def settings_of(steps: int, tiny: bool, eager: bool) -> TrainSettings:
    grpo = GrpoSettings(
        max_steps=steps, group_size=SIZE, prompts_per_generation=PROMPTS, prompts_per_step=PROMPTS, micro_batch=SIZE,
        learning_rate=RATE[tiny], max_completion_tokens=8192, max_reply_tokens=REPLY_TOKENS, max_turns=4, kl=0.0,
        patience=None, engine="vllm",
        vllm=RolloutVllmSettings(
            memory_share=0.3, engine_args={"max_model_len": 16_384, "max_num_seqs": 64, "enforce_eager": eager or tiny}
        ),
    )  # fmt: skip
    sizes = TinySettings(vocabulary=4096, hidden=128, layers=2, intermediate=128, vision_hidden=64, vision_layers=2)
    changes: dict[str, Any] = {"recipe": "geovista", "phases": ("grpo",), "tiny": sizes, "grpo": grpo}
    if not tiny:
        changes |= {
            "precision": "bf16", "gradient_checkpointing": "all", "loader_threads": 4, "image_min_pixels": 1_800_000,
            "image_max_pixels": 2_100_000,
        }  # fmt: skip
    return small_settings(**changes, pack_tokens=16_384, validation_images=0)


def opened(lake: Lake, settings: TrainSettings, shape: str | None) -> tuple[FastModel, Encoder, list[dict[str, Any]]]:
    """The model, what encodes for it, and the samples; the tokenizer is made of the samples' words."""
    samples, _ = compute(open_inputs(STAGE, lake), settings)
    rows = samples.filter(samples["training_stage"] == "grpo").to_dicts()
    words = RECIPES[settings.recipe].prompt
    texts = [text for one in samples["messages_json"] for text in conversation_texts(one)]
    texts += [words.system, words.question, json.dumps(words.tool_schemas())]
    pixels = settings.image_min_pixels, settings.image_max_pixels
    if shape is None:
        processor = build_processor(texts, settings.tiny, *pixels)
        fast = prepare_model(build_model(processor, settings.tiny, 0), settings)
        return fast, Encoder(processor, Pictures(lake.images, *pixels)), rows
    model, encoder = model_with_tokenizer(shape, texts, settings.tiny, lake.images, *pixels)
    pad_vision(model)
    # Conversations of every length: compiling them would take longer than these steps.
    return fast_model(model, compile_layers=False, checkpoint_vision=True, checkpoint_text=True), encoder, rows


class Watched(Scripted):
    """Notes what each draw took, and keeps the first one's rollouts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.script = script
        self.seconds: list[dict[str, float]] = []
        self.first: list[tuple[Sample, list[Episode]]] = []

    def draw(
        self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]], has_weights: Event | None = None
    ) -> list[list[Episode]]:
        began = time.monotonic()
        started_s = self._engines.started_s  # type: ignore[attr-defined]
        found = super().draw(prompts, rows, has_weights)
        synced_s = self._engines.synced_s  # type: ignore[attr-defined]
        started_s = self._engines.started_s - started_s  # type: ignore[attr-defined]
        taken_s = time.monotonic() - began - started_s
        self.seconds.append(
            {"weights": synced_s, "tools alone": self.waited_s, "rollouts": taken_s - synced_s - self.waited_s}
        )
        if started_s:
            print(f"   vLLM was up after {started_s:.0f} s", flush=True)
        self.first = self.first or list(zip(prompts, found, strict=True))
        return found


def by_text(pairs: Sequence[tuple[Episode, Any]]) -> list[Judged]:
    """Rewards that differ inside a group."""
    return [
        Judged(None, one.outage) if one.outage else Judged(zlib.crc32(bytes(str(one.completion.ids), "ascii")) / 2**32)
        for one, _ in pairs
    ]


def gap_now(fast: FastModel, first: Sequence[tuple[Sample, Sequence[Episode]]]) -> float:
    """How far the log-probabilities of the first draw are from those of the weights as they are now."""
    apart: list[float] = []
    with torch.no_grad():
        for prompt, episodes in first:
            for one in episodes:
                packed = pack_groups([Group(prompt, (one.completion,))], fast.image_token, fast.merge)
                new, _ = fast.log_probs(packed.to(fast.device), 1.0)
                assert one.log_probs is not None
                apart += [abs(a - b) for a, b in zip(new.tolist(), one.log_probs, strict=True) if not math.isnan(b)]
    return statistics.mean(apart)


def measure(steps: int, shape: str | None, eager: bool) -> list[Goal]:
    settings = settings_of(steps, shape is None, eager)
    if shape is None:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="geofix-grpo-vllm-") as name, tool_server() as server:
        lake = Lake(Path(name) / "lake")
        fill_lake(lake, pictures=10)
        fast, encoder, rows = opened(lake, settings, shape)
        make = environment_maker(settings, lake.images, services(server))
        grpo = settings.grpo
        engines = VllmEngines(fast, encoder, encoder.end_tokens, grpo.vllm)
        rollouts = Watched(
            engines, encoder, numbered(make), SIZE, grpo.max_completion_tokens, grpo.max_turns, 1.0, REPLY_TOKENS
        )
        program = Grpo(
            fast, lambda number: opening_prompt(make(rows[number]), encoder), rows, settings, rollouts, by_text, None
        )
        try:
            history = Loop(fast.model, program, settings, Path(name)).run().history
        finally:
            engines.close()
        stale = gap_now(fast, rollouts.first)
        asked = len(server.asked)
    gaps = [entry["engine_gap"] for entry in history]
    parts = rollouts.seconds
    trained = [entry["seconds"] - sum(part.values()) for entry, part in zip(history, parts, strict=True)]
    trained[0] -= engines.started_s

    def typical(values: Sequence[float]) -> float:
        return statistics.median(values[1:] or values)

    by_part = {name: typical([part[name] for part in parts]) for name in parts[0]} | {"training": typical(trained)}
    calls = sum(entry["tool_calls"] for entry in history) / len(history)
    print(f"   {len(history)} steps of {PROMPTS} x {SIZE} rollouts, {calls:.1f} calls of tools in each, {asked} "
          f"searches answered; completions of {history[-1]['completion_tokens']:.0f} tokens", flush=True)  # fmt: skip
    print("   seconds a step: " + ", ".join(f"{name} {value:.2f}" for name, value in by_part.items())
          + f", together {sum(by_part.values()):.2f}", flush=True)  # fmt: skip
    print("   distance of the log-probabilities by step: " + " ".join(f"{gap:.4f}" for gap in gaps), flush=True)
    print(f"   the first draw's, against the weights after {len(history)} steps: {stale:.4f}", flush=True)
    return [
        Goal("steps", len(history), at_least=steps),
        Goal("calls of tools in a rollout", calls, at_least=2),
        Goal("largest mean distance of a step's log-probabilities", max(gaps), at_most=GAP),
        Goal("distance without syncing, times that with it", stale / max(gaps), at_least=2),
    ]


Measure = Callable[[int, str | None, bool], list[Goal]]  # steps, shape of the model (None: tiny), without CUDA graphs


def run(name: str, about: str | None, steps: int, measured: Measure, arguments: list[str] | None) -> int:
    """The command line of a benchmark of GRPO with vLLM, and its exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=about)
    parser.add_argument("--model", choices=list(SHAPES), default="qwen2.5-vl-7b")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, on CPUs")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--eager", action="store_true", help="vLLM without CUDA graphs: starts sooner, writes slower")
    given = parser.parse_args(arguments or [])
    if not given.tiny and no_gpu():
        return NOT_RUN
    return judge(measured(given.steps, None if given.tiny else given.model, given.eager))


def main(arguments: list[str] | None = None) -> int:
    return run("grpo_vllm", __doc__, 20, measure, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
