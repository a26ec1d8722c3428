"""The base model itself as a checkpoint that can be served: what evaluations compare trained models with."""

from pathlib import Path

import polars as pl

from schemas.settings.train import TrainSettings
from tasks.runtime.runner import digest
from tasks.train.chain import vocabulary_samples
from tasks.train.opening import base_folder


def base_name(samples: pl.DataFrame, settings: TrainSettings) -> str:
    """A name that tells base models apart; that of a tiny one follows from what it is built of."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in Path(settings.base).name.lower())[:32]
    of: list[object] = [settings.base]
    if settings.base == "tiny":
        texts = vocabulary_samples(samples).sort("sample_id")["messages_json"].to_list()
        of += [settings.tiny.identity(), settings.seed, settings.image_min_pixels, settings.image_max_pixels, texts]
    return f"base-{plain}-{digest('base', *of)[:8]}"


def base_checkpoint(samples: pl.DataFrame, settings: TrainSettings, folder: Path) -> Path:
    """The folder of the base: where it lies, or built under `folder` of random weights, as training begins with it."""
    if settings.base != "tiny":
        return base_folder(settings.base)
    checkpoint = folder / base_name(samples, settings)
    if not (checkpoint / "config.json").is_file():
        from tasks.train.encoding import conversation_texts  # torch takes seconds to import
        from tasks.train.tiny import build_model, build_processor

        taught = vocabulary_samples(samples)
        texts = [text for conversation in taught["messages_json"] for text in conversation_texts(conversation)]
        processor = build_processor(texts, settings.tiny, settings.image_min_pixels, settings.image_max_pixels)
        processor.save_pretrained(checkpoint)
        build_model(processor, settings.tiny, settings.seed).save_pretrained(checkpoint)  # writes config.json
    return checkpoint
