"""What a training run would take: samples, steps and memory of each stage, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from schemas.settings.train import TrainingStage, TrainSettings
from tasks.train.chain import samples_of
from tasks.train.memory import PADDED, Gpu, Needed, Shape, advice, load_of, needed
from tasks.train.opening import base_folder, check_folder
from tasks.train.schedule import steps_of

CHARS_A_TOKEN = 3.3  # of English and JSON in Qwen's tokenizer; longer texts are estimated by it
LOOKED_AT = 2000  # samples whose length is looked at


@dataclass(frozen=True)
class Forecast:
    """One stage of a run."""

    training_stage: TrainingStage
    samples: int
    steps: int
    text_tokens: int  # of the longest sample that was looked at
    pictures: int
    memory: Needed
    advice: str

    def fits(self, gpu: Gpu) -> bool:
        return self.memory.total <= gpu.total


def forecast(samples: pl.DataFrame, settings: TrainSettings) -> list[Forecast]:
    """Every stage that has samples."""
    found = []
    for training_stage in settings.stages:
        mine = samples_of(samples, training_stage, settings)
        if not mine.is_empty():
            found.append(forecast_stage(mine, training_stage, settings))
    return found


def forecast_stage(samples: pl.DataFrame, training_stage: TrainingStage, settings: TrainSettings) -> Forecast:
    """One stage over its samples."""
    chars, pictures = zip(*(size_of(one) for one in samples.head(LOOKED_AT)["messages_json"]), strict=True)
    tokens = max(1, round(max(chars) / CHARS_A_TOKEN))
    load = load_of(settings, training_stage, tokens, max(pictures), samples.height)
    memory = needed(shape_of(settings), settings, training_stage, load)
    return Forecast(
        training_stage, samples.height, _steps(training_stage, samples.height, settings), tokens, max(pictures),
        memory, advice(settings, training_stage, memory),
    )  # fmt: skip


def shape_of(settings: TrainSettings) -> Shape:
    """The sizes of the base, from its configuration alone."""
    if settings.base != "tiny":
        folder = base_folder(settings.base)
        return Shape.of(check_folder(folder, f"train.base={settings.base}"))
    tiny = settings.tiny
    return Shape(
        tiny.hidden, tiny.layers, tiny.intermediate, tiny.hidden, tiny.vocabulary, True, tiny.vision_hidden,
        tiny.vision_layers, -(-2 * tiny.vision_hidden // PADDED) * PADDED, tiny.vision_layers,
    )  # fmt: skip


def _steps(training_stage: TrainingStage, samples: int, settings: TrainSettings) -> int:
    if training_stage != "grpo":
        tuner = settings.sft if training_stage == "sft" else settings.cold_start
        return steps_of(samples, tuner.batch_size, tuner.epochs, tuner.max_steps)
    grpo = settings.grpo
    return steps_of(samples, min(grpo.prompts_per_step, samples), grpo.epochs, grpo.max_steps)


def size_of(messages_json: str) -> tuple[int, int]:
    """Characters of text and pictures of a conversation."""
    chars = pictures = 0
    for message in json.loads(messages_json):
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        chars += sum(len(part["text"]) for part in parts if part["type"] == "text")
        pictures += sum(part["type"] != "text" for part in parts)
    return chars, pictures
