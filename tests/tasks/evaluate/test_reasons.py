"""Cue attribution and grounding follow from the tables, and are shown as they are."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binomtest

from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ServicesSettings
from tasks.evaluate import report
from tasks.evaluate.answers import evaluation_id
from tasks.evaluate.cues import STAGE as CUES
from tasks.evaluate.ensembles import METHODS, method_evaluation
from tasks.evaluate.grounding import STAGE as GROUNDING
from tasks.evaluate.scores import PAIRS, SLICES
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.review.site.page import Source
from tasks.review.site.pages.cues import cues_page
from tasks.runtime.runner import Context, run
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")

MakeSnapshot = Callable[..., str]
BATCHES = itertools.count(1)
CUES_ASKED = ("text", "sky")
SETTINGS = EvaluateSettings.model_validate(
    {"policies": ["p"], "trained": False, "masking": {"policies": ["p"], "cues": list(CUES_ASKED)}}
)
PICTURES = 60
HERE, FAR = {"lat": 48.0, "lon": 3.0}, {"lat": 40.0, "lon": 30.0}
SAID = "<answer>Country: France\nCity: Auxerre\nLatitude: 48.0\nLongitude: 3.0</answer>"


def write(lake: Lake, table: str, rows: list[dict[str, Any]]) -> None:
    lake.upsert(table, rows, Commit("test", next(BATCHES)))


def conversation(thought: str, result: dict[str, Any] | None = None) -> str:
    picture = {"type": "image_url", "image_url": {"url": f"sha256:{'0' * 64}.jpg"}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": [picture]}]
    if result is not None:
        call = {"id": "c", "type": "function", "function": {"name": "maps_geocode", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "<think>I look.</think>", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": json.dumps(result)})
    messages.append({"role": "assistant", "content": f"<think>{thought}</think>{SAID}"})
    return json.dumps(messages)


THOUGHTS = (
    conversation("Vineyards, so Burgundy.", {"results": [{"lat": 48.01, "lon": 3.01, "name": "Rue A"}]}),  # supported
    conversation("Vineyards, so Burgundy.", {"results": [{"lat": 43.0, "lon": 1.0, "name": "Rue B"}]}),  # not
    conversation("Traffic keeps to the left."),  # false in France
    conversation("I recognise it."),  # nothing to check
)


@pytest.fixture
def lake(tmp_path: Path, snapshot_of: MakeSnapshot) -> Lake:
    lake, rng = Lake(tmp_path / "lake"), np.random.default_rng(2)
    masking = METHODS["masking"]
    names = masking.evaluations("p", SETTINGS)
    labels, images, answers, told = [], [], [], []
    for number in range(PICTURES):
        key = {"image_id": f"i{number:02d}", "sha256": f"s{number}", **HERE}
        labels.append({**key, "split": "benchmark", "country": "France", "country_code": "FR"})
        known = {"kind": "photo", "source": "s", "source_id": "x", "licence": "CC0", "attribution": "a"}
        images.append({**key, **known, "extension": "jpg"})
        found = {"p": True} | {
            name: bool(rng.random() < share) for name, share in zip(names, (0.9, 0.4, 0.8), strict=True)
        }
        for name, is_right in found.items():
            method = None if name == "p" else masking
            evaluation = evaluation_id("p", SETTINGS) if method is None else method_evaluation(method, name, SETTINGS)
            row = {"evaluation_id": evaluation, "image_id": key["image_id"], "snapshot_id": "s", "policy": name}
            point = HERE if is_right else FAR
            more = {"messages_json": THOUGHTS[number % len(THOUGHTS)]} if name == "p" else {}
            answers.append({**row, **point, "answer": SAID, "tool_pattern": "none", **more})
            if method is not None:
                boxes = {"boxes": [[0, 0, 9, 9]] if number % 3 else []}
                about = {"method": name.removeprefix("p "), "answers_json": json.dumps(boxes)}
                told.append({**row, **about})
    for table, rows in (("labels", labels), ("images", images), ("predictions", answers), ("deliberations", told)):
        write(lake, table, rows)
    snapshot_of(lake)
    for stage in (GROUNDING, SCORES, SLICES, PAIRS, CUES):
        assert run(stage, SETTINGS, Context(lake, connect(ServicesSettings(), {}))).failed == 0
    return lake


def test_accuracy_lost_by_cue_is_paired_and_follows_from_the_answers(lake: Lake) -> None:
    right: dict[str, dict[str, bool]] = {}
    for policy, image, lat in lake.read("predictions").select("policy", "image_id", "lat").iter_rows():
        right.setdefault(policy, {})[image] = lat == HERE["lat"]
    losses = {
        (row["cue"], row["pictures"]): row for row in lake.read("cue_losses").filter(metric="acc@25km").to_dicts()
    }
    assert set(losses) == set(itertools.product(CUES_ASKED, ("all pictures", "pictures with the cue")))
    for (cue, on), row in losses.items():
        images = [image for image in right["p whole"] if on == "all pictures" or int(image[1:]) % 3]
        whole = [right["p whole"][image] for image in images]
        without = [right[f"p without {cue}"][image] for image in images]
        lost, gained = (sum(a > b for a, b in zip(*pair, strict=True)) for pair in ((whole, without), (without, whole)))
        assert row["n"] == len(images) and row["lost"] == pytest.approx((sum(whole) - sum(without)) / len(images))
        assert row["p"] == pytest.approx(binomtest(lost, lost + gained, 0.5).pvalue)
        assert row["low"] < row["lost"] < row["high"]
    assert losses["text", "all pictures"]["low"] > 0, "half of the answers rest on text"
    text = report(lake, SETTINGS).markdown
    assert "Cue attribution" in text and "pictures with the cue" in text


def test_grounding_is_counted_beside_accuracy_and_shown(lake: Lake) -> None:
    found = {row["metric"]: row for row in lake.read("scores").filter(policy="p").to_dicts()}
    quarter = PICTURES // 4
    assert (found["grounded_rate"]["value"], found["grounded_rate"]["n"]) == (0.5, PICTURES)
    assert (found["tool_supported_rate"]["value"], found["tool_supported_rate"]["n"]) == (0.5, 2 * quarter)
    assert found["signs_seen_rate"]["n"] == 0, "no role was asked to read"
    assert found["grounded_acc@25km"]["value"] == 0.5 < found["acc@25km"]["value"] == 1.0
    slices = lake.read("score_slices").filter(metric="grounded_rate", policy="p", slice_by="kind")
    assert slices["value"].to_list() == [0.5]
    blocks = cues_page.make(Source(lake, lake.read("snapshots").row(0, named=True), ReviewSettings()))
    tables = [block for block in blocks if block["block"] == "table"]
    assert tables[0]["rows"][0][0] == "text", "the cue that costs most stands first"
    assert "traffic keeps to the right there" in str(tables[-1]["rows"]) and len(tables[-1]["rows"]) == 2 * quarter


def test_nothing_was_asked_and_the_page_says_how(tmp_path: Path, snapshot_of: MakeSnapshot) -> None:
    empty = Lake(tmp_path / "empty")
    snapshot_of(empty)
    blocks = cues_page.make(Source(empty, empty.read("snapshots").row(0, named=True), ReviewSettings()))
    assert "evaluate.masking.policies" in str(blocks) and pl.DataFrame(blocks[1:2]).height == 1
