"""Rollouts for GRPO on one GPU, Qwen2.5-VL-7B shape: geofix's engine against transformers' `generate`, as TRL calls it.

8 prompts with a 2 Mpx picture each, G = 8 completions of 128 tokens. `generate` is given every prompt G times, in one
batch; the engine computes prompt and picture once for a group. Log-probabilities of the engine's completions are
compared with those of a plain transformers forward in bf16, and both with one in float32: bf16 has noise of its own.

Then the engine against vLLM, as `train.grpo.engine` chooses between them: three sizes of a draw, the same pictures.
vLLM runs in the Python that GEOFIX_VLLM_PYTHON names, else .venv-vllm/bin/python; --engines: only this part.

Both parts say how far the engine's log-probabilities are from the trainer's, and each from those of float32 weights. If
bf16's rounding is all that parts them, the mean of their differences is 0 and its square is the sum of the squares of
their distances from float32; another temperature or another set of tokens would show in the mean.
--log-probs: only this, without `generate` and vLLM.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.goals import Goal, judge
from bench.qwen_gpu import (
    NOT_RUN,
    config_7b,
    model_with_tokenizer,
    no_gpu,
    plain_batch,
    random_model,
    random_sample,
)
from schemas.settings.train import RolloutVllmSettings, TinySettings
from tasks.runtime.on_ray.model_pools import vllm_python
from tasks.train.fast.families import fast_model
from tasks.train.fast.model import FastModel
from tasks.train.fast.padding import pad_vision
from tasks.train.rollouts.engine import Rollout, RolloutEngine
from tasks.train.rollouts.engines import Engines
from tasks.train.rollouts.sampling import Sampling
from tasks.train.rollouts.vllm_engines import VllmEngines
from tasks.train.token_samples import IGNORED, Completion, Group, Sample

GROUPS, SIZE, NEW_TOKENS = 8, 8, 128
PROMPT_TEXT = 128
DRAWS = ((8, 128), (8, 512), (32, 128))  # rollouts of a prompt, tokens of each
WORDS = "Where was this picture taken? Name the country and the city, and say what you see. " * 5


def prompts() -> list[Sample]:
    return [random_sample(100 + n, text=PROMPT_TEXT, prompt=PROMPT_TEXT) for n in range(GROUPS)]


def generated_seconds(model: Any, group_prompts: list[Sample]) -> float:
    """Seconds of `generate` for every prompt G times, as TRL's trainer repeats them."""
    repeated = [prompt for prompt in group_prompts for _ in range(SIZE)]
    inputs = plain_batch(repeated)
    del inputs["labels"]
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                         max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS)  # fmt: skip
    torch.cuda.synchronize()
    assert out.shape[1] == inputs["input_ids"].shape[1] + NEW_TOKENS
    return time.perf_counter() - start


def plain_log_probs(model: Any, prompt: Sample, rollout: Rollout) -> torch.Tensor:
    """transformers' own forward over prompt and completion."""
    ids = [*prompt.ids, *rollout.ids]
    inputs = plain_batch([Sample(ids, [IGNORED] * len(ids), prompt.pixels, prompt.grids)])
    del inputs["labels"]
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).int()
    with torch.no_grad():
        logits = model(**inputs, use_cache=False, logits_to_keep=len(rollout.ids) + 1).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(rollout.ids, device=logits.device)[:, None])[:, 0].cpu()


def trainer_log_probs(fast: FastModel, prompt: Sample, rollout: Rollout) -> torch.Tensor:
    """As a training step computes them."""
    completion = Completion(rollout.ids, [True] * len(rollout.ids))
    with torch.no_grad():
        return fast.log_probs(fast.pack_groups([Group(prompt, (completion,))]))[0].cpu()


def compare(fast: FastModel, pairs: list[tuple[Sample, Rollout]], name: str) -> list[Goal]:
    """The engine's log-probabilities, the trainer's and transformers' against float32; the weights are widened."""
    found = {
        name: torch.cat([torch.tensor(rollout.log_probs) for _, rollout in pairs]),
        "trainer": torch.cat([trainer_log_probs(fast, *pair) for pair in pairs]),
        "transformers": torch.cat([plain_log_probs(fast.model, *pair) for pair in pairs]),
    }
    fast.model.float()
    exact = torch.cat([plain_log_probs(fast.model, *pair) for pair in pairs])
    noise = {one: (values - exact).square().mean().sqrt().item() for one, values in found.items()}
    apart = found[name] - found["trainer"]
    shift, gap = apart.mean().item(), apart.square().mean().sqrt().item()
    expected = (noise[name] ** 2 + noise["trainer"] ** 2) ** 0.5
    said = ", ".join(f"{one} {value:.4f}" for one, value in noise.items())
    print(f"   {len(exact)} log-probabilities, root mean square from those of float32 weights: {said}; {name} - "
          f"trainer {shift:+.4f} on average, {apart.abs().mean():.4f} apart, root mean square {gap:.4f}, of "
          f"which rounding explains {expected:.4f}; mean log-probability {exact.mean():.2f}", flush=True)  # fmt: skip
    return [
        Goal(f"mean difference of the log-probabilities of {name} and trainer", abs(shift), at_most=1e-2),
        Goal(
            f"rounding noise of {name} over that of transformers in bf16",
            noise[name] / noise["transformers"],
            at_most=1.1,
        ),
        Goal(f"distance of {name} from the trainer over what rounding explains", gap / expected, at_most=1.1),
    ]


