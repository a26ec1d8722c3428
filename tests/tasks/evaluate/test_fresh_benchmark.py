"""The benchmark that stays fresh: which pictures a month holds, why the others do not, and that it stays as signed."""

import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageDraw, ImageOps
from typer.testing import CliRunner

from flows.cli.application import app
from schemas.errors import InputError
from schemas.settings.benchmark import BenchmarkSettings
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.review import ReviewSettings
from tasks.evaluate.answers import evaluation_id
from tasks.evaluate.benchmark_files import CARD, MANIFEST, SIGNATURE, check_files, check_months, draw_month, folder_key
from tasks.evaluate.fresh_benchmark import STAGE
from tasks.evaluate.scores import SLICES
from tasks.geo.cell_split import cell_number, distance_to_cells_km
from tasks.geo.distance import distance_km
from tasks.imaging.hashes import marks_of
from tasks.imaging.patches import patches_of
from tasks.lake import Commit, Lake
from tasks.review.site.page import Source
from tasks.review.site.pages.fresh import difference, fresh_page
from tasks.runtime.runner import Context, run
from tasks.services import connect

pytestmark = pytest.mark.whole
Snapshot = Callable[..., str]
SETTINGS = BenchmarkSettings(month="2026-02", cutoff=datetime(2025, 12, 31, tzinfo=UTC).date())


def drawing(seed: int) -> Image.Image:
    rng = random.Random(seed)
    image = Image.new("RGB", (320, 200), tuple(rng.randrange(256) for _ in range(3)))
    pen = ImageDraw.Draw(image)
    for _ in range(40):
        x, y = rng.randrange(300), rng.randrange(180)
        box = (x, y, x + rng.randrange(10, 90), y + rng.randrange(10, 90))
        pen.rectangle(box, fill=tuple(rng.randrange(256) for _ in range(3)))
    return image


Taken = tuple[str, str, str | None, float, float, Image.Image]  # id, split, day, lat, lon, picture


def add(lake: Lake, *pictures: Taken) -> None:
    """Pictures with their labels and marks."""
    rows: dict[str, list[dict[str, Any]]] = {"images": [], "labels": [], "fingerprints": []}
    for image_id, split, day, lat, lon, image in pictures:
        out = io.BytesIO()
        image.save(out, "JPEG", quality=90)
        key = {"image_id": image_id, "sha256": lake.images.put(out.getvalue(), "jpg")}
        known = {"kind": "photo", "source": "s", "source_id": image_id, "licence": "CC0", "attribution": "a"}
        taken = datetime.fromisoformat(day).replace(tzinfo=UTC) if day else None
        pixels, place = np.asarray(image), {"lat": lat, "lon": lon}
        rows["images"].append({**key, **place, **known, "extension": "jpg", "captured_at": taken})
        rows["labels"].append({**key, **place, "split": split, "country": "Chad"})
        rows["fingerprints"].append({**key, **vars(marks_of(pixels)), **vars(patches_of(pixels))})
    for table, some in rows.items():
        lake.upsert(table, some, Commit(f"{table}-{pictures[0][0]}", 1))


@pytest.fixture
def lake(tmp_path: Path, snapshot_of: Snapshot) -> Lake:
    """Training at (10.5, 20.5) and, of an earlier snapshot, a picture that is gone since."""
    lake = Lake(tmp_path / "lake")
    add(
        lake,
        ("train", "train", "2024-05-01", 10.5, 20.5, drawing(1)),
        ("gone", "train", "2024-05-01", 11.5, 20.5, drawing(2)),
    )
    snapshot_of(lake)
    ended = lake.read("labels").filter(pl.col("image_id") == "gone").to_dicts()[0]
    lake.upsert("labels", [{**ended, "tombstone": "deleted upstream"}], Commit("ended", 1))
    add(
        lake,
        ("fresh", "benchmark", "2026-01-05", 40.0, -100.5, drawing(3)),
        ("fresh2", "benchmark", "2026-02-28", 46.5, -100.5, drawing(4)),
        ("old", "benchmark", "2025-12-31", 42.0, -100.5, drawing(5)),
        ("later", "benchmark", "2026-03-01", 42.0, -101.5, drawing(6)),
        ("timeless", "benchmark", None, 42.0, -102.5, drawing(7)),
        ("close", "benchmark", "2026-01-06", 12.1, 20.5, drawing(8)),  # 11 km from the cell of `gone`
        ("copy", "benchmark", "2026-01-07", -30.0, 140.5, drawing(1).resize((300, 188))),
        ("mirrored", "benchmark", "2026-01-08", -31.0, 140.5, ImageOps.mirror(drawing(2))),
    )
    snapshot_of(lake)
    return lake


