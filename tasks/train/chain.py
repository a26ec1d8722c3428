"""The chain of models: which one each phase makes, from which parent and which samples.

A model's id follows from its phase, settings, samples and parent, so the whole chain is known before any of it is
trained, and the same inputs name the same models on every machine.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import InputError
from schemas.settings.train import RehearsalSettings, TrainingPhase, TrainSettings
from tasks.agent.render import TOOLS_HEAD, TOOLS_TAIL
from tasks.recipes.recipe import rollout_prompt
from tasks.recipes.rewards import reward_words
from tasks.runtime.runner import digest

# Every field but the per-phase sections, which are added for the phase alone: another GRPO rate must not retrain SFT.
_SECTIONS = {"sft", "cold_start", "grpo", "tiny", "phases"}
VERSION = 2  # raise it when the same settings and samples make another model
# Training order: by the pictures' bytes, which are the same in every lake, where ids are keyed by the lake.
BY_BYTES = ("sha256", "training_stage", "sample_id")


@dataclass(frozen=True)
class Link:
    """One model of the chain."""

    phase: TrainingPhase
    model_id: str
    parent_id: str | None  # none: the base model itself
    samples: int
    samples_digest: str


def phase_identity(settings: TrainSettings, phase: TrainingPhase) -> dict[str, Any]:
    """Of the settings, what decides the outcome of one phase, given its parent."""
    whole = settings.identity()
    shared = {name: value for name, value in whole.items() if name not in _SECTIONS}
    tiny = {"tiny": whole["tiny"]} if settings.base == "tiny" else {}
    if settings.rehearsal is None or phase == "grpo":
        shared.pop("rehearsal")  # GRPO has none
    else:
        shared["rehearsal"] = {"sha256": rehearsal_digest(settings.rehearsal), "share": settings.rehearsal.share}
    return {**shared, **tiny, "training_stage": phase, phase: whole[phase], **_words(settings, phase)}


def _words(settings: TrainSettings, phase: TrainingPhase) -> dict[str, str]:
    """What a phase tells models beyond its samples: how tools are offered, and what rollouts and rewards ask."""
    if phase == "sft":
        return {}
    words: list[Any] = [TOOLS_HEAD, TOOLS_TAIL]
    if phase == "grpo":
        prompt = rollout_prompt(settings.recipe, settings.grpo.max_turns, settings.prompt)
        words += [prompt.opening_words, reward_words(settings.recipe, settings.grpo.reward)]
    return {"words": digest(words)}


def rehearsal_file(settings: RehearsalSettings) -> Path:
    """The file of conversations to rehearse; InputError in one line if it is not there."""
    file = Path(settings.file)
    if not file.is_file():
        raise InputError(f"train.rehearsal.file: {file} is not there; name a Parquet file, or leave rehearsal out")
    return file


def rehearsal_digest(settings: RehearsalSettings) -> str:
    """The hash of the file's bytes: they decide the model, its name does not."""
    file = rehearsal_file(settings)
    info = file.stat()
    return _file_hash(file, info.st_size, info.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _file_hash(file: Path, size: int, changed: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def chain(samples: pl.DataFrame, settings: TrainSettings) -> list[Link]:
    """The models to be made, in order. A phase without samples has a link too, but is not a parent."""
    links: list[Link] = []
    parent: str | None = None
    # The tiny base learns its tokenizer from the text of these samples, so they decide what it is.
    vocabulary = _digest(vocabulary_samples(samples)) if settings.base == "tiny" else None
    for phase in settings.phases:
        mine = samples_of(samples, phase, settings)
        samples_digest = _digest(mine)
        model_id = digest("model", VERSION, phase_identity(settings, phase), samples_digest, parent or vocabulary)
        links.append(Link(phase, model_id, parent, mine.height, samples_digest))
        if mine.height:
            parent = model_id
    return links


def vocabulary_samples(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples whose text the tiny base's tokenizer is learned from.

    Those of GRPO count only where there are no others: Pass@K of a model finds them after that model was trained.
    """
    others = samples.filter(pl.col("training_stage") != "grpo")
    return others if others.height else samples


def samples_of(samples: pl.DataFrame, phase: TrainingPhase, settings: TrainSettings) -> pl.DataFrame:
    """The samples of one phase, in training order: cold start with its replayed SFT samples among them."""
    mine = samples.filter(pl.col("training_stage") == phase).sort("phase", *BY_BYTES)
    if phase == "cold_start" and mine.height:
        replayed = samples.filter(pl.col("training_stage") == "sft").sort(*BY_BYTES)
        count = min(replayed.height, round(mine.height * settings.cold_start.replay))
        mine = pl.concat([mine, replayed.head(count)]).sort(*BY_BYTES)
    return mine


def _digest(samples: pl.DataFrame) -> str:
    """What the trainer sees of the samples; run ids, times and the snapshot's name do not matter to it.

    Row by row: all samples of a large set in one text would take gigabytes.
    """
    seen = samples.sort("training_stage", "sample_id").select("sample_id", "phase", "messages_json", "lat", "lon")
    hasher = hashlib.sha256()
    for row in seen.iter_rows():
        hasher.update(json.dumps(row, ensure_ascii=False).encode())
        hasher.update(b"\n")
    return digest(hasher.hexdigest())
