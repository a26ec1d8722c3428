"""What a training run would take: samples, steps and memory of each phase, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from schemas.messages import parts_of, texts_of
from schemas.settings.train import TrainingPhase, TrainSettings
from tasks.train.chain import samples_of
from tasks.train.memory import PADDED, Gpu, Needed, Shape, load_of, memory_advice, memory_needed
from tasks.train.opening import base_folder, check_folder
from tasks.train.schedule import steps_of

CHARS_A_TOKEN = 3.3  # of English and JSON in Qwen's tokenizer; longer texts are estimated by it
LOOKED_AT = 2000  # samples whose length is looked at


@dataclass(frozen=True)
class Forecast:
    """One phase of a run."""

    phase: TrainingPhase
    samples: int
    steps: int
    text_tokens: int  # of the longest sample that was looked at
    pictures: int
    memory: Needed
    advice: str
    engine_share: float = 0.0  # of the GPU's memory that vLLM takes beside the trainer

    def wanted(self, total: float) -> float:
        """Bytes it takes of a GPU that has `total`."""
        return self.memory.total + self.engine_share * total

    def fits(self, gpu: Gpu) -> bool:
        return self.wanted(gpu.total) <= gpu.total


def forecast(samples: pl.DataFrame, settings: TrainSettings) -> list[Forecast]:
    """Every phase that has samples."""
    found = []
    for phase in settings.phases:
        mine = samples_of(samples, phase, settings)
        if not mine.is_empty():
            found.append(forecast_phase(mine, phase, settings))
    return found


def forecast_phase(samples: pl.DataFrame, phase: TrainingPhase, settings: TrainSettings) -> Forecast:
    """One phase over its samples."""
    chars, pictures = zip(*(size_of(one) for one in samples.head(LOOKED_AT)["messages_json"]), strict=True)
    tokens = max(1, round(max(chars) / CHARS_A_TOKEN))
    shape = shape_of(settings)
    load = load_of(settings, phase, tokens, max(pictures), samples.height, shape.patch)
    memory = memory_needed(shape, settings, phase, load)
    by_vllm = phase == "grpo" and settings.grpo.engine == "vllm"
    return Forecast(
        phase, samples.height, _steps(phase, samples.height, settings), tokens, max(pictures),
        memory, memory_advice(settings, phase, memory), settings.grpo.vllm.memory_share if by_vllm else 0.0,
    )  # fmt: skip


def shape_of(settings: TrainSettings) -> Shape:
    """The sizes of the base, from its configuration alone."""
    if settings.base != "tiny":
        return check_folder(base_folder(settings.base), f"train.base={settings.base}")
    tiny = settings.tiny
    return Shape(
        tiny.hidden, tiny.layers, tiny.intermediate, tiny.hidden, tiny.vocabulary, True, tiny.vision_hidden,
        tiny.vision_layers, -(-2 * tiny.vision_hidden // PADDED) * PADDED, tiny.vision_layers,
    )  # fmt: skip


def _steps(phase: TrainingPhase, samples: int, settings: TrainSettings) -> int:
    if phase != "grpo":
        tuner = settings.sft if phase == "sft" else settings.cold_start
        return steps_of(samples, tuner.batch_size, tuner.epochs, tuner.max_steps)
    grpo = settings.grpo
    return steps_of(samples, min(grpo.prompts_per_step, samples), grpo.epochs, grpo.max_steps)


def size_of(messages_json: str) -> tuple[int, int]:
    """Characters of text and pictures of a conversation."""
    chars = pictures = 0
    for message in json.loads(messages_json):
        texts = texts_of(message)
        chars += sum(len(text) for text in texts)
        pictures += len(parts_of(message["content"])) - len(texts)
    return chars, pictures