def seconds_of(engines: Engines | VllmEngines, drawn: list[Sample], size: int, new_tokens: int) -> float:
    """The median of three draws, after one that compiles and captures."""
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = engines.generate(drawn, size, new_tokens, Sampling(1.0))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        assert all(len(one.ids) == new_tokens for group in found for one in group)
    return sorted(seconds[1:])[1]


def against_vllm() -> list[Goal]:
    """Embedded engine and vLLM on one GPU, one after the other: vLLM comes up when the engine's buffers are freed."""
    python = vllm_python(None)
    if shutil.which(python) is None:
        print(f"   not compared with vLLM: there is none at {python}", flush=True)
        return []
    model, encoder = model_with_tokenizer("qwen2.5-vl-7b", [WORDS], TinySettings(), None, 1_900_000, 2_000_000)
    pad_vision(model.eval())
    fast = fast_model(model)
    drawn = []
    for number in range(GROUPS):
        noise = np.random.default_rng(number).integers(0, 256, (102, 100, 3), dtype=np.uint8)
        content = [{"type": "image"}, {"type": "text", "text": f"{WORDS} {number}"}]
        picture = Image.fromarray(noise).resize((1400, 1428))
        drawn.append(encoder.prompt([{"role": "user", "content": content}], pictures=[picture]))
    ours: dict[tuple[int, int], float] = {}
    for size, new in DRAWS:
        engines = Engines(fast, [], GROUPS * size)
        ours[size, new] = seconds_of(engines, drawn, size, new)
        engines.clear()
        torch.cuda.empty_cache()
    settings = RolloutVllmSettings(memory_share=0.5, engine_args={"max_model_len": 4096, "max_num_seqs": 256})
    vllm = VllmEngines(fast, encoder, [], settings)
    goals = []
    try:
        vllm.refresh_weights()
        print(
            f"   vLLM {vllm.version}: up after {vllm.started_s:.0f} s, weights sent in {vllm.synced_s:.2f} s",
            flush=True,
        )
        for size, new in DRAWS:
            tokens = GROUPS * size * new
            theirs = seconds_of(vllm, drawn, size, new)
            share = theirs / ours[size, new]
            print(f"   {GROUPS} prompts x {size} x {new} tokens: embedded {ours[size, new]:.2f} s "
                  f"({tokens / ours[size, new]:,.0f} tokens/s), vLLM {theirs:.2f} s ({tokens / theirs:,.0f}); "
                  f"train.grpo.engine: {'embedded' if share >= 1 else 'vllm'} is faster", flush=True)  # fmt: skip
            goals.append(Goal(f"embedded's speed, times vLLM's, {size} x {new}", share, at_least=1.0))
        drawn_by_vllm = vllm.generate(drawn, *DRAWS[0], Sampling(1.0))
    finally:
        vllm.close()
    pairs = [(prompt, group[k]) for prompt, group in zip(drawn, drawn_by_vllm, strict=True) for k in (0, SIZE - 1)]
    return [*goals, *compare(fast, pairs, "vLLM")]


def main(arguments: list[str] | None = None) -> int:
    if no_gpu():
        return NOT_RUN
    if "--engines" in (arguments or []):
        return judge(against_vllm())
    if "--log-probs" in (arguments or []):
        return judge(against_generate(is_timed=False))
    goals = against_generate()
    torch.cuda.empty_cache()
    return judge([*goals, *against_vllm()])


def against_generate(is_timed: bool = True) -> list[Goal]:
    """The engine against transformers' `generate`, and its log-probabilities."""
    model = random_model(config_7b()).eval()
    group_prompts = prompts()
    tokens = GROUPS * SIZE * NEW_TOKENS
    plain_s = generated_seconds(model, group_prompts) if is_timed else float("nan")
    torch.cuda.empty_cache()
    print(f"   transformers generate  {plain_s:6.2f} s, {tokens / plain_s:6.0f} tokens/s", flush=True)
    pad_vision(model)
    length = -(-len(group_prompts[0].ids) // 64) * 64
    start = time.perf_counter()
    fast = fast_model(model)
    engine = RolloutEngine(fast, SIZE, GROUPS, length, NEW_TOKENS, end_tokens=[])
    list(engine.generate(group_prompts))
    print(f"   geofix engine: {time.perf_counter() - start:.0f} s to compile and capture", flush=True)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = dict(engine.generate(group_prompts))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    fast_s = sorted(seconds)[1]
    assert all(len(one.ids) == NEW_TOKENS for group in found.values() for one in group)
    start = time.perf_counter()
    for _ in range(100):
        engine.graph.replay()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - start) * 10
    print(f"   geofix engine          {fast_s:6.2f} s, {tokens / fast_s:6.0f} tokens/s; a decoding step of "
          f"{GROUPS * SIZE} rollouts {step_ms:.1f} ms", flush=True)  # fmt: skip
    chosen = [(group_prompts[g], found[g][k]) for g in range(GROUPS) for k in (0, SIZE - 1)]
    del engine
    torch.cuda.empty_cache()
    timed = [Goal("times as fast as generate", plain_s / fast_s, at_least=5)] if is_timed else []
    return [*timed, *compare(fast, chosen, "engine")]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
