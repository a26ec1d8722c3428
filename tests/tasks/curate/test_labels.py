"""The steps of curation through the runner: what becomes a label, why not, and what a changed setting costs."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image

from schemas.settings.curate import (
    CurateSettings,
    DuplicatesSettings,
    JudgeSettings,
    LabelsSettings,
    QualityLimits,
    TiersSettings,
)
from schemas.settings.spread import SpreadSettings
from tasks.curate import STAGES
from tasks.curate import duplicates as duplicates_step
from tasks.curate import judge as judge_step
from tasks.curate import labels as labels_step
from tasks.curate.tiers import tier_of
from tasks.curate.votes import combined
from tasks.curate.written import place_written
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context, Inputs, StageResult, run
from tasks.services import Chat

pytestmark = pytest.mark.usefixtures("in_process")

COMMON = {
    "kind": "photo",
    "lat": 48.8566,
    "lon": 2.3522,
    "source": "s",
    "source_id": "1",
    "licence": "l",
    "attribution": "a",
}
PLACES = [
    {"place_id": "p1", "country": "FR", "lat": 48.8566, "lon": 2.3522, "split": "train"},
    {"place_id": "p2", "country": "FR", "lat": 48.9, "lon": 2.4, "split": "benchmark"},
]


def inputs_of(lake: Lake, stage: Any) -> Inputs:
    return Inputs(lake, {table: lake.version(table) for table in stage.reads})


def image(image_id: str, place_id: str | None, sha256: str, **changes: Any) -> dict[str, Any]:
    return {"image_id": image_id, "place_id": place_id, "sha256": sha256, "extension": "jpg", **COMMON, **changes}


def measured(lake: Lake, images: list[dict[str, Any]]) -> None:
    """Figures of a sharp picture for each of them, and hashes that have nothing in common."""
    rows = [{"image_id": one["image_id"], "sha256": one["sha256"]} for one in images]
    lake.upsert("quality", [row | FIGURES for row in rows], Commit("figures", 1))
    marks = [
        row | {"phash": f"{n * 0x1111111111111111 % 2**64:016x}", "phash_mirrored": f"{n:04x}" * 4,
               "embedding": [1.0, 0.0]}
        for n, row in enumerate(rows)
    ]  # fmt: skip
    lake.upsert("fingerprints", marks, Commit("marks", 1))


FIGURES = {
    "width": 900, "height": 600, "blur": 0.2, "brightness": 0.5, "contrast": 0.2, "dark_share": 0.0,
    "bright_share": 0.0, "blockiness": 1.0, "bits_per_pixel": 1.0, "sky_share": 0.3, "road_share": 0.2,
}  # fmt: skip


def test_pictures_take_the_split_from_their_place(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    images = [
        image("i1", "p1", "a" * 64),
        image("i2", "p2", "a" * 64),
        image("i3", "gone", "b" * 64, split="train"),
        image("i4", None, "c" * 64, split="validation", lat=10.0),
        image("i5", "p1", "d" * 64, kind="satellite", lat=20.0),
        image("i6", "p1", "e" * 64, lat=30.0),  # its pixels are not measured yet
    ]
    lake.upsert("places", PLACES, Commit("r", 1))
    lake.upsert("images", images, Commit("r", 2))
    measured(lake, images[:5])
    off = CurateSettings(duplicates=DuplicatesSettings(mirrored=False), labels=LabelsSettings(off_plan_km=20_000))
    found, rejects = duplicates_step.compute(inputs_of(lake, duplicates_step.STAGE), off)
    assert rejects.height == 0
    assert found.sort("id").select("id", "split", "reason", "duplicate_of", "leaks_into").rows() == [
        ("i1", "train", "exact_duplicate", "i2", "benchmark"),
        ("i2", "benchmark", None, None, None),
        ("i4", "validation", None, None, None),  # ingested: no place, a split of its own
        ("i5", "train", None, None, None),
    ]


STEPS: dict[str, list[dict[str, Any]]] = {
    "images": [image(f"i{n}", "p1", f"{n}" * 64) for n in range(10)],
    "quality": [{"image_id": f"i{n}", "sha256": f"{n}" * 64, **FIGURES} for n in range(10)],
    "duplicates": [
        {"image_id": "i0", "split": "train", "reason": "exact_duplicate", "duplicate_of": "i1",
         "evidence_json": '{"of":"i1"}'},
        {"image_id": "i1", "split": "train", "reason": "sequence_leak", "leaks_into": "benchmark",
         "evidence_json": '{"of":"i9","split":"train"}'},
        *({"image_id": f"i{n}", "split": "train"} for n in range(2, 10)),
    ],
    "judgements": [
        {"image_id": "i2", "problem": "corrupt_image", "evidence_json": '{"kind": "k"}'},
        {"image_id": "i3", "problem": "no_verdict", "evidence_json": '{"tries": 3}'},
        {"image_id": "i4", "localizability": "landmark", "score": 9.0, "reason": "A tower."},
        {"image_id": "i5", "localizability": "localizable", "score": 2.5, "reason": "A field."},
        {"image_id": "i6", "localizability": "localizable", "score": 7.0, "reason": "A sign."},
        {"image_id": "i7", "localizability": "localizable", "score": 8.0, "reason": "A shop.",
         "sub_scores_json": "{}", "scenes_json": "[]"},
        {"image_id": "i8", "localizability": "localizable", "score": 8.0, "reason": "A shop.", "sha256": "f" * 64},
        {"image_id": "i9", "localizability": "localizable", "score": 8.0, "reason": "A shop."},
    ],
    "addresses": [
        {"image_id": "i5", "country": "France"},
        {"image_id": "i6", "country": None},
        {"image_id": "i7", "country": "France", "country_code": "FR", "city": "Paris"},
        {"image_id": "i8", "country": "France"},
        {"image_id": "i9", "country": "France", "lat": 50.0},
    ],
}  # fmt: skip


def test_every_picture_is_a_label_or_a_reject_with_evidence_and_unfinished_ones_wait(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for table, rows in STEPS.items():
        given = {"judgements": {"model": "judge"}, "addresses": {"lat": 48.8566, "lon": 2.3522}}.get(table, {})
        for row in rows:
            number = row["image_id"][1:]
            given = given | ({"sha256": number * 64} if table == "judgements" else {})
            lake.upsert(table, [{**given, **row}], Commit(f"{table}-{number}", 1))
    kept, rejects = labels_step.compute(
        inputs_of(lake, labels_step.STAGE), CurateSettings(labels=LabelsSettings(min_score=5))
    )
    [label] = kept.to_dicts()
    assert (label["id"], label["country"], label["city"], label["split"]) == ("i7", "France", "Paris", "train")
    assert (label["localizability_score"], label["judge_model"], label["judge_reason"]) == (8.0, "judge", "A shop.")
    found = {row["id"]: (row["reason"], json.loads(row["evidence_json"])) for row in rejects.to_dicts()}
    assert found == {
        "i0": ("exact_duplicate", {"of": "i1"}),
        "i1": ("sequence_leak", {"split": "train", "of": "i9"}),
        "i2": ("corrupt_image", {"kind": "k"}),
        "i3": ("no_verdict", {"tries": 3}),
        "i4": ("landmark", {"model": "judge", "reason": "A tower.", "score": 9.0}),
        "i5": ("low_score", {"min_score": 5.0, "model": "judge", "reason": "A field.", "score": 2.5}),
        "i6": ("no_address", {"lat": 48.8566, "lon": 2.3522}),
    }  # i8 was judged by other bytes and i9 has the address of another point: both wait for their step
    kept, _ = labels_step.compute(inputs_of(lake, labels_step.STAGE), CurateSettings())
    assert set(kept["id"]) == {"i5", "i7"}


@pytest.fixture
def context(town: Any, tmp_path: Path) -> Context:
    lake = Lake(tmp_path / "lake")
    shas = [lake.images.put(town.scene(number), "jpg") for number in range(3)]
    images = [
        image("i1", "p1", shas[0], sequence_id="q1"),
        image("i2", "p1", shas[1], sequence_id="q2"),
        image("i3", "p2", shas[1], sequence_id="q3", lat=48.9, lon=2.4),
        image("i4", "p2", shas[2], sequence_id="q4", lat=48.9, lon=2.4),
    ]
    lake.upsert("places", PLACES, Commit("r", 1))
    lake.upsert("images", images, Commit("r", 2))
    return Context(lake, town.connections(), SpreadSettings(workers=1))


def curate(context: Context, settings: CurateSettings) -> dict[str, StageResult]:
    sections = {f"curate.{name}": getattr(settings, name) for name in type(settings).model_fields}
    sections["curate"] = settings
    return {stage.name: run(stage, sections[stage.section], context) for stage in STAGES}


def test_a_threshold_redoes_the_join_alone_and_another_split_pays_nothing(town: Any, context: Context) -> None:
    lake = context.lake
    town.answers = [town.verdict("localizable", score) for score in (8, 6, 4)]
    first = curate(context, CurateSettings())
    counts = {name: (one.total, one.kept, one.rejected, one.failed) for name, one in first.items()}
    assert counts == {
        "curate.quality": (4, 4, 0, 0),
        "curate.duplicates": (4, 4, 0, 0),
        "curate.judge": (3, 3, 0, 0),  # i2 has the bytes of i3
        "curate.address": (4, 4, 0, 0),
        "curate.confirm": (0, 0, 0, 0),
        "curate.tiers": (0, 0, 0, 0),
        "curate.labels": (4, 3, 1, 0),
    }
    assert len(town.asked) == 3 and town.located == []  # an address needs no request
    assert first["curate.judge"].usage.prompt_tokens == 300
    assert first["curate.labels"].total_rejects == {"exact_duplicate": 1}

    stricter = curate(context, CurateSettings(labels=LabelsSettings(min_score=5)))
    assert [name for name, one in stricter.items() if not one.nothing_to_do] == ["curate.labels"]
    low = stricter["curate.labels"].total_rejects  # the verdict on i3 holds for the same bytes as i2
    assert low in ({"exact_duplicate": 1, "low_score": 1}, {"low_score": 2})
    assert lake.read("labels").height == 2 and lake.read("judgements").height == 3  # every verdict stays

    swapped = [{**place, "split": "validation"} for place in PLACES[1:]]
    lake.upsert("places", swapped, Commit("r", 3))
    curate(context, CurateSettings())
    assert set(lake.read("labels")["split"]) == {"train", "validation"}
    assert len(town.asked) == 3 and town.located == []  # the judge was not asked again


def copies_of(lake: Lake, town: Any) -> list[dict[str, Any]]:
    """A picture with its right position, a smaller copy of it in the benchmark with a wrong one, and a third."""
    whole = Image.open(io.BytesIO(town.scene(7)))
    out = io.BytesIO()
    whole.resize((432, 288)).save(out, "JPEG", quality=85)
    shas = [lake.images.put(data, "jpg") for data in (town.scene(7), out.getvalue(), town.scene(8))]
    return [
        image("right", "p1", shas[0], sequence_id="q1"),
        image("copy", "p2", shas[1], sequence_id="q2", lat=48.9, lon=2.4),
        image("other", "p1", shas[2], sequence_id="q3"),
    ]


@pytest.mark.parametrize("fault", ["position", "quality", "rights"])
def test_a_copy_that_is_itself_unfit_never_displaces_the_right_picture(town: Any, tmp_path: Path, fault: str) -> None:
    lake = Lake(tmp_path / "lake")
    rows = copies_of(lake, town)
    rows[1] |= {"position": {"lat": 2.4, "lon": 48.9}, "quality": {}, "rights": {"licence": " "}}[fault]
    lake.upsert("places", PLACES, Commit("r", 1))
    lake.upsert("images", rows, Commit("r", 2))
    least = QualityLimits(least_pixels=450 * 300) if fault == "quality" else QualityLimits()
    result = curate(
        Context(lake, town.connections(), SpreadSettings(workers=1)),
        CurateSettings(labels=LabelsSettings(quality=least)),
    )
    reason = {"position": "swapped_coordinates", "quality": "too_small", "rights": "missing_licence"}[fault]
    assert result["curate.labels"].total_rejects == {reason: 1}
    assert set(lake.read("labels")["image_id"]) == {"right", "other"}
    assert len(town.asked) == 2  # no request for what is rejected anyway


def test_where_the_judge_rejects_the_copy_that_would_stay_the_other_one_does(town: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.upsert("places", PLACES, Commit("r", 1))
    lake.upsert("images", copies_of(lake, town), Commit("r", 2))
    context = Context(lake, town.connections(), SpreadSettings(workers=1))
    curate(context, CurateSettings())
    assert set(lake.read("labels")["image_id"]) == {"copy", "other"}  # the benchmark keeps what both splits have
    judged = lake.read("judgements")
    assert judged.height == 3 and len(town.asked) == 3
    landmark = judged.filter(pl.col("image_id") == "copy").with_columns(localizability=pl.lit("landmark"))
    lake.upsert("judgements", landmark.to_dicts(), Commit("r", 3))
    again = curate(context, CurateSettings())
    assert set(lake.read("labels")["image_id"]) == {"right", "other"}
    assert again["curate.labels"].total_rejects == {"landmark": 1}


def test_a_failed_judgement_waits_and_its_label_comes_with_the_next_run(town: Any, context: Context) -> None:
    town.status = 503
    first = curate(context, CurateSettings())
    assert (first["curate.judge"].failed, first["curate.labels"].total) == (3, 1)
    town.status = 200
    second = curate(context, CurateSettings())
    assert (second["curate.labels"].kept, context.lake.read("labels").height) == (3, 3)


def test_quality_place_licence_and_time_have_reasons_of_their_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    far = {"lat": -20.0, "lon": 30.0}
    then = {"captured_at": datetime(2030, 1, 1, tzinfo=UTC), "fetched_at": datetime(2026, 1, 1, tzinfo=UTC)}
    defects: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("blurred", {}, {"blur": 0.7}),
        ("bad_exposure", {}, {"brightness": 0.001}),
        ("too_small", {}, {"width": 100, "height": 100}),
        ("over_compressed", {}, {"blockiness": 9.0}),
        ("nothing_but_sky_or_road", {}, {"sky_share": 0.99}),
        ("missing_licence", {"licence": " "}, {}),
        ("off_plan", far, {}),
        ("swapped_coordinates", {"lat": 2.3522, "lon": 48.8566}, {}),
        ("bad_time", then, {}),
        ("wrong_country", {"place_id": "p3"}, {}),
    ]
    images = [image(f"i{n}", "p1", f"{n}" * 64, **changes) if "place_id" not in changes
              else image(f"i{n}", "p3", f"{n}" * 64) for n, (_, changes, _) in enumerate(defects)]  # fmt: skip
    wrong = {**PLACES[0], "place_id": "p3", "country": "PT"}
    lake.upsert("places", [*PLACES, wrong], Commit("p", 1))
    lake.upsert("images", images, Commit("i", 1))
    rows = [{"image_id": one["image_id"], "sha256": one["sha256"]} for one in images]
    figures = [row | FIGURES | changes for row, (_, _, changes) in zip(rows, defects, strict=True)]
    lake.upsert("quality", figures, Commit("q", 1))
    lake.upsert("duplicates", [{"image_id": row["image_id"], "split": "train"} for row in rows], Commit("d", 1))
    good = {"model": "judge", "localizability": "localizable", "score": 7.0, "reason": "A sign."}
    lake.upsert("judgements", [row | good for row in rows], Commit("j", 1))
    address = {"country": "France", "country_code": "FR", "address": "France; Paris"}
    points = [{"image_id": one["image_id"], "lat": one["lat"], "lon": one["lon"]} | address for one in images]
    lake.upsert("addresses", points, Commit("a", 1))
    kept, rejects = labels_step.compute(inputs_of(lake, labels_step.STAGE), CurateSettings())
    assert kept.height == 0
    found = {row["id"]: row for row in rejects.to_dicts()}
    assert [found[f"i{n}"]["reason"] for n in range(len(defects))] == [reason for reason, _, _ in defects]
    assert json.loads(found["i0"]["evidence_json"])["blur"] == 0.7
    assert json.loads(found["i7"]["evidence_json"])["swapped_km"] < 1


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("A dashcam stamp '48.8570, 2.3520 12 km/h' is burnt in.", "48.8570, 2.3520 12 km/h"),
        ('A sign reads "Bienvenue en France".', "Bienvenue en France"),
        ("A board «Grenze zu Frankreich» at a road.", "Grenze zu Frankreich"),
        ("A stamp '-33.8688, 151.2093' on a poster.", None),  # of another place
        ("A sign 'Made in Germany', and it's a street in France.", None),
        ("House number '48' beside '2' cars.", None),
        (None, None),
    ],
)
def test_writing_that_gives_the_place_away_is_found(said: str | None, found: str | None) -> None:
    assert place_written(said, 48.8566, 2.3522, "FR") == found


def test_a_picture_with_its_coordinates_in_it_is_no_label(town: Any, context: Context) -> None:
    stamped = json.loads(town.verdict()) | {"reason": "The stamp '48.8566, 2.3522' is burnt in."}
    town.answers = [json.dumps(stamped)]
    result = curate(context, CurateSettings())["curate.labels"]
    assert result.total_rejects["place_written"] == 4
    kept = curate(context, CurateSettings(labels=LabelsSettings(written_place="keep")))["curate.labels"]
    assert kept.total_rejects == {"exact_duplicate": 1}


def test_base_models_that_all_answered_give_a_tier() -> None:
    settings = TiersSettings(models=("a", "b", "c"))
    errors = {"easy": (1.0, 9.0, None), "hard": (1.0, 11.0, None), "unfinished": (1.0, 1.0)}
    rows = [
        {"image_id": name, "sha256": "x", "model": model, "error_km": error}
        for name, answers in errors.items()
        for model, error in zip("abc", answers, strict=False)
    ]
    found = tier_of(pl.DataFrame(rows), settings)
    assert dict(found.select("image_id", "tier").rows()) == {"easy": "easy", "hard": "hard"}


def test_judges_vote() -> None:
    def verdict(image_id: str, model: str, kind: str | None, score: float = 5.0, sign: str = "yes") -> dict[str, Any]:
        row = {"image_id": image_id, "sha256": "x", "model": model, "problem": None, "evidence_json": None}
        if kind is None:
            return row | {"problem": "no_verdict", "evidence_json": "{}"}
        texts = {"sub_scores_json": json.dumps({"image_clarity": score}), "scenes_json": json.dumps({"sign": sign})}
        return row | {"localizability": kind, "score": score, "reason": f"{model} says {kind}", **texts}

    judged = [
        verdict("two_of_three", "a", "localizable", 8), verdict("two_of_three", "b", "landmark", 4, "no"),
        verdict("two_of_three", "c", "localizable", 6),
        verdict("tie", "a", "localizable", 8), verdict("tie", "b", "non_localizable", 2, "no"),
        verdict("one_speaks", "a", None), verdict("one_speaks", "b", "localizable", 7),
        verdict("none_speaks", "a", None), verdict("none_speaks", "b", None),
        verdict("alone", "a", "localizable", 9),
    ]  # fmt: skip
    schema = {"problem": pl.String, "evidence_json": pl.String, "localizability": pl.String, "score": pl.Float64}
    frame = pl.DataFrame(judged, schema_overrides=schema, infer_schema_length=None)
    classes: dict[str, dict[str, str | None]] = {
        rule: dict(combined(frame, rule).select("image_id", "localizability").rows())  # type: ignore[arg-type]
        for rule in ("majority", "all", "any")
    }
    assert classes["majority"] == {
        "two_of_three": "localizable", "tie": "non_localizable", "one_speaks": "localizable", "none_speaks": None,
        "alone": "localizable",
    }  # fmt: skip
    assert classes["all"]["two_of_three"] == "landmark" and classes["any"]["tie"] == "localizable"
    row = combined(frame, "majority").filter(pl.col("image_id") == "two_of_three").to_dicts()[0]
    assert (row["localizability_score"], row["judge_model"], row["judge_reason"]) == (
        6.0,
        "a,b,c",
        "a says localizable",
    )
    assert json.loads(row["scenes_json"]) == {"sign": "yes"}
    assert json.loads(combined(frame, "any").filter(pl.col("image_id") == "tie")["scenes_json"][0]) == {"sign": "maybe"}
    none = combined(frame, "majority").filter(pl.col("image_id") == "none_speaks").to_dicts()[0]
    assert none["problem"] == "no_verdict"


async def test_every_judge_is_asked_and_every_verdict_kept(town: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    settings = JudgeSettings(second_opinions=("other", "judge"))
    context = judge_step.WorkerContext(Chat(town.connections().chat), lake, settings)
    item = {"id": "i1", "sha256": lake.images.put(town.scene(1), "jpg"), "extension": "jpg", "kind": "photo"}
    outcome = await judge_step.work(item, context)
    assert [row["model"] for row in outcome.rows["judgements"]] == ["judge", "other"]
    assert outcome.usage.prompt_tokens == 200
