"""A small lake as the earlier stages leave it: labelled pictures, a snapshot, trajectories, regimes."""

import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from schemas.messages import image_part, text_part
from schemas.settings.train import ColdStartSettings, GrpoSettings, TinySettings, TrainSettings, TunerSettings
from tasks.agent.prompts import spotagent as prompts
from tasks.lake import Commit, Lake
from tasks.train.fast.packing import IGNORED, Sample

COUNTRIES = (("Norland", 61.0, 9.0, "navy"), ("Sudland", -31.0, 118.0, "green"), ("Ostland", 44.0, 71.0, "maroon"))


def small(**changes: Any) -> TrainSettings:
    """Settings of a few quick steps."""
    values: dict[str, Any] = {
        "precision": "fp32",
        "gradient_checkpointing": False,
        "threads": 1,
        "image_min_pixels": 28 * 28 * 2,
        "image_max_pixels": 28 * 28 * 6,
        "answer_decimals": 2,
        "tiny": TinySettings(vocabulary=400, hidden=64, layers=1, intermediate=64, vision_hidden=32, vision_layers=1),
        "sft": TunerSettings(epochs=2, batch_size=4, micro_batch=4, learning_rate=3e-3),
        "cold_start": ColdStartSettings(epochs=2, batch_size=2, micro_batch=2, learning_rate=1e-3, replay=1.0),
        "grpo": GrpoSettings(
            max_steps=2,
            group_size=4,
            prompts_per_generation=2,
            prompts_per_step=2,
            micro_batch=8,
            learning_rate=1e-4,
            max_completion_tokens=12,
        ),
    }
    return TrainSettings(**{**values, **changes})


def trajectory(sha256: str, country: str, city: str, lat: float, lon: float) -> list[dict[str, Any]]:
    """Messages as the synthesize stage stores them: a zoom with a picture, two calls at once, an answer."""

    def call(number: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}

    answer = f"<answer>\nCountry: {country}\nCity: {city}\nLatitude: {lat:.4f}\nLongitude: {lon:.4f}\n</answer>"
    return [
        {"role": "system", "content": prompts.SYSTEM.format(max_tool_calls=6)},
        prompts.picture_question(image_part(sha256)),
        {
            "role": "assistant",
            "content": f"<think>A road, and a sign.\n\nIt may be {country}.</think>",
            "tool_calls": [call("zoom", "image_zoom_in_tool", {"bbox_2d": [0, 0, 20, 20]})],
        },
        {
            "role": "tool",
            "tool_call_id": "zoom",
            "content": [text_part(json.dumps({"description": f'It reads "{city}".'})), image_part(sha256)],
        },
        {
            "role": "assistant",
            "content": "<think>Two ways to check.</think>",
            "tool_calls": [
                call("a", "search_web", {"query": city}),
                call("b", "maps_geocode", {"address": f"{city}, {country}"}),
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": json.dumps({"results": [{"content": f"{city}, {country}"}]})},
        {"role": "tool", "tool_call_id": "b", "content": json.dumps({"results": [{"lat": lat, "lon": lon}]})},
        {"role": "assistant", "content": f"<think>Both agree.</think>{answer}"},
    ]


def fill(lake: Lake, pictures: int = 8, status: str = "approved") -> str:
    """Write everything training reads; returns the snapshot's id."""
    draw = random.Random(7)
    images, labels, trajectories, regimes = [], [], [], []
    for number in range(pictures):
        country, lat, lon, colour = COUNTRIES[number % len(COUNTRIES)]
        lat, lon, city = lat + draw.uniform(-2, 2), lon + draw.uniform(-2, 2), f"{country[:3]}burg"
        picture = Image.new("RGB", (160, 120), colour)
        ImageDraw.Draw(picture).rectangle([0, 80, 40 + 10 * number, 120], fill="gray")
        out = io.BytesIO()
        picture.save(out, "JPEG")
        sha256 = lake.images.put(out.getvalue(), "jpg")
        image_id = f"image-{number}"
        split = "benchmark" if number == pictures - 1 else "train"
        shared = {"image_id": image_id, "lat": lat, "lon": lon, "sha256": sha256}
        images.append(
            {
                **shared,
                "kind": "photo",
                "source": "mapillary",
                "source_id": f"7700{number}",
                "licence": "CC BY-SA 4.0",
                "attribution": f"Image 7700{number} by somebody-{number} on Mapillary, CC BY-SA 4.0",
                "extension": "jpg",
            }
        )
        labels.append({**shared, "country": country, "city": city, "split": split, "localizability": "localizable"})
        trajectories.append(
            {
                "trajectory_id": f"trajectory-{number}",
                "image_id": image_id,
                "recipe": "spotagent",
                "verdict": "kept" if number % 2 == 0 else "rejected",
                "messages_json": json.dumps(trajectory(sha256, country, city, lat, lon)),
            }
        )
        regimes.append(
            {"image_id": image_id, "policy": "base", "k": 8, "kept": number % 3 != 1, "phase": 2 - number % 2}
        )
    commit = Commit("earlier", 1)
    versions = {"images": lake.upsert("images", images, commit), "labels": lake.upsert("labels", labels, commit)}
    lake.upsert("trajectories", trajectories, commit)
    lake.upsert("regimes", regimes, commit)
    snapshot = {
        "snapshot_id": "snapshot-1",
        "table_versions_json": json.dumps(versions),
        "status": status,
        "reviewer": "Ada",
        "report": "reports/snapshot-1/index.html",
        "created_at": datetime.now(UTC),
        "reviewed_at": datetime.now(UTC),
        "written_at": datetime.now(UTC),
    }
    lake.upsert("snapshots", [snapshot], commit)
    return "snapshot-1"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def filled() -> Callable[..., str]:
    return fill


@pytest.fixture
def settings() -> Callable[..., TrainSettings]:
    return small


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
