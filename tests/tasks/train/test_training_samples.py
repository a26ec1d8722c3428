"""Samples come from an approved snapshot alone, each with its licence, and say what the paper says."""

import json
from collections.abc import Callable

import polars as pl

from schemas.messages import image_references
from schemas.settings.train import ColdStartSettings, TrainSettings
from tasks.agent.tagged import canonical, parse
from tasks.lake import Commit, Lake
from tasks.reward.outcome import Truth
from tasks.reward.spotagent import score
from tasks.runtime.runner import Inputs
from tasks.runtime.stage import open_inputs
from tasks.train.samples import STAGE, answer_text, compute

MakeSettings = Callable[..., TrainSettings]


def inputs(lake: Lake) -> Inputs:
    return open_inputs(STAGE, lake)


def test_every_training_stage_gets_its_rows(lake: Lake, filled: Callable[..., str], settings: MakeSettings) -> None:
    filled(lake)
    kept, rejects = compute(inputs(lake), settings())
    assert dict(kept.group_by("training_stage").len().iter_rows()) == {"sft": 7, "cold_start": 4, "grpo": 5}
    assert rejects["reason"].to_list() == []
    assert kept.select(pl.col("licence", "attribution", "sha256", "snapshot_id").is_null().any()).row(0) == (False,) * 4
    assert kept["image_id"].unique().sort().to_list() == [f"image-{n}" for n in range(7)]
    grpo = kept.filter(pl.col("training_stage") == "grpo")
    assert sorted(grpo["phase"]) == grpo["phase"].to_list(), "phase I comes first"


def test_the_credit_goes_with_the_picture_and_not_into_the_messages(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    """Licences ask for it, with the work's own id where there is one; a model must not learn it."""
    filled(lake)
    kept, _ = compute(inputs(lake), settings())
    assert set(kept["training_stage"]) == {"sft", "cold_start", "grpo"}
    for row in kept.to_dicts():
        number = row["image_id"].removeprefix("image-")
        assert row["attribution"] == f"Image 7700{number} by somebody-{number} on Mapillary, CC BY-SA 4.0"
        for secret in (f"7700{number}", "somebody", "apillary", row["image_id"]):
            assert secret not in row["messages_json"]


def test_the_sft_answer_is_worth_everything_and_the_grpo_prompt_holds_none(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    filled(lake)
    kept, _ = compute(inputs(lake), settings(answer_decimals=4))
    for row in kept.filter(pl.col("training_stage") == "sft").to_dicts():
        system, user, assistant = json.loads(row["messages_json"])
        assert score(assistant["content"], Truth(row["lat"], row["lon"])).reward == 1.0
        assert image_references([user]) == [(row["sha256"], "jpg")]
        assert system["role"] == "system"
    for row in kept.filter(pl.col("training_stage") == "grpo").to_dicts():
        assert [message["role"] for message in json.loads(row["messages_json"])] == ["system", "user"]
        for secret in (f"{row['lat']:.2f}", f"{row['lon']:.2f}", "land", "burg", "image-", "somebody"):
            assert secret not in row["messages_json"].replace("landscape", "")


def test_a_cold_start_sample_reads_back_as_its_trajectory(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    filled(lake)
    kept, _ = compute(inputs(lake), settings())
    stored = dict(lake.read("trajectories").select("trajectory_id", "messages_json").iter_rows())
    for row in kept.filter(pl.col("training_stage") == "cold_start").to_dicts():
        assert parse(json.loads(row["messages_json"])) == canonical(json.loads(stored[row["trajectory_id"]]))


def test_long_tool_text_is_cut_and_the_assistants_words_are_not(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    filled(lake)
    whole, _ = compute(inputs(lake), settings())
    cut, _ = compute(inputs(lake), settings(cold_start=ColdStartSettings(tool_text_chars=10)))
    for before, after in zip(whole["messages_json"], cut["messages_json"], strict=True):
        turns = list(zip(parse(json.loads(before)), parse(json.loads(after)), strict=True))
        assert all(was == now for was, now in turns if was["role"] != "tool")
        for was, now in turns:
            if now["role"] == "tool":
                assert len(now["content"] if isinstance(now["content"], str) else now["content"][0]["text"]) == 11
                assert image_references([was]) == image_references([now])


def test_the_snapshot_fixes_what_is_read(lake: Lake, filled: Callable[..., str], settings: MakeSettings) -> None:
    filled(lake)
    before, _ = compute(inputs(lake), settings())
    label = lake.read("labels").row(0, named=True)
    lake.upsert("labels", [{**label, "city": "Elsewhere"}], Commit("later", 1))
    after, _ = compute(inputs(lake), settings())
    assert after.equals(before)


def test_what_left_the_world_or_the_snapshot_is_rejected(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    filled(lake)
    lake.tombstone("images", pl.DataFrame({"image_id": ["image-0"]}), "deleted upstream", Commit("later", 1))
    new = {**lake.read("trajectories").row(1, named=True), "trajectory_id": "new", "image_id": "new", "verdict": "kept"}
    odd = json.loads(new["messages_json"])
    odd[1]["content"] = "<tool_response>\nnot a tool's\n</tool_response>"
    odd_row = {**new, "trajectory_id": "odd", "image_id": "image-1", "messages_json": json.dumps(odd)}
    lake.upsert("trajectories", [new, odd_row], Commit("later", 1))
    kept, rejects = compute(inputs(lake), settings())
    assert "image-0" not in kept["image_id"]
    assert sorted(rejects["reason"]) == ["image_withdrawn"] * 3 + ["not_in_snapshot", "not_taggable"]
    assert not set(kept["id"]) & set(rejects["id"])


def test_an_answer_without_names_still_has_its_point() -> None:
    text = answer_text({"country": None, "city": None, "lat": -0.5, "lon": 179.25}, 4)
    assert text == "<answer>\nLatitude: -0.5000\nLongitude: 179.2500\n</answer>"
