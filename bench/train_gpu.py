"""Supervised training of the Qwen2.5-VL-7B shape on one GPU: geofix's packed model against plain transformers.

Full fine-tuning, random weights, 2 Mpx pictures with 512 text tokens (384 of them trained). Both train the same data
from the same weights with the same optimizer (bf16, stochastic rounding): 20 steps of plain transformers (SDPA,
gradient checkpointing), 50 of ours. Model FLOPs utilization counts what the loss needs and nothing more
(tasks/train/fast/flops.py), of the 989 TFLOP/s of an H200's datasheet.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.goals import Goal, judge
from bench.qwen_gpu import NOT_RUN, PEAK_FLOPS, config_7b, no_gpu, plain_batch, random_model, random_sample
from tasks.train.fast.flops import step_flops
from tasks.train.fast.model import FastModel
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.fast.packing import Packed, Sample, pack
from tasks.train.fast.padding import pad_vision

BATCH = 2
BATCHES = 4  # different batches, repeated: the loss must fall
RATE = 1e-5
PLAIN_STEPS, FAST_STEPS = 20, 50
LOSS_TOLERANCE = 0.01  # relative, at every one of the first 20 steps: bf16 keeps three digits
GIB = 2**30


class Run:
    """Losses, seconds and peak memory of some steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.memory_gib = 0.0

    @property
    def step_s(self) -> float:
        """Median without the first steps, in which kernels are compiled and chosen."""
        return statistics.median(self.seconds[5:] or self.seconds)


def train(model: Any, loss_of: Callable[[int], torch.Tensor], steps: int) -> Run:
    """Train every parameter of the model for some steps."""
    optimizer = StochasticAdamW(model.parameters(), lr=RATE, max_norm=1.0)
    run = Run()
    torch.cuda.reset_peak_memory_stats()
    for step in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.losses.append(loss.item())
        torch.cuda.synchronize()
        run.seconds.append(time.perf_counter() - start)
    run.memory_gib = torch.cuda.max_memory_allocated() / GIB
    return run


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def plain_run(config: Any, batches: list[list[Sample]], steps: int) -> Run:
    """transformers as it comes: SDPA, gradient checkpointing."""
    model = random_model(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    inputs = [plain_batch(batch) for batch in batches]
    return train(model, lambda step: model(**inputs[step % len(inputs)], use_cache=False).loss, steps)


def fast_run(config: Any, batches: list[list[Sample]], steps: int, **options: Any) -> Run:
    """The same weights and data, packed."""
    model = random_model(config)
    pad_vision(model)
    fast = FastModel(model, **options)
    packed: list[Packed] = [pack(batch, fast.image_token, fast.merge).to("cuda") for batch in batches]
    return train(model, lambda step: fast.loss(packed[step % len(packed)]), steps)


def main() -> int:
    if no_gpu():
        return NOT_RUN
    config = config_7b()
    batches = [[random_sample(BATCH * n + k) for k in range(BATCH)] for n in range(BATCHES)]
    lengths = [len(one.ids) for one in batches[0]]
    trained = sum(label != -100 for one in batches[0] for label in one.labels[1:])
    flops = step_flops(config, lengths, [grid for one in batches[0] for grid in one.grids], trained)
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"   {device}: {BATCH} samples of {lengths[0]} tokens a step, {flops / 1e12:.0f} TFLOP", flush=True)

    def show(name: str, run: Run) -> float:
        utilization = flops / run.step_s / PEAK_FLOPS
        print(f"   {name:22} {run.step_s * 1e3:6.0f} ms a step, {sum(lengths) / run.step_s:6.0f} tokens/s, MFU "
              f"{utilization:.3f}, {run.memory_gib:.0f} GiB, loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f} "
              f"({len(run.losses)} steps, first {run.seconds[0]:.0f} s)", flush=True)  # fmt: skip
        return utilization

    fast = fast_run(config, batches, FAST_STEPS)
    utilization = show("geofix", fast)
    free()
    plain = plain_run(config, batches, PLAIN_STEPS)
    show("transformers", plain)
    free()
    apart = max(abs(a - b) / b for a, b in zip(fast.losses, plain.losses, strict=False))
    fallen = 1 - plain.losses[-1] / plain.losses[0]
    print(f"   losses of transformers: {' '.join(f'{loss:.3f}' for loss in plain.losses)}")
    print(f"   losses of geofix:       {' '.join(f'{loss:.3f}' for loss in fast.losses[:PLAIN_STEPS])}")
    print(f"   {plain.step_s / fast.step_s:.1f} times as fast, losses apart by at most {apart:.2%}", flush=True)
    return judge(
        [
            Goal("model FLOPs utilization", utilization, at_least=0.50),
            Goal("times as fast as checkpointed transformers", plain.step_s / fast.step_s, at_least=5),
            Goal("largest relative difference of the losses", apart, at_most=LOSS_TOLERANCE),
            Goal("share by which the loss of transformers fell", fallen, at_least=0.02),
            Goal("steps without running out of memory", len(fast.losses), at_least=FAST_STEPS),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
