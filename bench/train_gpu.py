"""Full fine-tuning on one GPU (--model: Qwen2.5-VL-7B or Qwen3-VL-8B): our training loop against plain transformers.

The same weights, data and optimizer (bf16 with stochastic rounding): 20 steps of plain transformers (SDPA, gradient
checkpointing), 50 of the loop behind `geofix train`, pictures decoded by its threads meanwhile. Model FLOPs utilization
counts what the loss needs and nothing more (tasks/train/fast/flops.py), of the 989 TFLOP/s of an H200's datasheet. Then
GRPO: G = 8 rollouts of 2 Mpx pictures, their rewards at random, and the step on them. Last, samples of mixed lengths
with one to three pictures of any size, in packs that the memory forecast fits. --only: some of these parts.
"""

from __future__ import annotations

import argparse
import gc
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

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
from tasks.train.grpo import Grpo, Reference
from tasks.train.loop import Loop, prepare_model
from tasks.train.memory import ROOM, Load, fit, fit_text, memory_needed
from tasks.train.memory import Shape as MemoryShape
from tasks.train.rollouts.engines import Engines
from tasks.train.rollouts.source import EmbeddedRollouts, Judged
from tasks.train.supervised import Supervised
from tasks.train.token_samples import IGNORED, Sample

BATCH = 2
SAMPLES = 8  # repeated: the loss must fall
RATE = 1e-5
PLAIN_STEPS, FAST_STEPS = 20, 50
LOSS_TOLERANCE = 0.01  # relative, at every one of the first 20 steps: bf16 keeps three digits
GROUPS, SIZE, NEW_TOKENS = 4, 8, 128
MIXED_STEPS, MIXED_SAMPLES, MIXED_SETTLED = 40, 48, 12
MIXED_BATCH, MIXED_TOKENS = 3, 8192
GIB = 2**30
COMPILES = 2.0  # times the usual step: a step that compiles a new shape
PARTS = ("sft", "grpo", "mixed", "plain")
# What must hold of a shape: utilization, the same with mixed lengths, and how many times as fast as transformers, whose
# windows of Qwen2.5-VL's pictures are computed one by one.
WANTED = {"qwen2.5-vl-7b": (0.50, 0.48, 5.0), "qwen3-vl-8b": (0.45, 0.45, 1.5)}


class Timed(Supervised):
    """Notes when the device and the host come to the parts of a step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps_seen: list[dict[str, Any]] = []

    def mark(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.steps_seen[-1] |= {name: event, f"{name}_host": time.perf_counter()}

    def gradients(self, step: int, progress: Any) -> Any:
        self.steps_seen.append({"data_s": 0.0})
        self.mark("began")
        found = super().gradients(step, progress)
        if "launched" not in self.steps_seen[-1]:  # the last step prepares no other
            self.mark("launched")
        return found

    def _prepare(self, step: int) -> Any:
        began = time.perf_counter()
        if step == len(self.steps_seen):  # the next step's, after this one's passes were launched
            self.mark("launched")
        found = super()._prepare(step)
        self.steps_seen[-1]["data_s"] += time.perf_counter() - began
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = register_optimizer_step_pre_hook(lambda *_: self.mark("ready"))
        after = register_optimizer_step_post_hook(lambda *_: self.mark("updated"))
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def parts(self, seconds: list[float], first: int) -> str:
        """Medians of the steps from `first` on."""
        found: dict[str, list[float]] = {}
        for one, whole in list(zip(self.steps_seen, seconds, strict=True))[first:]:
            device = {
                "forward and backward": one["began"].elapsed_time(one["launched"]),
                "waiting for data": one["launched"].elapsed_time(one["ready"]),
                "optimizer": one["ready"].elapsed_time(one["updated"]),
            }
            host = {
                "launching": (one["launched_host"] - one["began_host"]) * 1e3,
                "data": one["data_s"] * 1e3,
                "optimizer's launches": (one["updated_host"] - one["ready_host"]) * 1e3,
            }
            device["rest"] = whole * 1e3 - sum(device.values())
            for name, value in (*device.items(), *((f"host: {name}", value) for name, value in host.items())):
                found.setdefault(name, []).append(value)
        return ", ".join(f"{name} {statistics.median(values):.1f}" for name, values in found.items())


class Run:
    """Losses, seconds and peak memory of some steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.memory_gib = 0.0
        self.parts = ""

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


