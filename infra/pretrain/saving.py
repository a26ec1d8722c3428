"""A pretrained base as a folder any Qwen2.5-VL loader opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from infra.pretrain.model import Learner


def save(learner: Learner, start: Path, output: Path) -> None:
    """Weights in bf16 beside the processor's and the configuration's files of `start`."""
    with torch.no_grad():
        for weight, master in zip(learner.weights, learner.masters, strict=True):
            weight.copy_(master)
    learner.model.to(torch.bfloat16).save_pretrained(output)
    for path in start.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not (output / path.name).exists():
            shutil.copy(path, output / path.name)