def draw(lake: Lake, settings: BenchmarkSettings = SETTINGS) -> dict[str, Any]:
    drawn = draw_month(Context(lake, connect_nothing()), settings)[1]
    assert drawn is not None
    return drawn.manifest


def connect_nothing() -> Any:
    from schemas.settings.services import ServicesSettings

    return connect(ServicesSettings(), {}, ())


def test_a_month_holds_what_is_newer_than_the_cut_off_and_away_from_all_training(lake: Lake) -> None:
    manifest = draw(lake)
    assert [one["image_id"] for one in manifest["pictures"]] == sorted(
        ["fresh", "fresh2"], key=lambda name: lake.read("images").filter(image_id=name)["sha256"][0]
    )
    counts = manifest["counts"]
    assert counts["other_days"] == {"no_capture_time": 1, "captured_before": 1, "captured_after_the_month": 1}
    assert counts["rejected"] == {"mirrored_duplicate": 1, "near_duplicate": 1, "near_training_cell": 1}
    assert counts["in"] == counts["kept"] + sum(counts["rejected"].values()) == 5
    assert counts["benchmark_split"] == counts["in"] + sum(counts["other_days"].values()) == 8
    rejects = {row["item_id"]: row for row in lake.read("rejects").to_dicts()}
    assert {name: row["reason"] for name, row in rejects.items()} == {
        "2026-02|close": "near_training_cell",
        "2026-02|copy": "near_duplicate",
        "2026-02|mirrored": "mirrored_duplicate",
    }
    assert json.loads(rejects["2026-02|copy"]["evidence_json"])["training_picture"] == "train"
    proof = manifest["proof"]
    assert proof["training_pictures"] == 2 and proof["training_cells"] == 2
    assert 1_000 < proof["nearest_training_cell_km"] <= distance_km(46.5, -100.5, 11.5, 20.5)


def test_a_lake_without_any_training_has_nothing_to_keep_away_from(tmp_path: Path, snapshot_of: Snapshot) -> None:
    lake = Lake(tmp_path / "other")
    add(lake, *((f"i{n}", "benchmark", "2026-02-01", 40.0 + n, 10.0, drawing(n)) for n in range(2)))
    snapshot_of(lake)
    manifest = draw(lake)
    assert manifest["counts"]["kept"] == 2 and manifest["proof"]["nearest_training_cell_km"] is None
    assert manifest["proof"]["training_pictures"] == 0


def test_training_rows_of_models_count_though_no_snapshot_has_them(lake: Lake) -> None:
    row = {"sample_id": "s", "training_stage": "sft", "image_id": "elsewhere", "sha256": "a" * 64, "licence": "CC0",
           "attribution": "a", "lat": 40.2, "lon": -100.2, "tombstone": "superseded by a newer run"}  # fmt: skip
    lake.upsert("samples", [row], Commit("samples", 1))
    manifest = draw(lake)
    assert manifest["counts"]["kept"] == 1
    assert manifest["counts"]["rejected"]["near_training_cell"] == 2
    assert manifest["proof"]["nearest_training_cell_km"] >= 25


