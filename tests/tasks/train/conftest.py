"""A small lake as the earlier stages leave it: labelled pictures, a snapshot, trajectories, regimes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from bench.training_lake import fill_lake, small_settings
from schemas.settings.train import TrainSettings
from tasks.lake import Lake
from tasks.train.token_samples import IGNORED, Sample


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def filled() -> Callable[..., str]:
    return fill_lake


@pytest.fixture
def settings() -> Callable[..., TrainSettings]:
    return small_settings


# A tiny Qwen2.5-VL with windows, grouped heads and an MLP width that needs padding, and random samples for it.
IMAGE, PAD, END = 5, 0, 1
VOCABULARY = 96


def tiny_vl(seed: int = 0, dtype: torch.dtype = torch.float32) -> Qwen2_5_VLForConditionalGeneration:
    text: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        "pad_token_id": PAD,
        "bos_token_id": PAD,
        "eos_token_id": END,
        "tie_word_embeddings": False,
    }
    vision: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 50,
        "num_heads": 2,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
        "initializer_range": 0.1,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
        tie_word_embeddings=False,
    )
    torch.set_num_threads(1)  # more threads only wait for each other on tensors this small
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config).to(dtype)
    model.generation_config.eos_token_id = END
    model.generation_config.pad_token_id = PAD
    return model.eval()


def random_sample(seed: int, grids: tuple[tuple[int, int, int], ...], text: int = 6) -> Sample:
    """Text, each picture between its marks, text; the last tokens are the assistant's."""
    generator = torch.Generator().manual_seed(seed)

    def words(count: int) -> list[int]:
        return torch.randint(10, VOCABULARY, (count,), generator=generator).tolist()

    ids = words(text)
    for _, rows, columns in grids:
        ids += [7, *[IMAGE] * (rows * columns // 4), 8, *words(2)]
    prompt = len(ids)
    ids += words(text)
    patches = sum(rows * columns for _, rows, columns in grids)
    pixels = torch.randn(patches, 3 * 2 * 14 * 14, generator=generator) if grids else None
    return Sample(ids, [IGNORED] * prompt + ids[prompt:], pixels, grids)


def plain_inputs(one: Sample) -> dict[str, torch.Tensor]:
    """What transformers' own forward takes for one sample."""
    ids = torch.tensor([one.ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if one.pixels is not None:
        inputs["pixel_values"] = one.pixels
        inputs["image_grid_thw"] = torch.tensor(one.grids)
        inputs["mm_token_type_ids"] = (ids == IMAGE).int()
    return inputs


@pytest.fixture
def model() -> Qwen2_5_VLForConditionalGeneration:
    return tiny_vl()


@pytest.fixture
def samples() -> list[Sample]:
    return [random_sample(1, ((1, 6, 10),)), random_sample(2, (), 9), random_sample(3, ((1, 4, 4), (1, 10, 6)))]


@pytest.fixture
def plain() -> Callable[[Sample], dict[str, torch.Tensor]]:
    return plain_inputs


@pytest.fixture
def build_tiny() -> Callable[..., Qwen2_5_VLForConditionalGeneration]:
    return tiny_vl


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    return random_sample
