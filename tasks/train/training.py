"""From a link of the chain to its checkpoint: base or parent opened, the right trainer run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers
from transformers import PreTrainedModel, Qwen2_5_VLForConditionalGeneration

from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings
from tasks.imaging.processor import ImageOnlyProcessor, load_processor
from tasks.lake.image_store import ImageStore
from tasks.reward.outcome import Excluded, Truth
from tasks.reward.score import SCORERS, score
from tasks.runtime.steps import Steps
from tasks.train.chain import Link, samples_of
from tasks.train.dataset import Pictures, texts_of
from tasks.train.grpo import Scorer, grpo_trainer
from tasks.train.job import Result, finished, partial_folder, run_job
from tasks.train.tiny import build_model, build_processor, chat_template
from tasks.train.tuner import supervised_trainer


def train_model(
    link: Link,
    all_samples: pl.DataFrame,
    settings: TrainSettings,
    models: Path,
    store: ImageStore,
    report: Callable[[Steps], None] = lambda steps: None,
) -> Result:
    """The link's finished model under `models`."""
    done = finished(models / link.model_id)
    if done is not None:
        return done
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)
    samples = samples_of(all_samples, link.training_stage, settings).to_dicts()
    texts = [text for one in all_samples["messages_json"] for text in texts_of(one)]
    processor, model = _open(link, texts, settings, models)
    pictures = Pictures(store, settings.image_min_pixels, settings.image_max_pixels)

    def make_trainer(output: Path) -> Any:
        if link.training_stage == "grpo":
            return grpo_trainer(model, processor, samples, pictures, settings, scorer(settings.recipe), output)
        tuner = settings.sft if link.training_stage == "sft" else settings.cold_start
        return supervised_trainer(model, processor, samples, pictures, settings, tuner, output)

    return run_job(models / link.model_id, processor, make_trainer, report)


def scorer(recipe: str) -> Scorer:
    """The recipe's reward of a completion; None for one that an outage excludes from its group."""
    if recipe not in SCORERS:
        known = ", ".join(sorted(SCORERS))
        raise GeofixError(f"recipe '{recipe}' has no reward to train with; those that have are {known}")

    def reward(text: str, lat: float, lon: float) -> tuple[float | None, bool]:
        scored = score(recipe, text, Truth(lat, lon))
        return (None, False) if isinstance(scored, Excluded) else (scored.reward, scored.reason is not None)

    return reward


def _open(
    link: Link, texts: list[str], settings: TrainSettings, models: Path
) -> tuple[ImageOnlyProcessor, PreTrainedModel]:
    """The model to start from: the parent's checkpoint, a named base, or a new tiny one."""
    if link.parent_id is not None:
        if finished(models / link.parent_id) is None:
            raise GeofixError(f"{link.training_stage} starts from model {link.parent_id}, which is not trained yet")
        start = str(models / link.parent_id)
    elif settings.base == "tiny":
        start = str(_tiny_base(texts, settings, partial_folder(models / link.model_id) / "base"))
    else:
        start = settings.base
    # Loaded from a folder even when just built: GRPO opens its KL reference from where the model came from.
    # Adapters leave the base as it is, so it may be in bf16; full training keeps fp32 weights under autocast.
    is_small = settings.lora is not None and settings.precision == "bf16" and torch.cuda.is_available()
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        start, dtype=torch.bfloat16 if is_small else torch.float32
    )
    processor = load_processor(start, settings.image_min_pixels, settings.image_max_pixels)
    processor.chat_template = chat_template()
    return processor, model


def _tiny_base(texts: list[str], settings: TrainSettings, folder: Path) -> Path:
    """A folder with a new tiny model; made again after a kill, since it comes out the same."""
    processor = build_processor(texts, settings.tiny, settings.image_min_pixels, settings.image_max_pixels)
    build_model(processor, settings.tiny, settings.seed).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
