"""Full fine-tuning on one GPU (--model: Qwen2.5-VL-7B or Qwen3-VL-8B): our training loop against plain transformers.

The same weights, data and optimizer (bf16 with stochastic rounding): 20 steps of plain transformers (SDPA, gradient
checkpointing), 50 of the loop behind `geofix train`, pictures decoded by its threads meanwhile. Model FLOPs utilization
counts what the loss needs and nothing more (tasks/train/fast/flops.py), of the 989 TFLOP/s of an H200's datasheet. Then
GRPO: G = 8 rollouts of 2 Mpx pictures, their rewards at random, and the step on them. Last, samples of mixed lengths
with one to three pictures of any size.
"""

from __future__ import annotations

import argparse
import gc
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.goals import Goal, judge
from bench.qwen_gpu import (
    IMAGE,
    NOT_RUN,
    PEAK_FLOPS,
    SHAPES,
    VISION_END,
    VISION_START,
    Shape,
    no_gpu,
    plain_batch,
    random_model,
    random_sample,
)
from schemas.settings.train import GrpoSettings, TrainSettings, TunerSettings
from tasks.train.fast.flops import step_flops
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.fast.packing import IGNORED, Sample
from tasks.train.grpo import Grpo, Reference
from tasks.train.loop import Loop, prepare_model
from tasks.train.memory import Load, memory_needed
from tasks.train.memory import Shape as MemoryShape
from tasks.train.rollouts.source import EmbeddedRollouts, Engines, Judged
from tasks.train.supervised import Supervised

