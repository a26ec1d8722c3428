"""A loaded model made ready for training."""

from __future__ import annotations

from typing import Any

import torch

from schemas.settings.train import TrainSettings
from tasks.train.fast.adapters import add_adapters
from tasks.train.fast.model import FastModel
from tasks.train.fast.padding import pad_vision
from tasks.train.loop import seed_step

ADAPTERS_STEP = -1  # of the seed that new adapters are drawn with


def prepare(model: Any, settings: TrainSettings) -> FastModel:
    """The model made ready in place: on its device, padded, with adapters where they are wanted."""
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    pad_vision(model)
    if settings.lora is not None:
        seed_step(settings.seed, ADAPTERS_STEP)
        add_adapters(model, settings.lora)
    kept = settings.gradient_checkpointing
    return FastModel(model, checkpoint_vision=kept != "none", checkpoint_text=kept == "all")
