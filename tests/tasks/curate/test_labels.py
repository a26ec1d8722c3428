"""The steps of curation through the runner: what becomes a label, why not, and what a changed setting costs."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.curate import CurateSettings, DuplicatesSettings, LabelsSettings
from schemas.settings.spread import SpreadSettings
from tasks.curate import STAGES
from tasks.curate import duplicates as duplicates_step
from tasks.curate import labels as labels_step
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context, Inputs, StageResult, run

COMMON = {"kind": "photo", "lat": 1.0, "lon": 2.0, "source": "s", "source_id": "1", "licence": "l", "attribution": "a"}
PLACES = [
    {"place_id": "p1", "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"},
    {"place_id": "p2", "country": "FR", "lat": 1.0, "lon": 3.0, "split": "benchmark"},
]


def inputs_of(lake: Lake, stage: Any) -> Inputs:
    return Inputs(lake, {table: lake.version(table) for table in stage.reads})


def image(image_id: str, place_id: str | None, sha256: str, **changes: Any) -> dict[str, Any]:
    return {"image_id": image_id, "place_id": place_id, "sha256": sha256, "extension": "jpg", **COMMON, **changes}


def test_pictures_take_the_split_from_their_place(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    images = [
        image("i1", "p1", "a" * 64),
        image("i2", "p2", "a" * 64),
        image("i3", "gone", "b" * 64, split="train"),
        image("i4", None, "c" * 64, split="validation"),
        image("i5", "p1", "d" * 64, kind="satellite"),
    ]
    lake.upsert("places", PLACES, Commit("r", 1))
    lake.upsert("images", images, Commit("r", 2))
    found, rejects = duplicates_step.compute(inputs_of(lake, duplicates_step.STAGE), DuplicatesSettings())
    assert rejects.height == 0
    assert found.sort("id").select("id", "split", "duplicate_of", "evidence_json").rows() == [
        ("i1", "train", "i2", '{"of":"i2"}'),
        ("i2", "benchmark", None, None),
        ("i4", "validation", None, None),  # ingested: no place, a split of its own
    ]
    every = DuplicatesSettings(kinds=("panorama", "photo", "satellite"))
    found, _ = duplicates_step.compute(inputs_of(lake, duplicates_step.STAGE), every)
    assert found.sort("id").select("id", "split").rows()[-1] == ("i5", "train")
    assert found.schema["leaks_into"] == pl.String


STEPS: dict[str, list[dict[str, Any]]] = {
    "images": [image(f"i{n}", "p1", f"{n}" * 64) for n in range(10)],
    "duplicates": [
        {"image_id": "i0", "split": "train", "duplicate_of": "i1", "evidence_json": '{"of":"i1"}'},
        {"image_id": "i1", "split": "train", "leaks_into": "benchmark",
         "evidence_json": '{"sequence_also_in":"benchmark","split":"train"}'},
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
        given = {"judgements": {"model": "judge"}, "addresses": {"lat": 1.0, "lon": 2.0}}.get(table, {})
        for row in rows:
            number = row["image_id"][1:]
            given = given | ({"sha256": number * 64} if table == "judgements" else {})
            lake.upsert(table, [{**given, **row}], Commit(f"{table}-{number}", 1))
    kept, rejects = labels_step.compute(inputs_of(lake, labels_step.STAGE), LabelsSettings(min_score=5))
    [label] = kept.to_dicts()
    assert (label["id"], label["country"], label["city"], label["split"]) == ("i7", "France", "Paris", "train")
    assert (label["localizability_score"], label["judge_model"], label["judge_reason"]) == (8.0, "judge", "A shop.")
    found = {row["id"]: (row["reason"], json.loads(row["evidence_json"])) for row in rejects.to_dicts()}
    assert found == {
        "i0": ("exact_duplicate", {"of": "i1"}),
        "i1": ("sequence_leak", {"split": "train", "sequence_also_in": "benchmark"}),
        "i2": ("corrupt_image", {"kind": "k"}),
        "i3": ("no_verdict", {"tries": 3}),
        "i4": ("landmark", {"model": "judge", "reason": "A tower.", "score": 9.0}),
        "i5": ("low_score", {"min_score": 5.0, "model": "judge", "reason": "A field.", "score": 2.5}),
        "i6": ("no_address", {"lat": 1.0, "lon": 2.0}),
    }  # i8 was judged by other bytes and i9 has the address of another point: both wait for their step
    kept, _ = labels_step.compute(inputs_of(lake, labels_step.STAGE), LabelsSettings())
    assert set(kept["id"]) == {"i5", "i7"}


@pytest.fixture
def context(town: Any, tmp_path: Path) -> Context:
    lake = Lake(tmp_path / "lake")
    shas = [lake.images.put(town.street(text), "jpg") for text in ("Bar", "Café", "Hotel")]
    images = [
        image("i1", "p1", shas[0], sequence_id="q1"),
        image("i2", "p1", shas[1], sequence_id="q2"),
        image("i3", "p2", shas[1], sequence_id="q3"),
        image("i4", "p2", shas[2], sequence_id="q4"),
    ]
    lake.upsert("places", PLACES, Commit("r", 1))
    lake.upsert("images", images, Commit("r", 2))
    return Context(lake, town.connections(), SpreadSettings(workers=1))


def curate(context: Context, settings: CurateSettings) -> dict[str, StageResult]:
    sections = {f"curate.{name}": getattr(settings, name) for name in type(settings).model_fields}
    return {stage.name: run(stage, sections[stage.section], context) for stage in STAGES}


def test_a_threshold_redoes_the_join_alone_and_another_split_pays_nothing(town: Any, context: Context) -> None:
    lake = context.lake
    town.answers = [town.verdict("localizable", score) for score in (8, 6, 4)]
    first = curate(context, CurateSettings())
    counts = {name: (one.total, one.kept, one.rejected, one.failed) for name, one in first.items()}
    assert counts == {
        "curate.duplicates": (4, 4, 0, 0),
        "curate.judge": (3, 3, 0, 0),  # i2 has the bytes of i3
        "curate.address": (3, 3, 0, 0),
        "curate.labels": (4, 3, 1, 0),
    }
    assert len(town.asked) == 3 and len(town.located) == 3
    assert first["curate.judge"].usage.prompt_tokens == 300
    assert first["curate.labels"].standing_rejects == {"exact_duplicate": 1}

    stricter = curate(context, CurateSettings(labels=LabelsSettings(min_score=5)))
    assert [name for name, one in stricter.items() if not one.nothing_to_do] == ["curate.labels"]
    assert stricter["curate.labels"].standing_rejects == {"exact_duplicate": 1, "low_score": 1}
    assert lake.read("labels").height == 2 and lake.read("judgements").height == 3  # every verdict stays

    swapped = [{**place, "split": "validation"} for place in PLACES[1:]]
    lake.upsert("places", swapped, Commit("r", 3))
    curate(context, CurateSettings())
    assert set(lake.read("labels")["split"]) == {"train", "validation"}
    assert len(town.asked) == 3 and len(town.located) == 3  # neither the judge nor the geocoder was asked again


def test_a_failed_judgement_waits_and_its_label_comes_with_the_next_run(town: Any, context: Context) -> None:
    town.status = 503
    first = curate(context, CurateSettings())
    assert (first["curate.judge"].failed, first["curate.labels"].total) == (3, 1)
    town.status = 200
    second = curate(context, CurateSettings())
    assert (second["curate.labels"].kept, context.lake.read("labels").height) == (3, 3)
