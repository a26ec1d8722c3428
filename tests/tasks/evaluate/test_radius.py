"""Conformal radii: the share that is promised holds, and every figure follows from the tables."""

import io
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image
from scipy.stats import binom

from schemas.settings.evaluate import EvaluateSettings, RadiusSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ServicesSettings
from tasks.agent.environment import Trajectory
from tasks.agent.page import Located
from tasks.agent.picture import open_picture
from tasks.evaluate import report
from tasks.evaluate.answers import asked_items, evaluation_id, items, on_validation
from tasks.evaluate.ensembles import spread_km
from tasks.evaluate.radius import CALIBRATIONS, RADII, abstains, calibrate, conformal_quantile, known_radius
from tasks.evaluate.scores import SLICES
from tasks.evaluate.scores import STAGE as SCORES
from tasks.geo.distance import distance_km
from tasks.lake import Commit, Lake
from tasks.review.site.page import Source
from tasks.review.site.pages.radius import radius_page
from tasks.reward.answer import parse_answer
from tasks.runtime.runner import Context, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")

MakeSnapshot = Callable[..., str]
BATCHES = itertools.count(1)
SETTINGS = EvaluateSettings(policies=("a",), trained=False, radius=RadiusSettings(least=60))


@pytest.mark.parametrize("n", [8, 9, 19, 99, 100, 1000])
def test_the_quantile_is_the_smallest_that_the_share_allows(n: int) -> None:
    errors = np.random.default_rng(n).permutation(n).astype(float)
    found = conformal_quantile(errors, 0.9)
    if n < 9:  # nine tenths of nine and one more are nine: with eight answers no error is large enough
        assert found == math.inf
    else:
        assert (errors <= found).sum() >= 0.9 * (n + 1) > (errors < found).sum()


@pytest.mark.parametrize("share", [0.8, 0.9, 0.95])
def test_exchangeable_answers_are_covered_in_every_group(share: float) -> None:
    """Over fresh draws of calibration and answer the share is share to share + 1/(n + 1), in groups apart as in all."""
    rng, n, trials = np.random.default_rng(4), 120, 2000
    settings = RadiusSettings(share=share, least=50)
    far = {"near": 3.0, "far": 900.0, "seldom": 90.0}
    covered = dict.fromkeys(far, 0)
    for _ in range(trials):
        groups = ["near"] * n + ["far"] * n + ["seldom"] * n
        errors = np.concatenate([rng.lognormal(np.log(km), 1.5, n) for km in far.values()])
        found = calibrate(groups, errors, settings)
        for name, km in far.items():
            covered[name] += rng.lognormal(np.log(km), 1.5) <= found.quantiles[found.group(name)][1]
    low = binom.ppf(0.0005, trials, share)
    high = binom.ppf(0.9995, trials, share + 1 / (n + 1))
    assert all(low <= count <= high for count in covered.values()), covered


def test_small_groups_are_calibrated_together_and_few_answers_give_no_radius() -> None:
    settings = RadiusSettings(least=10)
    found = calibrate(["big"] * 50 + ["b"] * 6 + ["c"] * 5, np.arange(61.0), settings)
    assert found.quantiles == {"big": (50, 45.0), "other": (11, 60.0)} and found.group("b") == "other"
    found = calibrate(["big"] * 50 + ["b"] * 6, np.arange(56.0), settings)
    assert found.quantiles["other"] == (56, 51.0), "six alone are too few: all answers stand for the rest"
    assert calibrate(["a"] * 8, np.ones(8), settings).quantiles == {"other": (8, math.inf)}
    assert calibrate(["a"] * 9, np.ones(9), settings).quantiles == {"other": (9, math.inf)}, "least holds for all too"
    assert abstains(True, math.inf, settings) is None, "an answer without a radius is given"
    assert abstains(True, 2501.0, settings) == "too_large" and abstains(True, 2500.0, settings) is None
    assert abstains(False, 1.0, settings) == "no_point"


def write(lake: Lake, table: str, rows: list[dict[str, Any]]) -> None:
    lake.upsert(table, rows, Commit("test", next(BATCHES)))


