"""A checkpoint's model and processor in memory, for training and for serving."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from schemas.errors import GeofixError
from tasks.agent.render import chat_template
from tasks.imaging.processor import load_processor
from tasks.train.memory import PACKED

WITHOUT_TOOLS = "qwen2_5_vl"  # its own template knows no tools: it is given Qwen3-VL's


def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """The model, all of whose weights were found."""
    model, loaded = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if loaded["missing_keys"]:  # they would be random numbers
        raise GeofixError(f"{folder}: the weights lack {min(loaded['missing_keys'])}; copy the folder again")
    return model


def open_processor(folder: Path, min_pixels: int | None = None, max_pixels: int | None = None) -> Any:
    """The processor with the model's own chat template; a pixel budget is for models of the packed path."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    if kind in PACKED:
        processor = load_processor(str(folder), min_pixels, max_pixels)
        if kind == WITHOUT_TOOLS or not processor.chat_template:
            processor.chat_template = chat_template()
        return processor
    try:
        processor = AutoProcessor.from_pretrained(folder)
    except (ImportError, ValueError, OSError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise GeofixError(f"{folder}: its processor cannot be opened here ({reason})") from error
    if not getattr(processor, "image_processor", None) or not processor.chat_template:
        raise GeofixError(f"{folder}: there is no image processor or no chat template; copy the whole folder")
    return processor
