"""Samples come from an approved snapshot alone, each with its licence, and say what the paper says."""

import json
import re
from collections.abc import Callable

import polars as pl

from schemas.messages import image_references
from schemas.settings.train import TrainSettings
from tasks.agent.prompt import DIRECT
from tasks.agent.render import tools_block
from tasks.agent.tagged import canonical_messages, parse_tagged
from tasks.lake import Commit, Lake
from tasks.recipes.recipe import RECIPES, prompt_with, rollout_prompt
from tasks.recipes.rewards import score
from tasks.recipes.spotagent import RECIPE
from tasks.reward.outcome import Truth
from tasks.runtime.runner import Inputs
from tasks.runtime.stage import open_inputs
from tasks.train.samples import STAGE, compute

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
        assert score("spotagent", assistant["content"], Truth(row["lat"], row["lon"])).reward == 1.0
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
    kept, _ = compute(inputs(lake), settings(image_max_pixels=160 * 120))
    stored = dict(lake.read("trajectories").select("trajectory_id", "messages_json").iter_rows())
    for row in kept.filter(pl.col("training_stage") == "cold_start").to_dicts():
        written = parse_tagged(json.loads(row["messages_json"]))
        assert written[0]["content"].endswith(tools_block(RECIPE.prompt.tool_schemas()))
        written[0]["content"] = written[0]["content"].removesuffix("\n\n" + tools_block(RECIPE.prompt.tool_schemas()))
        assert written == canonical_messages(json.loads(stored[row["trajectory_id"]]))


def test_boxes_are_in_pixels_of_the_size_that_is_trained(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    filled(lake)

    def boxes(max_pixels: int) -> list[list[int]]:
        kept, _ = compute(inputs(lake), settings(image_min_pixels=784, image_max_pixels=max_pixels))
        found = kept.filter(pl.col("training_stage") == "cold_start").sort("sample_id")["messages_json"]
        return [json.loads(match) for text in found for match in re.findall(r"bbox_2d[^\[{]*(\[[^\]]*\])", text)]

    shown, small = boxes(160 * 120), boxes(80 * 60)
    assert shown.count([0, 0, 20, 20]) == small.count([0, 0, 10, 10]) == 8  # a call and its response in four samples


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


def test_a_label_without_names_is_no_sft_answer(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings, snapshot_of: Callable[..., str]
) -> None:
    """The prompt asks for four lines; an answer with two would teach another form."""
    filled(lake)
    label = lake.read("labels").filter(pl.col("image_id") == "image-0").row(0, named=True)
    lake.upsert("labels", [{**label, "city": None}], Commit("later", 1))
    snapshot_of(lake)
    kept, rejects = compute(inputs(lake), settings())
    assert rejects["reason"].to_list() == ["missing_address"]
    assert kept.filter(pl.col("training_stage") == "sft").height == 6


def test_random_pictures_are_as_many_as_the_learnable_and_others(
    lake: Lake, filled: Callable[..., str], settings: MakeSettings
) -> None:
    """SpotAgent Table 4: the same number from the same pool, whatever their difficulty; no phases."""
    filled(lake)

    def trained_on(**grpo: object) -> pl.DataFrame:
        kept, _ = compute(inputs(lake), settings(grpo=settings().grpo.model_copy(update=grpo)))
        return kept.filter(pl.col("training_stage") == "grpo")

    learnable, drawn = trained_on(pictures="learnable"), trained_on(pictures="random")
    assert drawn.height == learnable.height == 5 and trained_on(pictures="all").height == 7
    assert drawn["phase"].null_count() == 5 and learnable["phase"].null_count() == 0
    assert trained_on(pictures="random")["image_id"].equals(drawn["image_id"]), "the same for the same seed"
    seeds = [
        compute(inputs(lake), settings(seed=n, grpo=settings().grpo.model_copy(update={"pictures": "random"})))
        for n in range(6)
    ]
    chosen = {tuple(sorted(kept.filter(pl.col("training_stage") == "grpo")["image_id"])) for kept, _ in seeds}
    assert len(chosen) > 1, "another seed draws others"


def test_pictures_come_by_the_teachers_error(lake: Lake, filled: Callable[..., str], settings: MakeSettings) -> None:
    """REVERSE: easy within 25 km, medium within 200, hard beyond or without a point; easy ones are trained on first."""
    filled(lake)
    rows = lake.read("trajectories").sort("trajectory_id").to_dicts()
    errors = [3.0, 25.0, 25.1, 200.0, 201.0, None, 900.0]
    for row, error in zip(rows, errors, strict=False):
        row["error_km"] = error
    near = {**rows[4], "trajectory_id": "second", "error_km": 1.0, "verdict": "rejected"}
    lake.upsert("trajectories", [*rows, near], Commit("synthesize", 9))
    grpo = settings().grpo.model_copy(update={"pictures": "by_teacher"})
    kept, _ = compute(inputs(lake), settings(grpo=grpo))
    mine = kept.filter(pl.col("training_stage") == "grpo")
    phases = dict(mine.select("image_id", "phase").iter_rows())
    best = {row["image_id"]: error for row, error in zip(rows, errors, strict=False)}
    best[near["image_id"]] = 1.0
    expected = {
        name: 3 if error is None or error > 200 else 2 if error > 25 else 1
        for name, error in best.items()
        if name in phases
    }
    assert phases == expected and {1, 2, 3} <= set(phases.values())
    other, _ = compute(inputs(lake), settings(grpo=grpo, recipe="geovista"))
    assert other.filter(pl.col("training_stage") == "grpo").is_empty(), "another recipe's trajectories say nothing"


def test_fewer_pictures_are_part_of_more(lake: Lake, filled: Callable[..., str], settings: MakeSettings) -> None:
    """GeoVista fig. 7: training sets of several sizes, each part of the next."""
    filled(lake)
    sets = []
    for count in (2, 4, 7):
        grpo = settings().grpo.model_copy(update={"pictures": "all", "max_pictures": count})
        kept, _ = compute(inputs(lake), settings(grpo=grpo))
        sets.append(set(kept.filter(pl.col("training_stage") == "grpo")["image_id"]))
    assert [len(one) for one in sets] == [2, 4, 7] and sets[0] < sets[1] < sets[2]


def test_spotagent_has_one_template_for_all_its_phases() -> None:
    """A.1: "a unified prompt template for all LVLM-based geo-localization experiments"; the short one is ours."""
    own = RECIPES["spotagent"]
    assert own.direct.system == own.prompt.system and own.direct.question == own.prompt.question
    assert prompt_with("spotagent", ()) == rollout_prompt("spotagent", 0) == own.direct
    words = own.direct.opening({"type": "image"})[0]["content"]
    assert "at most 0 tool calls" in words and not own.direct.tools
    short = prompt_with("spotagent", (), "short")
    assert short == rollout_prompt("spotagent", 0, "short") == DIRECT and "tool" not in short.system
    assert rollout_prompt("geovista", 0, "short") == RECIPES["geovista"].direct, "a recipe without a short one"