def test_a_month_is_drawn_once_and_the_next_one_begins_where_it_ends(lake: Lake, snapshot_of: Snapshot) -> None:
    first = draw(lake)
    add(
        lake,
        ("late", "benchmark", "2026-01-20", 43.0, -100.5, drawing(9)),  # captured in days that are drawn
        ("march", "benchmark", "2026-03-09", 44.0, -100.5, drawing(10)),
    )
    snapshot_of(lake)
    rejects = lake.read("rejects").height
    assert draw(lake) == first and lake.read("rejects").height == rejects
    march = draw(lake, BenchmarkSettings(month="2026-03", cutoff=SETTINGS.cutoff))
    assert {one["image_id"] for one in march["pictures"]} == {"later", "march"}
    assert march["captured_after"] == first["captured_until"] == "2026-02-28"
    assert lake.read("benchmarks").sort("month")["month"].to_list() == ["2026-02", "2026-03"]
    with pytest.raises(InputError, match="2026-03 is drawn already, and months are drawn in order"):
        draw(lake, BenchmarkSettings(month="2026-01", cutoff=SETTINGS.cutoff))


def test_rejects_that_a_killed_run_did_not_write_come_with_the_next(lake: Lake) -> None:
    draw(lake)
    kept = lake.read("benchmarks").to_dicts()
    other = Lake(lake.root.parent / "other")
    for table in ("images", "labels", "fingerprints", "snapshots"):
        other.upsert(table, lake.read(table).to_dicts(), Commit(table, 1))
    other.upsert("benchmarks", kept, Commit("killed", 1))  # before its rejects were committed
    result = run(STAGE, SETTINGS, Context(other, connect_nothing()))
    assert result.kept == 0 and dict(result.rejects) == {
        "near_training_cell": 1, "near_duplicate": 1, "mirrored_duplicate": 1}  # fmt: skip
    assert other.read("benchmarks")["signature"].to_list() == [kept[0]["signature"]]