def filled(folder: Path, snapshot_of: MakeSnapshot, sizes: dict[str, int], spread: bool = False) -> Lake:
    """A lake whose answers are some way east of the truth: photos a few km, panoramas hundreds."""
    lake, rng = Lake(folder / "lake"), np.random.default_rng(8)
    labels, images, predictions = [], [], []
    for split, size in sizes.items():
        evaluation = evaluation_id("a", SETTINGS.model_copy(update={"split": split}))
        for number in range(size):
            kind = ("photo", "panorama")[number % 2]
            key = {"image_id": f"{split}{number}", "sha256": f"{split}{number}", "lat": 48.0, "lon": 3.0}
            labels.append({**key, "split": split, "country": "France", "country_code": "FR", "scenes_json": "{}"})
            known = {"kind": kind, "source": "s", "source_id": "x", "licence": "CC0", "attribution": "a"}
            images.append({**key, **known, "extension": "jpg"})
            degrees = float(rng.exponential(0.02 if kind == "photo" else 1.5))
            said = {"lat": 48.0, "lon": 3.0 + degrees} if number % 20 else {"lat": None, "lon": None}
            agreed = {"spread_km": degrees * 60} if spread else {}
            row = {"evaluation_id": evaluation, "image_id": key["image_id"], "snapshot_id": "s", "policy": "a"}
            predictions.append({**row, "answer": "", "tool_pattern": "none", **said, **agreed})
    write(lake, "labels", labels)
    write(lake, "images", images)
    write(lake, "predictions", predictions)
    snapshot_of(lake)
    return lake


def compute(lake: Lake, settings: EvaluateSettings = SETTINGS) -> None:
    for stage in (CALIBRATIONS, RADII, SCORES, SLICES):
        assert run(stage, settings, Context(lake, connect(ServicesSettings(), {}))).failed == 0


def test_radii_and_coverage_follow_from_the_tables(tmp_path: Path, snapshot_of: MakeSnapshot) -> None:
    lake = filled(tmp_path, snapshot_of, {"validation": 400, "benchmark": 600})
    compute(lake)
    # The same once more, in plain Python from the tables alone.
    truth = {row["image_id"]: row for row in lake.read("labels").to_dicts()}
    kinds = dict(lake.read("images").select("image_id", "kind").iter_rows())
    errors: dict[tuple[str, str], list[float]] = {}
    points = lake.read("predictions").drop_nulls("lat").to_dicts()
    for row in points:
        true = truth[row["image_id"]]
        error = float(distance_km(row["lat"], row["lon"], true["lat"], true["lon"]))
        row |= {"error": error, "split": true["split"], "kind": kinds[row["image_id"]]}
        errors.setdefault((row["split"], row["kind"]), []).append(error)
    errors_on = {"validation": errors["validation", "photo"] + errors["validation", "panorama"]}
    wanted = {}
    for kind in ("photo", "panorama"):
        known = sorted(errors["validation", kind])
        wanted[kind] = known[math.ceil(0.9 * (len(known) + 1)) - 1]
    covered = {row["image_id"]: row["error"] <= wanted[row["kind"]] for row in points if row["split"] == "benchmark"}
    found = lake.read("radii")
    assert found.height == 600 and found["radius_km"].null_count() == 600 - len(covered) == 30
    assert dict(found.drop_nulls("covered").select("image_id", "covered").iter_rows()) == covered
    assert set(found.filter(pl.col("radius_km").is_null())["abstains"]) == {"no_point"}
    by_group = dict(found.drop_nulls("radius_km").select("radius_group", "radius_km").unique().iter_rows())
    assert by_group == pytest.approx({f"{kind}, Europe": km for kind, km in wanted.items()})
    scores = {row["metric"]: row for row in lake.read("scores").to_dicts()}
    assert scores["radius_coverage"]["value"] == pytest.approx(sum(covered.values()) / len(covered))
    assert scores["radius_coverage"]["low"] < 0.9 < scores["radius_coverage"]["high"]
    assert scores["abstention_rate"]["value"] == pytest.approx(30 / 600)
    slices = lake.read("score_slices").filter(pl.col("metric") == "radius_coverage")
    by_kind = slices.filter(pl.col("slice_by") == "kind")
    for name, value, n in by_kind.select("slice", "value", "n").iter_rows():
        mine = [covered[image] for image in covered if kinds[image] == name]
        assert (value, n) == (pytest.approx(sum(mine) / len(mine)), len(mine))
        assert 0.85 < value < 0.95
    assert {"kind", "continent", "country", "radius_group"} <= set(slices["slice_by"])
    text = report(lake, SETTINGS).markdown
    assert "within" in text and "panorama, Europe" in text
    # What a picture of anybody's is told: of answers with tools only, by the group of the answered point.
    radius = SETTINGS.radius
    assert known_radius(lake, "a", SETTINGS.agent_recipe, (48.0, 3.0), radius).radius_km is None
    lake.upsert(
        "calibrations", lake.read("calibrations").with_columns(tools=pl.lit("all")), Commit("test", next(BATCHES))
    )
    told = known_radius(lake, "a", SETTINGS.agent_recipe, (48.0, 3.0), radius)
    assert told.radius_km == pytest.approx(wanted["photo"]) and told.abstains is None and "with 90%" in told.words
    elsewhere = known_radius(lake, "a", SETTINGS.agent_recipe, (-33.9, 18.4), radius, kind="panorama")
    assert elsewhere.radius_km == pytest.approx(sorted(errors_on["validation"])[-38]), (
        "all 380 answers stand for Africa"
    )
    blocks = radius_page.make(Source(lake, lake.read("snapshots").row(0, named=True), ReviewSettings()))
    tables = [block for block in blocks if block["block"] == "table"]
    assert ["kind", "photo"] in [row[:2] for row in tables[2]["rows"]] and tables[2]["rows"][0][-1] in (
        "holds",
        "above",
    )
    [shown] = [block for block in blocks if block["block"] == "points"]
    assert sum(row[2] == "within" for row in shown["rows"]) == sum(covered.values())
    # A larger share needs a larger radius, and a limit in between abstains from the panoramas.
    strict = SETTINGS.model_copy(update={"radius": RadiusSettings(least=60, max_km=wanted["photo"] + 1)})
    compute(lake, strict)
    why = dict(
        lake.read("radii").group_by("radius_group", "abstains").len().select("radius_group", "abstains").iter_rows()
    )
    assert why["panorama, Europe"] == "too_large" and why["photo, Europe"] is None


