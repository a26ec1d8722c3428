"""A small lake as the earlier stages leave it, and settings of a few quick training steps.

Labelled pictures, an approved snapshot, trajectories and regimes: what tests and benchmarks of training read.

Tiny LLaVA and Idefics3 checkpoints stand for models without a packed path. Both have an image processor that does
without torchvision. LLaVA's template is one of a line for each turn, and marks no end; Idefics3's is its own, as TRL
ships it, and its pictures become a text of tiles and marks.
"""

import importlib.util
import io
import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from schemas.messages import image_part, text_part
from schemas.settings.train import ColdStartSettings, GrpoSettings, TinySettings, TrainSettings, TunerSettings
from tasks.lake import Commit, Lake
from tasks.recipes.spotagent import RECIPE
from tasks.train.tiny import train_tokenizer

LLAVA_TEMPLATE = """\
{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}\
{% for part in m['content'] %}{% if part['type'] == 'image' %}<|image_pad|>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
TEXTS = ("Where was this picture taken? Latitude: 1.5",)
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny_llava(folder: Path, texts: Iterable[str] = TEXTS, template: str = LLAVA_TEMPLATE) -> Path:
    """LLaVA: every picture is 56 x 56 pixels and 16 tokens."""
    import torch
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, Qwen2Config
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    tokenizer = train_tokenizer(texts, 400)
    seen = CLIPVisionConfig(**SIZES, image_size=56, patch_size=14)
    text = Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, initializer_range=0.1, **SIZES,
    )  # fmt: skip
    picture = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    config = LlavaConfig(vision_config=seen, text_config=text, image_token_index=picture, vision_feature_layer=-1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlavaForConditionalGeneration(config).save_pretrained(folder)
    side = {"height": 56, "width": 56}
    LlavaProcessor(
        LlavaImageProcessorPil(size=side, crop_size=side),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<|image_pad|>",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(folder)
    return folder


def tiny_idefics3(folder: Path, texts: Iterable[str] = TEXTS) -> Path:
    """Idefics3: a picture is cut into tiles of 56 x 56 pixels, with the whole of it last."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.submodule_search_locations
    template = Path(spec.submodule_search_locations[0], "chat_templates", "idefics3.jinja").read_text(encoding="utf-8")
    tokenizer = train_tokenizer(texts, 400)
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["<image>", "<fake_token_around_image>", "<global-img>", "<|begin_of_text|>", "<end_of_utterance>", *rows]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.bos_token, tokenizer.eos_token = "<|begin_of_text|>", "<end_of_utterance>"
    text = {
        "model_type": "llama", "vocab_size": len(tokenizer), "num_key_value_heads": 2, "initializer_range": 0.1,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id, **SIZES,
    }  # fmt: skip
    config = Idefics3Config(
        vision_config={**SIZES, "image_size": 56, "patch_size": 14}, text_config=text, scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    Idefics3Processor(
        Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56}),
        tokenizer,
        image_seq_len=4,
        chat_template=template,
    ).save_pretrained(folder)
    return folder


COUNTRIES = (("Norland", 61.0, 9.0, "navy"), ("Sudland", -31.0, 118.0, "green"), ("Ostland", 44.0, 71.0, "maroon"))


def small_settings(**changes: Any) -> TrainSettings:
    """Settings of a few quick steps."""
    values: dict[str, Any] = {
        "base": "tiny",
        "precision": "fp32",
        "gradient_checkpointing": False,
        "threads": 1,
        "loader_threads": 0,
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
        *RECIPE.prompt.opening(image_part(sha256)),
        {
            "role": "assistant",
            "content": f"<think>A road, and a sign.\n\nIt may be {country}.</think>",
            "tool_calls": [call("zoom", "image_zoom_in_tool", {"bbox_2d": [0, 0, 20, 20]})],
        },
        {
            "role": "tool",
            "tool_call_id": "zoom",
            "content": [text_part(json.dumps({"bbox_2d": [0, 0, 20, 20]})), image_part(sha256)],
        },
        {
            "role": "assistant",
            "content": f'<think>It reads "{city}". Two ways to check.</think>',
            "tool_calls": [
                call("a", "search_web", {"query": city}),
                call("b", "maps_geocode", {"address": f"{city}, {country}"}),
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": json.dumps({"results": [{"content": f"{city}, {country}"}]})},
        {"role": "tool", "tool_call_id": "b", "content": json.dumps({"results": [{"lat": lat, "lon": lon}]})},
        {"role": "assistant", "content": f"<think>Both agree.</think>{answer}"},
    ]


def fill_lake(lake: Lake, pictures: int = 8, status: str = "approved", held_out: int = 0) -> str:
    """Write everything training reads; returns the snapshot's id. `held_out` pictures are for validation."""
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
        split = "validation" if pictures - 1 - held_out <= number < pictures - 1 else split
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
                "tools_json": json.dumps(RECIPE.prompt.tool_schemas()),
                "view_width": 160,
                "view_height": 120,
                "end_reason": "answered",
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