def fast_run(config: Any, encode: Callable[[int], Sample]) -> tuple[Run, list[list[int]], float, float]:
    """The loop behind `geofix train`; its batches, and how far its loss and that of transformers in bf16 are from that
    of float32, for its last weights.
    """
    settings = settings_of()
    model = random_model(config)
    fast = prepare_model(model, settings)
    program = Timed(fast, encode, SAMPLES, settings, settings.sft)
    torch.cuda.reset_peak_memory_stats()
    run = Run()
    with tempfile.TemporaryDirectory() as folder, program.watching():
        progress = Loop(model, program, settings, Path(folder)).run()
    run.losses = [entry["loss"] for entry in progress.history]
    run.seconds = [entry["seconds"] for entry in progress.history]
    run.parts = program.parts(run.seconds, 5)
    run.memory_gib = torch.cuda.max_memory_allocated() / GIB
    batches = [program.batch(step) for step in range(PLAIN_STEPS)]
    model.eval()
    with torch.no_grad():
        compared = [[encode(number) for number in numbers] for numbers in batches[: SAMPLES // BATCH]]
        ours = [fast.loss(fast.pack(chosen)).item() for chosen in compared]
        theirs = [model(**plain_inputs(chosen), use_cache=False).loss.item() for chosen in compared]
        model.float()
        exact = [model(**plain_inputs(chosen), use_cache=False).loss.item() for chosen in compared]

    def apart(losses: list[float]) -> float:
        return statistics.mean(abs(one / true - 1) for one, true in zip(losses, exact, strict=True))

    return run, batches, apart(ours), apart(theirs)


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


def grpo_run(config: Any, shape: Shape) -> tuple[Run, float, float]:
    """Three GRPO steps; the seconds of the last generation, and how far the first's log-probabilities are off."""
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
    return run, drawn_s[-1], progress.history[0]["engine_gap"]


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


def mixed_settings(config: Any, shape: Shape, samples: list[Sample], room: float) -> TrainSettings:
    """The packs that fit: those of the longest sample, all its pictures as one."""
    tuner = TunerSettings(
        max_steps=MIXED_STEPS, batch_size=MIXED_BATCH, micro_batch=MIXED_BATCH, learning_rate=RATE, warmup_share=0.0,
        schedule="constant", max_tokens=MIXED_TOKENS,
    )  # fmt: skip
    longest = max(samples, key=lambda one: len(one.ids))
    patches = sum(rows * columns for _, rows, columns in longest.grids)
    settings = settings_of(sft=tuner, image_max_pixels=patches * shape.patch**2)
    text = len(longest.ids) - patches // 4
    return fit(MemoryShape.of(config.to_dict()), settings, "sft", text, 1, len(samples), room)[0]


def mixed_run(config: Any, shape: Shape) -> tuple[Run, float, list[float]]:
    """Samples of mixed length; utilization of the steps that compile nothing, and the seconds of those that do.

    A new shape takes seconds to compile once; of a training run of thousands of steps that is nothing.
    """
    samples = [mixed_sample(number, shape) for number in range(MIXED_SAMPLES)]
    settings = mixed_settings(config, shape, samples, ROOM * torch.cuda.mem_get_info()[1])
    print(f"   mixed lengths: {fit_text(settings, 'sft')}", flush=True)
    model = random_model(config)
    torch.cuda.reset_peak_memory_stats()
    program = Timed(prepare_model(model, settings), samples.__getitem__, len(samples), settings, settings.sft)
    run = Run()
    with tempfile.TemporaryDirectory() as folder, program.watching():
        progress = Loop(model, program, settings, Path(folder)).run()
    run.seconds = [entry["seconds"] for entry in progress.history]
    run.losses = [entry["loss"] for entry in progress.history]
    run.parts = program.parts(run.seconds, MIXED_SETTLED)
    run.memory_gib = torch.cuda.max_memory_allocated() / GIB
    usual_s = statistics.median(run.seconds)
    compiling = [step for step, seconds in enumerate(run.seconds) if seconds > COMPILES * usual_s]
    flops = 0.0
    steady = [step for step in range(MIXED_STEPS) if step not in compiling]
    for step in steady:
        chosen = [samples[number] for number in program.batch(step)]
        trained = sum(label != IGNORED for one in chosen for label in one.labels[1:])
        grids = [grid for one in chosen for grid in one.grids]
        flops += step_flops(config, [len(one.ids) for one in chosen], grids, trained)
    return (
        run,
        flops / sum(run.seconds[step] for step in steady) / PEAK_FLOPS,
        [run.seconds[step] for step in compiling],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="qwen2.5-vl-7b")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="plain goes with sft")
    given = parser.parse_args()
    name, parts = given.model, given.only
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
    wanted, wanted_mixed, wanted_times = WANTED[name]
    goals = []

    def show(name: str, run: Run) -> float:
        utilization = flops / run.step_s / PEAK_FLOPS
        print(f"   {name:22} {run.step_s * 1e3:6.0f} ms a step, {sum(lengths) / run.step_s:6.0f} tokens/s, MFU "
              f"{utilization:.3f}, {run.memory_gib:.0f} GiB, loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f} "
              f"({len(run.losses)} steps, first {run.seconds[0]:.0f} s)", flush=True)  # fmt: skip
        return utilization

    if "sft" in parts:
        fast, batches, ours_off, theirs_off = fast_run(config, encode)
        utilization = show("geofix", fast)
        print(f"   ms of a step: {fast.parts}", flush=True)
        free()
        patches = BATCH * shape.grid[1] * shape.grid[2]
        load = Load(sum(lengths), patches, trained)
        forecast = memory_needed(MemoryShape.of(config.to_dict()), settings_of(), "sft", load)
        forecast_off = abs(forecast.total / GIB / fast.memory_gib - 1)
        print(f"   dry run said {forecast.total / GIB:.1f} GiB, {forecast_off:.1%} off; losses of the same weights "
              f"from float32: ours {ours_off:.2%}, transformers' in bf16 {theirs_off:.2%}", flush=True)  # fmt: skip
        goals += [
            Goal("model FLOPs utilization", utilization, at_least=wanted),
            Goal("steps without running out of memory", len(fast.losses), at_least=FAST_STEPS),
            Goal("share by which the dry run's memory is off", forecast_off, at_most=0.10),
            Goal("our losses' distance from float32, times transformers'", ours_off / max(theirs_off, 1e-3), at_most=2),
        ]
    if "mixed" in parts:
        mixed, mixed_utilization, compiling = mixed_run(config, shape)
        print(f"   mixed lengths, 1 to 3 pictures: MFU {mixed_utilization:.3f} in {MIXED_STEPS - len(compiling)} of "
              f"{MIXED_STEPS} steps, {mixed.memory_gib:.0f} GiB; the others compiled: "
              f"{' '.join(f'{one:.1f}' for one in compiling)} s", flush=True)  # fmt: skip
        print(f"   ms of a step: {mixed.parts}", flush=True)
        goals.append(Goal("the same, mixed lengths", mixed_utilization, at_least=wanted_mixed))
        free()
    if "grpo" in parts:
        steps, draw_s, gap = grpo_run(config, shape)
        print(f"   GRPO, {GROUPS} prompts with 2 Mpx, G = {SIZE}, {NEW_TOKENS} tokens: {steps.seconds[-1]:.1f} s a "
              f"step, {draw_s:.1f} s of them rollouts, {steps.memory_gib:.0f} GiB; log-probabilities of engine and "
              f"trainer {gap:.4f} apart in the first step", flush=True)  # fmt: skip
        goals.append(Goal("GRPO steps", len(steps.losses), at_least=3))
        free()
    if "plain" in parts and "sft" in parts:
        plain = plain_run(config, encode, batches)
        show("transformers", plain)
        free()
        apart = max(abs(a - b) / b for a, b in zip(fast.losses, plain.losses, strict=False))
        fallen = 1 - plain.losses[-1] / plain.losses[0]
        print(f"   losses of transformers: {' '.join(f'{loss:.3f}' for loss in plain.losses)}")
        print(f"   losses of geofix:       {' '.join(f'{loss:.3f}' for loss in fast.losses[:PLAIN_STEPS])}")
        times = plain.step_s / fast.step_s
        print(f"   {times:.1f} times as fast; losses apart by at most {apart:.2%} over the steps", flush=True)
        goals += [
            Goal("times as fast as checkpointed transformers", times, at_least=wanted_times),
            Goal("largest relative difference of the losses", apart, at_most=LOSS_TOLERANCE),
            Goal("share by which the loss of transformers fell", fallen, at_least=0.02),
        ]
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main())