def test_few_validation_answers_are_said_and_none_leave_radii_out(tmp_path: Path, snapshot_of: MakeSnapshot) -> None:
    lake = filled(tmp_path, snapshot_of, {"validation": 6, "benchmark": 10})
    compute(lake)
    assert set(lake.read("radii").drop_nulls("radius_group")["abstains"]) == {None}
    assert lake.read("calibrations")["quantile"].to_list() == [None]
    assert "not enough answers for a radius with 90%: 5 of the validation split" in report(lake, SETTINGS).markdown
    none = filled(tmp_path / "none", snapshot_of, {"benchmark": 10})
    compute(none)
    assert none.read("radii").is_empty() and "radius_coverage" not in set(none.read("scores")["metric"])


def test_radii_are_scaled_where_attempts_tell_how_sure_an_answer_is(tmp_path: Path, snapshot_of: MakeSnapshot) -> None:
    lake = filled(tmp_path, snapshot_of, {"validation": 200, "benchmark": 200}, spread=True)
    compute(lake)
    found = lake.read("radii").join(lake.read("predictions").select("image_id", "spread_km"), on="image_id")
    found = found.drop_nulls("radius_km")
    by_scale = found["radius_km"] / (found["spread_km"] + 10.0)
    assert by_scale.round(9).n_unique() == found["radius_group"].n_unique() and found["radius_km"].n_unique() > 100
    assert spread_km(0.0, 0.0, []) is None and spread_km(None, 0.0, [(1.0, 1.0)]) is None
    assert spread_km(0.0, 0.0, [(0.0, 1.0), (0.0, 3.0), (None, None)]) == pytest.approx(distance_km(0, 0, 0, 3))


def test_validation_pictures_are_asked_where_radii_are_calibrated(tmp_path: Path, snapshot_of: MakeSnapshot) -> None:
    lake = filled(tmp_path, snapshot_of, {"validation": 6, "benchmark": 10})
    inputs = open_inputs(SCORES, lake)
    asks = SETTINGS.model_copy(update={"radius": RadiusSettings(calibrate=True)})
    assert asked_items(inputs, SETTINGS).height == items(inputs, asks).height == 10
    asked = asked_items(inputs, asks)
    assert asked.height == 16 and evaluation_id("a", on_validation(SETTINGS)) in set(asked["evaluation_id"])


def test_an_answer_that_is_held_back_tells_no_place() -> None:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), "teal").save(out, "JPEG")
    picture = open_picture(out.getvalue())
    answer = parse_answer("<answer>48.0, 3.0</answer>")
    told = Located("a.jpg", "a", "r", picture, Trajectory(()), {}, answer, "within 9,000.0 km with 90%", 9000.0)
    held_back = replace(told, abstains="too_large")
    assert told.as_row()["lat"] == 48.0 and told.answered and told.map_link
    assert (held_back.as_row()["lat"], held_back.answered, held_back.map_link) == (None, False, "")
    assert held_back.as_row()["radius_km"] == 9000.0 and held_back.problem == "abstains: too_large"
