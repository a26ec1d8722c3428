"""What a training run would take: samples, steps and memory of each phase, before anything is loaded."""

import json
import shutil
from dataclasses import dataclass

import polars as pl

from schemas.messages import parts_of, texts_of
from schemas.settings.train import TrainingPhase, TrainSettings
from tasks.train.chain import samples_of
from tasks.train.memory import PADDED, ROOM, Gpu, Needed, Shape, fit, memory_advice
from tasks.train.opening import base_folder, check_folder, training_path
from tasks.train.schedule import steps_of

CHARS_A_TOKEN = 3.3  # of English and JSON in Qwen's tokenizer; longer texts are estimated by it
LOOKED_AT = 2000  # samples whose length is looked at
VLLM_GROUPS = 8  # rollouts of a prompt: so many vLLM wrote faster than the embedded engine, 32 it did not


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
    settings: TrainSettings  # with what `auto` stands for on the GPU in question

    @property
    def engine_share(self) -> float:
        """Of the GPU's memory that vLLM takes beside the trainer."""
        grpo = self.settings.grpo
        return grpo.vllm.memory_share if self.phase == "grpo" and grpo.engine == "vllm" else 0.0

    def wanted(self, total: float) -> float:
        """Bytes it takes of a GPU that has `total`."""
        return self.memory.total + self.engine_share * total

    def fits(self, gpu: Gpu) -> bool:
        return self.wanted(gpu.total) <= gpu.total


def forecast(samples: pl.DataFrame, settings: TrainSettings, gpu: Gpu | None = None) -> list[Forecast]:
    """Every phase that has samples, on this GPU."""
    phases = []
    for phase in settings.phases:
        mine = samples_of(samples, phase, settings)
        if not mine.is_empty():
            phases.append(forecast_phase(mine, phase, settings, None if gpu is None else gpu.total))
    return phases


def forecast_phase(
    samples: pl.DataFrame, phase: TrainingPhase, settings: TrainSettings, total: float | None = None
) -> Forecast:
    """One phase over its samples, on a GPU of `total` bytes; without one no pack is chosen."""
    chars, pictures = zip(
        *(size_of(conversation) for conversation in samples.head(LOOKED_AT)["messages_json"]), strict=True
    )
    tokens = max(1, round(max(chars) / CHARS_A_TOKEN))
    shape = shape_of(settings)
    if total is None:
        settings = settings.model_copy(update={"pack_tokens": settings.pack_limit})

    def fitted(engine: str) -> tuple[TrainSettings, Needed]:
        chosen = settings.model_copy(update={"grpo": settings.grpo.model_copy(update={"engine": engine})})
        beside = settings.grpo.vllm.memory_share if phase == "grpo" and engine == "vllm" else 0.0
        return fit(shape, chosen, phase, tokens, max(pictures), samples.height, (ROOM - beside) * (total or 0.0))

    chosen, memory = fitted("embedded" if settings.grpo.engine == "auto" else settings.grpo.engine)
    if settings.grpo.engine == "auto" and total is not None and phase == "grpo" and is_for_vllm(settings):
        beside, needed = fitted("vllm")
        unchanged = (settings.gradient_checkpointing, settings.optimizer)
        if (beside.gradient_checkpointing, beside.optimizer) == unchanged:  # or its speed would be paid for elsewhere
            chosen, memory = beside, needed
    return Forecast(
        phase, samples.height, _steps(phase, samples.height, settings), tokens, max(pictures),
        memory, memory_advice(chosen, phase, memory), chosen,
    )  # fmt: skip


def is_for_vllm(settings: TrainSettings) -> bool:
    """Whether vLLM is here, can write these rollouts, and was measured faster (docs/train-gpu.md)."""
    if settings.workers > 1 or settings.grpo.group_size > VLLM_GROUPS:
        return False
    if settings.base != "tiny" and training_path(base_folder(settings.base)) != "packed":
        return False
    from tasks.runtime.on_ray.model_pools import vllm_python  # and with it Ray

    return shutil.which(vllm_python(settings.grpo.vllm.python)) is not None


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