def test_cut_offs_come_from_settings_and_a_trained_model_has_that_of_its_base(lake: Lake) -> None:
    model = {"model_id": "m1", "training_stage": "grpo", "checkpoint": "models/m1", "base": "big-vl"}
    lake.upsert("models", [model], Commit("models", 1))
    asked: dict[str, Any] = {"month": "2026-02", "models": ("trained:m1",)}
    with pytest.raises(InputError, match=r"no cut-off of 'big-vl' is known.*benchmark.cutoffs=\{big-vl: "):
        draw(lake, BenchmarkSettings(**asked))
    manifest = draw(lake, BenchmarkSettings(**asked, cutoffs={"big-vl": "2026-01-10"}))  # type: ignore[dict-item]
    assert [one["image_id"] for one in manifest["pictures"]] == ["fresh2"]
    assert manifest["cutoffs"]["trained:m1"] == "2026-01-10"
    with pytest.raises(InputError, match=r"benchmark\.cutoff: which pictures are too old"):
        draw(lake, BenchmarkSettings(month="2026-03"))
    with pytest.raises(InputError, match="2026-04-30 is not before the end of 2026-04"):
        draw(lake, BenchmarkSettings(month="2026-04", cutoff="2026-04-30"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2999-01 is not over yet"):
        draw(lake, BenchmarkSettings(month="2999-01", cutoff="2026-04-30"))  # type: ignore[arg-type]


def test_what_was_signed_can_be_checked_and_changes_are_found(lake: Lake, tmp_path: Path) -> None:
    command = ["benchmark", "--lake", lake.uri, "--month", "2026-02", "--set", "benchmark.cutoff=2025-12-31"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and "| kept | 2 |" in done.output, done.output
    assert CliRunner().invoke(app, ["benchmark", "--lake", lake.uri, "--verify"]).output == (
        "2026-02: 2 pictures, as signed\n"
    )
    folder = lake.root / folder_key("2026-02")
    key = lake.read("benchmarks")["public_key"][0]
    verify = ["benchmark", "--verify", "--folder", str(folder), "--key"]
    assert CliRunner().invoke(app, [*verify, key]).exit_code == 0
    assert CliRunner().invoke(app, [*verify, "0" * 64]).exit_code == 2  # somebody else's
    files = {name: (folder / name).read_text() for name in (MANIFEST, SIGNATURE, CARD)}
    assert check_files(files, key)["month"] == "2026-02"
    for name in (MANIFEST, CARD):
        with pytest.raises(InputError, match=f"{name} .*changed"):
            check_files({**files, name: files[name].replace("2026-02-28", "2026-02-27")}, None)
    moved = lake.read("images").filter(image_id="fresh").to_dicts()[0]
    lake.upsert("images", [{**moved, "lat": 40.5}], Commit("moved", 1))
    [checked] = check_months(lake)
    assert checked.problems == ("picture fresh is gone, or has other bytes or another position",)
    assert lake.secret("signatures").hex() not in "".join(files.values())


def test_scores_by_month_and_the_gap_that_memorising_leaves(lake: Lake, snapshot_of: Snapshot) -> None:
    """A model that knows the first month by heart and guesses in the second."""
    days = ["2026-02-03"] * 10 + ["2026-03-03"] * 10
    add(lake, *((f"m{n}", "benchmark", day, 45.0 + n, -100.5, drawing(100 + n)) for n, day in enumerate(days)))
    snapshot = snapshot_of(lake)
    cutoffs: dict[str, Any] = {"answerer-base": "2026-02-28"}
    draw(lake, BenchmarkSettings(month="2026-02", cutoff=SETTINGS.cutoff))
    draw(lake, BenchmarkSettings(month="2026-03", cutoff=SETTINGS.cutoff, cutoffs=cutoffs))
    settings = EvaluateSettings()
    said = []
    for row in lake.read("labels").filter(split="benchmark").to_dicts():
        near = row["image_id"] in {"fresh", "fresh2", *(f"m{n}" for n in range(10))}
        key = {"evaluation_id": evaluation_id("answerer-base", settings), "image_id": row["image_id"]}
        lat = row["lat"] + (0.01 if near else 8)
        said.append({**key, "policy": "answerer-base", "lat": lat, "lon": row["lon"], "answer": f"{lat}, {row['lon']}"})
    lake.upsert("predictions", said, Commit("predictions", 1))
    run(SLICES, settings, Context(lake, connect_nothing()))
    found = lake.read("score_slices").filter(slice_by="month", metric="acc@25km").sort("slice")
    assert found.select("slice", "value", "n").rows() == [("2026-02", 1.0, 12), ("2026-03", 0.0, 11)]
    row = lake.read("snapshots").filter(snapshot_id=snapshot).to_dicts()[0]
    blocks = fresh_page.make(Source(lake, row, ReviewSettings()))
    [gap] = [one for one in blocks if one["block"] == "table" and "gap" in one["columns"]]
    assert gap["rows"][0][0] == "answerer-base" and gap["rows"][0][-1] == "remembers"
    assert gap["rows"][0][4].startswith("+100.0 %")


def test_a_difference_has_the_interval_of_both_sides() -> None:
    """Newcombe's example (a) of table II: 56/70 against 48/80, Wilson intervals, 0.0524 to 0.3339."""
    gap, low, high = difference((0.8, 0.6920, 0.8773), (0.6, 0.4905, 0.7004))
    assert (gap, low, high) == pytest.approx((0.2, 0.0524, 0.3339), abs=2e-3)


def test_distance_to_cells_is_never_too_large() -> None:
    rng = np.random.default_rng(0)
    lat, lon = np.degrees(np.arcsin(rng.uniform(-1, 1, 300))), rng.uniform(-180, 180, 300)
    cells = cell_number(np.array([0.5, 48.5, -33.5]), np.array([179.5, 2.5, 151.5]))
    bound = distance_to_cells_km(lat, lon, cells)
    inside = rng.uniform(0, 1, (3, 200, 2)) + np.array([[0, 179], [48, 2], [-34, 151]])[:, None]
    true = distance_km(lat[:, None, None], lon[:, None, None], inside[..., 0], inside[..., 1]).min(axis=(1, 2))
    assert (bound <= true + 1e-6).all() and (bound > 0.3 * true)[bound < 2000].all()
    assert distance_to_cells_km(np.array([48.7]), np.array([2.9]), cells)[0] == 0
    assert np.isinf(distance_to_cells_km(lat, lon, cells[:0])).all()
