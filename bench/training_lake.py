"""A small lake as the earlier stages leave it, and settings of a few quick training steps.

Labelled pictures, an approved snapshot, trajectories and regimes: what tests and benchmarks of training read.
"""

import io
import json
import random
from datetime import UTC, datetime
from typing import Any

from PIL import Image, ImageDraw

from schemas.messages import image_part, text_part
from schemas.settings.train import ColdStartSettings, GrpoSettings, TinySettings, TrainSettings, TunerSettings
from tasks.lake import Commit, Lake
from tasks.recipes.spotagent import RECIPE

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
