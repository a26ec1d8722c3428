"""Exports are read by the libraries they are made for, and the tagged form goes back without loss."""

import io
import json

import polars as pl
import pytest
from datasets import load_dataset
from PIL import Image
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from schemas.errors import InputError
from schemas.messages import image_part, text_part
from schemas.settings.synthesize import SynthesizeSettings
from schemas.settings.train import TinySettings
from tasks.agent.tagged import canonical_messages
from tasks.lake import Commit, Lake
from tasks.recipes.spotagent import RECIPE
from tasks.synthesize import report
from tasks.synthesize.exports import export, read_tagged
from tasks.train.tiny import build_processor


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    data = io.BytesIO()
    Image.new("RGB", (120, 80), "teal").save(data, "JPEG")
    sha256 = lake.images.put(data.getvalue(), "jpg")
    function = {"name": "image_zoom_in_tool", "arguments": '{"bbox_2d": [0, 0, 50, 50]}'}
    call = {"id": "call_1", "type": "function", "function": function}
    zoomed = [text_part('{"bbox_2d": [0, 0, 50, 50]}'), image_part(sha256)]
    messages = [
        *RECIPE.prompt.opening(image_part(sha256)),
        {"role": "assistant", "content": "<think>東京?</think>", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": zoomed},
        {"role": "assistant", "content": "<think>x</think><answer>\\nCountry: Japan\\n</answer>"},
    ]
    row = {
        "trajectory_id": "t1", "image_id": "i1", "recipe": "spotagent", "verdict": "kept", "end_reason": "answered",
        "messages_json": json.dumps(messages, ensure_ascii=False),
        "tools_json": json.dumps(RECIPE.prompt.tool_schemas()),
        "calls_json": json.dumps([{"name": "image_zoom_in_tool", "succeeded": True}]), "reasons": [], "error_km": 0.5,
        "tool_pattern": "image_zoom_in_tool",
    }  # fmt: skip
    where = {"image_id": "i1", "sha256": sha256, "lat": 35.0, "lon": 139.0}
    source = {"kind": "photo", "source": "test", "source_id": "1", "extension": "jpg"}
    lake.upsert("images", [{**where, **source, "licence": "CC BY 4.0", "attribution": "me"}], Commit("r", 0))
    lake.upsert("labels", [{**where, "split": "train", "country": "Japan", "city": "Tokyo"}], Commit("r", 0))
    failed = {**row, "trajectory_id": "t2", "verdict": "rejected", "reasons": ["too_far"], "error_km": 900.0}
    lake.upsert("trajectories", [row, failed], Commit("r", 0))
    return lake


def test_trl_reads_its_export_with_every_picture(lake, tmp_path):
    file = tmp_path / "trl.parquet"
    assert export(lake, "spotagent", "trl", file) == 1
    rows = load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
    tiny = TinySettings(vocabulary=400, hidden=64, layers=1, intermediate=64, vision_hidden=32, vision_layers=1)
    processor = build_processor(["Where?"], tiny, 784, 28 * 28 * 4)
    images = [Image.open(io.BytesIO(picture["bytes"])) for picture in rows[0]["images"]]
    batch = DataCollatorForVisionLanguageModeling(processor)([{"messages": rows[0]["messages"], "images": images}])
    assert batch["image_grid_thw"].shape[0] == 2
    text = processor.tokenizer.decode(batch["input_ids"][0])
    assert "<tools>" in text and "<tool_response>" in text and "東京" in text
    assert rows[0]["licence"] == "CC BY 4.0" and rows[0]["attribution"] == "me"


def test_the_tagged_form_goes_back_without_loss(lake, tmp_path):
    file = tmp_path / "tagged.jsonl"
    export(lake, "spotagent", "tagged", file)
    stored = json.loads(lake.read("trajectories").filter(pl.col("trajectory_id") == "t1")["messages_json"][0])
    assert read_tagged(json.loads(file.read_text())) == canonical_messages(stored)


def test_what_cannot_be_exported_is_said_in_one_line(lake, tmp_path):
    with pytest.raises(InputError, match="no form 'csv'"):
        export(lake, "spotagent", "csv", tmp_path / "x")
    with pytest.raises(InputError, match="`geofix verl` writes what verl trains from"):
        export(lake, "spotagent", "verl", tmp_path / "x")
    with pytest.raises(InputError, match="no kept trajectories of the recipe 'geovista'"):
        export(lake, "geovista", "trl", tmp_path / "x")


def test_the_report_counts_yields_errors_patterns_and_tools(lake):
    made = report(lake, SynthesizeSettings())
    read = {name: pl.read_csv(path) for name, path in made.files.items() if name.endswith(".csv")}
    assert read["yields.csv"].row(0) == ("spotagent", 1, 2, 1, 1, 0.5)
    assert read["reasons.csv"].row(0) == ("spotagent", "too_far", 1)
    assert read["errors.csv"].select("attempts", "within_1_km", "within_2500_km").row(0) == (2, 0.5, 1.0)
    assert read["tool_patterns.csv"].row(0) == ("spotagent", "image_zoom_in_tool", 2, 1, 0.5)
    assert read["tools.csv"].row(0) == ("spotagent", "image_zoom_in_tool", 2, 1.0, 1.0, 1.0)
    assert "## Tool patterns" in made.markdown
