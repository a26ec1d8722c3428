"""Qwen3-VL as `train.base`: every phase, serving, and the plain path beside the packed one, on a GPU or a CPU.

The model has random weights and the tokenizer of a tiny base; `--size 2b` has the sizes of Qwen3-VL-2B but for its
vocabulary. SFT must learn, each phase must start from the one before, the served model must answer, and the losses of
both paths must agree for the same weights.

    python -m bench train_base --size 2b --family qwen3_vl
    python -m bench train_base --size small --family qwen3_vl_moe
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.goals import Goal, judge
from bench.training_lake import fill_lake, small_settings
from schemas.settings.train import ColdStartSettings, GrpoSettings, TinySettings, TrainSettings, TunerSettings
from tasks.lake import Lake
from tasks.runtime.stage import open_inputs
from tasks.train.chain import chain, samples_of
from tasks.train.encoding import Encoder, Pictures, PlainEncoder
from tasks.train.fast.families import fast_model
from tasks.train.loading import load_model, open_processor
from tasks.train.plain import PlainModel
from tasks.train.result import Result
from tasks.train.rollouts.sampling import Sampling
from tasks.train.samples import STAGE, compute, held_out
from tasks.train.training import train_model

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 128, "layers": 2, "intermediate": 256, "vision_hidden": 64, "vision_layers": 2},
    "small": {"hidden": 1024, "layers": 12, "intermediate": 3072, "vision_hidden": 512, "vision_layers": 8},
    "2b": {"hidden": 2048, "layers": 28, "intermediate": 6144, "vision_hidden": 1024, "vision_layers": 24},
}
LOSS_TOLERANCE = {torch.bfloat16: 0.02, torch.float32: 1e-4}


def settings_of(family: str, size: str) -> TrainSettings:
    is_tiny = size == "tiny"
    steps = {"batch_size": 4, "micro_batch": 4, "learning_rate": 3e-3 if is_tiny else 1e-4}
    return small_settings(
        base="tiny", precision="bf16", gradient_checkpointing="vision", validation_images=2, validation_steps=100,
        image_max_pixels=4704 if is_tiny else 500_000, image_min_pixels=1568 if is_tiny else 200_000,
        tiny=TinySettings.model_validate({"family": family, "vocabulary": 800, **SIZES[size]}),
        sft=TunerSettings.model_validate({"max_steps": 12, **steps}),
        cold_start=ColdStartSettings.model_validate({"max_steps": 4, "replay": 1.0, **steps}),
        grpo=GrpoSettings(
            max_steps=3, group_size=8, prompts_per_generation=2, prompts_per_step=2, micro_batch=8,
            learning_rate=1e-5, max_completion_tokens=64,
        ),
    )  # fmt: skip


def phases(lake: Lake, settings: TrainSettings, models: Path) -> dict[str, Result]:
    samples = compute(open_inputs(STAGE, lake), settings)[0].drop("id")
    found = {}
    for link in chain(samples, settings):
        began = time.monotonic()
        found[link.phase] = train_model(
            link, samples, settings, models, lake.images, held_out(lake, settings) if link.phase == "sft" else ()
        )
        last = found[link.phase].history[-1]
        print(
            f"   {link.phase}: {found[link.phase].steps} steps in {time.monotonic() - began:.1f} s, loss "
            f"{found[link.phase].history[0]['loss']:.3f} to {last['loss']:.3f}, {last['seconds']:.2f} s a step at last",
            flush=True,
        )
    return found


def paths(lake: Lake, settings: TrainSettings, folder: Path) -> list[Goal]:
    """Loss and seconds of a pass over the same conversations, packed and plain."""
    is_gpu = torch.cuda.is_available()
    kind = torch.bfloat16 if is_gpu else torch.float32
    model = load_model(folder, kind).to("cuda" if is_gpu else "cpu").eval()
    processor = open_processor(folder, settings.image_min_pixels, settings.image_max_pixels)
    pictures = Pictures(lake.images, settings.image_min_pixels, settings.image_max_pixels)
    rows = samples_of(compute(open_inputs(STAGE, lake), settings)[0], "sft", settings)["messages_json"].to_list()[:4]
    # Both are given the turn-by-turn encoding's labels: TRL's template labels one token more for each turn.
    plain = [PlainEncoder(processor, pictures).conversation(one) for one in rows]
    packed = [
        type(one)(one.ids, other.labels, one.pixels, one.grids)
        for one, other in zip([Encoder(processor, pictures).conversation(one) for one in rows], plain, strict=True)
    ]
    found: dict[str, tuple[float, float]] = {}
    for name, fast, given in (
        ("packed", fast_model(model), packed),
        ("plain", PlainModel(model, processor), plain),
    ):
        batch, seconds, loss = fast.pack(given), [], 0.0
        for _ in range(4):
            began = time.monotonic()
            result = fast.loss(batch)
            result.backward()
            loss = result.item()
            model.zero_grad()
            if is_gpu:
                torch.cuda.synchronize()
            seconds.append(time.monotonic() - began)
        found[name] = loss, min(seconds)
        print(f"   {name}: loss {loss:.5f}, {min(seconds):.3f} s forward and backward of {len(given)}", flush=True)
    apart = abs(found["packed"][0] - found["plain"][0]) / found["plain"][0]
    print(f"   packed is {found['plain'][1] / found['packed'][1]:.1f} times as fast", flush=True)
    return [Goal("loss, packed against plain, relative", apart, at_most=LOSS_TOLERANCE[kind])]


def answers(folder: Path) -> Goal:
    from PIL import Image

    from infra.serve.model import Model

    model = Model(folder, 1, 4096)
    picture = Image.effect_noise((400, 300), 90).convert("RGB")
    shown: list[dict[str, Any]] = [{"type": "image", "image": picture}, {"type": "text", "text": "Where?"}]
    question = model.read([{"role": "user", "content": shown}], None, 16)
    [first], [second] = (model.answer([question], Sampling(0)) for _ in range(2))
    return Goal("served: the same answer twice", float(bool(first.ids) and first.ids == second.ids), at_least=1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", choices=["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"], default="qwen3_vl")
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    options = parser.parse_args(arguments or [])
    settings = settings_of(options.family, options.size)
    with tempfile.TemporaryDirectory(prefix="geofix-base-") as name:
        lake = Lake(Path(name) / "lake")
        fill_lake(lake, pictures=12, held_out=2)
        found = phases(lake, settings, Path(name) / "models")
        sft = [entry["loss"] for entry in found["sft"].history]
        goals = [
            Goal("sft: last loss over first", sft[-1] / sft[0], at_most=0.95),
            Goal("grpo: steps", found["grpo"].steps, at_least=3),
            *paths(lake, settings, found["sft"].checkpoint),
            answers(found["grpo"].checkpoint),
        ]
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
