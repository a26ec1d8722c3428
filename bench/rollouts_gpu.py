"""Rollouts for GRPO on one GPU, Qwen2.5-VL-7B shape: geofix's engine against transformers' `generate`, as TRL calls it.

8 prompts with a 2 Mpx picture each, G = 8 completions of 128 tokens. `generate` is given every prompt G times, in one
batch; the engine computes prompt and picture once for a group. Log-probabilities of the engine's completions are
compared with those of a plain transformers forward in bf16, and both with one in float32: bf16 has noise of its own.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.goals import Goal, judge
from bench.qwen_gpu import NOT_RUN, config_7b, no_gpu, plain_batch, random_model, random_sample
from tasks.train.fast.families import fast_model
from tasks.train.fast.packing import IGNORED, Sample
from tasks.train.fast.padding import pad_vision
from tasks.train.rollouts.engine import Rollout, RolloutEngine

GROUPS, SIZE, NEW_TOKENS = 8, 8, 128
PROMPT_TEXT = 128


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
    with torch.no_grad():
        logits = model(**inputs, use_cache=False, logits_to_keep=len(rollout.ids) + 1).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(rollout.ids, device=logits.device)[:, None])[:, 0].cpu()


def main() -> int:
    if no_gpu():
        return NOT_RUN
    model = random_model(config_7b()).eval()
    group_prompts = prompts()
    tokens = GROUPS * SIZE * NEW_TOKENS
    plain_s = generated_seconds(model, group_prompts)
    torch.cuda.empty_cache()
    print(f"   transformers generate  {plain_s:6.2f} s, {tokens / plain_s:6.0f} tokens/s", flush=True)
    pad_vision(model)
    length = -(-len(group_prompts[0].ids) // 64) * 64
    start = time.perf_counter()
    engine = RolloutEngine(fast_model(model), SIZE, GROUPS, length, NEW_TOKENS, end_tokens=[])
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
    ours = torch.cat([torch.tensor(rollout.log_probs) for _, rollout in chosen])
    plain = torch.cat([plain_log_probs(model, *pair) for pair in chosen])
    del engine
    torch.cuda.empty_cache()
    model.float()
    exact = torch.cat([plain_log_probs(model, *pair) for pair in chosen])
    noise = {name: (one - exact).pow(2).mean().sqrt().item() for name, one in (("ours", ours), ("plain", plain))}
    shift = (ours - plain).mean().item()
    print(f"   {plain_s / fast_s:.1f} times as fast; {len(ours)} log-probabilities: ours - theirs {shift:+.4f} on "
          f"average, {(ours - plain).abs().mean():.4f} apart; from float32 weights ours are off by {noise['ours']:.4f} "
          f"(root mean square), transformers' in bf16 by {noise['plain']:.4f}", flush=True)  # fmt: skip
    return judge(
        [
            Goal("times as fast as generate", plain_s / fast_s, at_least=5),
            Goal("mean difference of the log-probabilities", abs(shift), at_most=1e-2),
            Goal("our rounding noise over that of transformers in bf16", noise["ours"] / noise["plain"], at_most=1.1),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