BATCH = 2
SAMPLES = 8  # repeated: the loss must fall
RATE = 1e-5
PLAIN_STEPS, FAST_STEPS = 20, 50
LOSS_TOLERANCE = 0.01  # relative, at every one of the first 20 steps: bf16 keeps three digits
GROUPS, SIZE, NEW_TOKENS = 4, 8, 128
MIXED_STEPS, MIXED_SAMPLES, MIXED_SETTLED = 40, 48, 12
MIXED_BATCH, MIXED_TOKENS = 3, 8192
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


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def encoder(shape: Shape) -> Callable[[int], Sample]:
    """Samples as the loader makes them: a JPEG decoded and cut into patches each time, random text."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    grid = shape.grid
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 40_000, "longest_edge": 2_000_000}, patch_size=shape.patch
    )
    pictures = []
    for number in range(SAMPLES):
        noise = np.random.default_rng(number).integers(0, 255, (grid[1], grid[2], 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(noise).resize((grid[2] * shape.patch, grid[1] * shape.patch)).save(out, "JPEG", quality=90)
        pictures.append(out.getvalue())

    def encode(number: int) -> Sample:
        text = random_sample(number, grid=grid, values=1)
        found = processor(images=[Image.open(io.BytesIO(pictures[number])).convert("RGB")], return_tensors="pt")
        assert tuple(found["image_grid_thw"][0].tolist()) == grid
        return Sample(text.ids, text.labels, found["pixel_values"], text.grids)

    return encode


def settings_of(**changes: Any) -> TrainSettings:
    tuner = TunerSettings(
        max_steps=FAST_STEPS, batch_size=BATCH, micro_batch=BATCH, learning_rate=RATE, warmup_share=0.0,
        schedule="constant",
    )  # fmt: skip
    return TrainSettings(**{"sft": tuner, "gradient_checkpointing": "none", "loader_threads": 8, **changes})


def fast_run(config: Any, encode: Callable[[int], Sample]) -> tuple[Run, list[list[int]], float]:
    """The loop behind `geofix train`; its batches, and how far its loss is from transformers' for its last weights."""
    settings = settings_of()
    model = random_model(config)
    fast = prepare_model(model, settings)
    program = Supervised(fast, encode, SAMPLES, settings, settings.sft)
    torch.cuda.reset_peak_memory_stats()
    run = Run()
    with tempfile.TemporaryDirectory() as folder:
        progress = Loop(model, program, settings, Path(folder)).run()
    run.losses = [entry["loss"] for entry in progress.history]
    run.seconds = [entry["seconds"] for entry in progress.history]
    run.memory_gib = torch.cuda.max_memory_allocated() / GIB
    batches = [program.batch(step) for step in range(PLAIN_STEPS)]
    apart = 0.0
    model.eval()
    with torch.no_grad():
        for numbers in batches[: SAMPLES // BATCH]:
            chosen = [encode(number) for number in numbers]
            ours = fast.loss(fast.pack(chosen)).item()
            theirs = model(**plain_inputs(chosen), use_cache=False).loss.item()
            apart = max(apart, abs(ours - theirs) / theirs)
    return run, batches, apart


def plain_inputs(samples: list[Sample]) -> dict[str, torch.Tensor]:
    inputs = plain_batch(samples)
    return {**inputs, "pixel_values": inputs["pixel_values"].to(torch.bfloat16)}


def plain_run(config: Any, encode: Callable[[int], Sample], batches: list[list[int]]) -> Run:
    """transformers as it comes: SDPA, gradient checkpointing, everything on the device beforehand."""
    model = random_model(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = StochasticAdamW(model.parameters(), lr=RATE, max_norm=1.0)
    inputs = {tuple(numbers): plain_inputs([encode(number) for number in numbers]) for numbers in batches}
    run = Run()
    torch.cuda.reset_peak_memory_stats()
    for numbers in batches:
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = model(**inputs[tuple(numbers)], use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.losses.append(loss.item())
        torch.cuda.synchronize()
        run.seconds.append(time.perf_counter() - start)
    run.memory_gib = torch.cuda.max_memory_allocated() / GIB
    return run


def grpo_run(config: Any, shape: Shape) -> tuple[Run, float]:
    """Three GRPO steps; the seconds of the last generation beside those of the steps."""
    grpo = GrpoSettings(
        max_steps=3, group_size=SIZE, prompts_per_generation=GROUPS, prompts_per_step=GROUPS, micro_batch=16,
        max_completion_tokens=NEW_TOKENS, rollout_groups=GROUPS, patience=None,
    )  # fmt: skip
    settings = settings_of(grpo=grpo, gradient_checkpointing="vision")
    model = random_model(config)
    fast = prepare_model(model, settings)
    prompts = [
        random_sample(100 + n, text=128, prompt=128, grid=shape.grid, values=shape.patch_values) for n in range(GROUPS)
    ]
    chance = np.random.default_rng(0)
    drawn_s: list[float] = []

    class Timed(EmbeddedRollouts):
        def draw(self, *arguments: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = super().draw(*arguments)
            torch.cuda.synchronize()
            drawn_s.append(time.perf_counter() - start)
            return found

    rollouts = Timed(Engines(fast, [], GROUPS * SIZE), lambda ids: "", SIZE, NEW_TOKENS, 1.0)
    program = Grpo(
        fast, prompts.__getitem__, [{"phase": None}] * GROUPS, settings, rollouts,
        lambda pairs: [Judged(float(chance.random())) for _ in pairs], Reference(fast, False, False),
    )  # fmt: skip
    torch.cuda.reset_peak_memory_stats()
    run = Run()
    with tempfile.TemporaryDirectory() as folder:
        progress = Loop(model, program, settings, Path(folder)).run()
    run.losses = [entry["loss"] for entry in progress.history]
    run.seconds = [entry["seconds"] for entry in progress.history]
    run.memory_gib = torch.cuda.max_memory_allocated() / GIB
    return run, drawn_s[-1]


def mixed_sample(number: int, shape: Shape) -> Sample:
    """One to three pictures of any size up to 2 megapixels, 128 to 1,024 tokens of text around them."""
    chance = np.random.default_rng(number)
    grids = [
        (1, *(2 * int(side) for side in chance.integers(6, shape.grid[1] // 2, 2)))
        for _ in range(int(chance.integers(1, 4)))
    ]
    text = int(chance.integers(128, 1025))
    words = chance.integers(100, 150_000, text).tolist()
    ids = words[:8]
    for _, rows, columns in grids:
        ids += [VISION_START, *[IMAGE] * (rows * columns // 4), VISION_END]
    answer = words[text // 4 :]
    ids += words[8 : text // 4]
    patches = sum(rows * columns for _, rows, columns in grids)
    pixels = torch.from_numpy(chance.standard_normal((patches, shape.patch_values), dtype=np.float32))
    return Sample([*ids, *answer], [IGNORED] * len(ids) + answer, pixels.to(torch.bfloat16), tuple(grids))


def mixed_run(config: Any, shape: Shape) -> tuple[Run, float]:
    """Samples of mixed length; model FLOPs utilization once shapes stop being compiled."""
    tuner = TunerSettings(
        max_steps=MIXED_STEPS, batch_size=MIXED_BATCH, micro_batch=MIXED_BATCH, learning_rate=RATE, warmup_share=0.0,
        schedule="constant", max_tokens=MIXED_TOKENS,
    )  # fmt: skip
    settings = settings_of(sft=tuner, pack_tokens=MIXED_TOKENS * MIXED_BATCH)
    samples = [mixed_sample(number, shape) for number in range(MIXED_SAMPLES)]
    model = random_model(config)
    program = Supervised(prepare_model(model, settings), samples.__getitem__, len(samples), settings, tuner)
    run = Run()
    with tempfile.TemporaryDirectory() as folder:
        progress = Loop(model, program, settings, Path(folder)).run()
    run.seconds = [entry["seconds"] for entry in progress.history]
    run.losses = [entry["loss"] for entry in progress.history]
    flops = 0.0
    for step in range(MIXED_SETTLED, MIXED_STEPS):
        chosen = [samples[number] for number in program.batch(step)]
        trained = sum(label != IGNORED for one in chosen for label in one.labels[1:])
        grids = [grid for one in chosen for grid in one.grids]
        flops += step_flops(config, [len(one.ids) for one in chosen], grids, trained)
    return run, flops / sum(run.seconds[MIXED_SETTLED:]) / PEAK_FLOPS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="qwen2.5-vl-7b")
    name = parser.parse_args().model
    if no_gpu():
        return NOT_RUN
    shape = SHAPES[name]
    config, encode = shape.config(), encoder(shape)
    sample = random_sample(0, grid=shape.grid, values=1)
    lengths = [len(sample.ids)] * BATCH
    trained = BATCH * sum(label != IGNORED for label in sample.labels[1:])
    flops = step_flops(config, lengths, [shape.grid] * BATCH, trained)
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"   {device}: {name}, {BATCH} samples of {lengths[0]} tokens a step, {flops / 1e12:.0f} TFLOP", flush=True)

    def show(name: str, run: Run) -> float:
        utilization = flops / run.step_s / PEAK_FLOPS
        print(f"   {name:22} {run.step_s * 1e3:6.0f} ms a step, {sum(lengths) / run.step_s:6.0f} tokens/s, MFU "
              f"{utilization:.3f}, {run.memory_gib:.0f} GiB, loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f} "
              f"({len(run.losses)} steps, first {run.seconds[0]:.0f} s)", flush=True)  # fmt: skip
        return utilization

    fast, batches, same = fast_run(config, encode)
    utilization = show("geofix", fast)
    free()
    forecast = memory_needed(
        MemoryShape.of(config.to_dict()),
        settings_of(),
        "sft",
        Load(sum(lengths), BATCH * shape.grid[1] * shape.grid[2], trained),
    )
    forecast_off = abs(forecast.total / GIB / fast.memory_gib - 1)
    print(f"   dry run said {forecast.total / GIB:.1f} GiB, {forecast_off:.1%} off", flush=True)
    steps, draw_s = grpo_run(config, shape)
    print(f"   GRPO, {GROUPS} prompts with 2 Mpx, G = {SIZE}, {NEW_TOKENS} tokens: {steps.seconds[-1]:.1f} s a step, "
          f"{draw_s:.1f} s of them rollouts, {steps.memory_gib:.0f} GiB", flush=True)  # fmt: skip
    free()
    mixed, mixed_utilization = mixed_run(config, shape)
    print(f"   mixed lengths, 1 to 3 pictures: MFU {mixed_utilization:.3f} after {MIXED_SETTLED} steps; seconds of the "
          f"first: {' '.join(f'{one:.1f}' for one in mixed.seconds[:MIXED_SETTLED])}", flush=True)  # fmt: skip
    free()
    plain = plain_run(config, encode, batches)
    show("transformers", plain)
    free()
    apart = max(abs(a - b) / b for a, b in zip(fast.losses, plain.losses, strict=False))
    fallen = 1 - plain.losses[-1] / plain.losses[0]
    print(f"   losses of transformers: {' '.join(f'{loss:.3f}' for loss in plain.losses)}")
    print(f"   losses of geofix:       {' '.join(f'{loss:.3f}' for loss in fast.losses[:PLAIN_STEPS])}")
    print(f"   {plain.step_s / fast.step_s:.1f} times as fast; losses apart by at most {apart:.2%} over the steps, by "
          f"{same:.4f} for the same weights", flush=True)  # fmt: skip
    return judge(
        [
            Goal("model FLOPs utilization", utilization, at_least=0.50 if name == "qwen2.5-vl-7b" else 0.45),
            Goal("the same, mixed lengths", mixed_utilization, at_least=0.48 if name == "qwen2.5-vl-7b" else 0.45),
            Goal("times as fast as checkpointed transformers", plain.step_s / fast.step_s, at_least=5),
            Goal("largest relative difference of the losses", apart, at_most=LOSS_TOLERANCE),
            Goal("relative difference of the losses of the same weights", same, at_most=0.001),
            Goal("share by which the loss of transformers fell", fallen, at_least=0.02),
            Goal("steps without running out of memory", len(fast.losses), at_least=FAST_STEPS),
            Goal("share by which the dry run's memory is off", forecast_off, at_most=0.10),
            Goal("GRPO steps", len(steps.losses), at_least=3),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
