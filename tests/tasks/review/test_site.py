"""The site: pages are found by being there, made again only when needed, and say in words what tables hold."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.review import ReviewSettings
from tasks.lake import Commit, Lake
from tasks.review.site.build import ASSETS, all_pages, build_site
from tasks.review.site.compare import drift
from tasks.review.site.page import GROUPS, Source, chunk_of
from tasks.review.site.pages.leaderboard import best
from tasks.review.site.pages.training import training_page
from tasks.review.site.words import evidence

MakeLake = Callable[..., Lake]
SETTINGS = ReviewSettings(thumbnail_px=96, look_around=2, sample=5)


def snapshot(lake: Lake, **columns: Any) -> dict[str, Any]:
    versions = {name: lake.version(name) for name in ("places", "images", "labels", "rejects")}
    counts = {
        "places": 9,
        "images": 16,
        "labels": 13,
        "rejects_by_reason": {"non_localizable": 3, "no_imagery_near": 1},
    }
    return {
        "snapshot_id": "a" * 24,
        "table_versions_json": json.dumps(versions),
        "counts_json": json.dumps({**counts, "stages": []}),
        "checks_json": "[]",
        "checks_passed": True,
        "status": "pending",
        **dict.fromkeys(("reviewer", "why", "reviewed_at", "created_at")),
        **columns,
    }


def data(site: Path, name: str) -> Any:
    text = (site.parent / "data" / f"{name}.js").read_text("utf-8")
    start = f'geofix.push("{name}",'
    assert text.startswith(start) and text.endswith(");\n")
    return json.loads(text[len(start) : -3])


def test_every_page_has_a_group_and_only_known_tables() -> None:
    from schemas.tables import TABLES

    pages = all_pages()
    assert len({page.id for page in pages}) == len(pages) > 12
    for page in pages:
        assert page.group in GROUPS and set(page.reads) <= set(TABLES)


def test_only_pages_whose_tables_changed_are_made_again(make_lake: MakeLake) -> None:
    lake = make_lake()
    site = build_site(lake, snapshot(lake), SETTINGS)
    files = sorted((site.parent / "data").glob("*.js"))
    for path in files:
        os.utime(path, (1, 1))
    build_site(lake, snapshot(lake), SETTINGS)
    assert all(path.stat().st_mtime == 1 for path in files), "nothing changed"
    failure = {"stage": "collect", "item_id": "p1", "kind": "outage", "message": "no answer", "attempts": 1}
    lake.upsert("failures", [failure], Commit("test", 1))
    build_site(lake, snapshot(lake), SETTINGS)
    assert {path.stem for path in files if path.stat().st_mtime != 1} == {"failures", "start"}
    assert "no answer" in json.dumps(data(site, "failures"))


def test_a_picture_is_there_with_its_history_in_words(make_lake: MakeLake) -> None:
    lake = make_lake()
    site = build_site(lake, snapshot(lake), SETTINGS)
    rejected = lake.read("rejects").row(0, named=True)
    chunks = data(site, "picture")[0]["chunks"]
    found = data(site, f"picture-{chunk_of(rejected['item_id'], chunks)}")[rejected["item_id"]]
    titles = [step["title"] for step in found["history"]]
    assert titles == ["Planned", "Fetched", "Rejected"]
    assert "A plain field without any writing" in found["history"][2]["text"]
    assert "{" not in json.dumps([step["text"] for step in found["history"]])
    assert len(found["neighbours"]) == 6 and found["neighbours"][0][1] == "0 m", "the panorama of the same place"
    assert (site.parent / "pictures" / rejected["item_id"][:2] / f"{rejected['item_id']}.jpg").is_file()
    assert len(data(site, "site")["panoramas"]) == 2


def test_what_comes_from_the_web_stays_data(make_lake: MakeLake) -> None:
    evil = "</script><script>alert(1)</script>\u2028 ../../x"

    def poison(rows: dict[str, list[dict[str, Any]]]) -> None:
        for image in rows["images"]:
            image.update(creator=evil, attribution=evil, licence=evil)
        for label in rows["labels"]:
            label.update(country=evil, city=evil, judge_reason=evil)
        for one in rows["rejects"]:
            one.update(reason=evil, evidence_json=json.dumps({evil: [evil]}))

    lake = make_lake(poison)
    site = build_site(lake, snapshot(lake, why=evil), SETTINGS)
    assert site.read_bytes() == (ASSETS / "index.html").read_bytes(), "no value is ever written into the page itself"
    assert evil.replace("\u2028", " ") in data(site, "pictures-0")["creator"]["values"]
    names = {path.name for path in site.parent.rglob("*") if path.is_file()}
    assert not any("alert" in name for name in names)


def test_our_scripts_never_write_markup_or_ask_the_network() -> None:
    for path in ASSETS.glob("*.js"):
        text = path.read_text("utf-8")
        assert not any(
            word in text for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
        )
        assert "http://" not in text and "https://" not in text, path.name
    assert all(any(path.parent.glob(name)) for path in (ASSETS / "vendor").glob("*/*.js") for name in ["[LC][IO][CP]*"])


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ('{"reason": "Only grass.", "score": 2.0}', "Only grass; score 2"),
        ('{"half_size_m": 5000, "seen": 0}', "half size 5,000 m; seen 0"),
        ('{"distance_km": 1.23456, "of": ["a", "b"]}', "distance 1.235 km; of a, b"),
        ('{"answer": "{\\"country\\": \\"Peru\\"}"}', "answer country Peru"),
        ("not json", "not json"),
        (None, ""),
    ],
)
def test_evidence_is_words(stored: str | None, said: str) -> None:
    assert evidence(stored) == said


def test_drift_is_the_share_that_would_have_to_move() -> None:
    import polars as pl

    found = drift("Country", pl.Series(["FR"] * 6 + ["DE"] * 4), pl.Series(["FR"] * 3 + ["DE"] * 4 + ["PE"] * 3))
    assert found.moved == pytest.approx(0.3) and found.most in ("FR 60.0% → 30.0%", "PE 0.0% → 30.0%")
    assert drift("Country", pl.Series(["FR"]), pl.Series(["FR"] * 9)).moved == 0


def test_a_withdrawn_picture_leaves_every_site(make_lake: MakeLake) -> None:
    from tasks.review.withdraw import withdraw

    lake = make_lake()
    lake.upsert("snapshots", [snapshot(lake)], Commit("review", 1))
    site = build_site(lake, snapshot(lake), ReviewSettings(thumbnail_px=96))
    gone = lake.read("labels").row(0, named=True)

    def naming() -> list[str]:
        mine = gone["image_id"].encode()
        return [path.name for path in site.parent.rglob("*") if path.is_file() and mine in path.read_bytes()]

    picture = site.parent / "pictures" / gone["image_id"][:2] / f"{gone['image_id']}.jpg"
    assert naming() and picture.is_file() and len(data(site, "site")["panoramas"]) == 8
    withdraw(lake, gone["image_id"], "a face", "Ada")
    assert naming() == [] and not picture.exists()
    assert not (site.parent / "data" / "panorama" / f"{gone['image_id']}.js").exists()


def test_the_best_of_a_row_is_marked_only_where_no_interval_overlaps() -> None:
    def cells(*values: tuple[float, float, float] | None) -> list[dict[str, Any] | None]:
        names = ("low", "value", "high")
        return [None if value is None else dict(zip(names, value, strict=True)) for value in values]

    assert best("acc@25km", cells((0.4, 0.5, 0.6), (0.61, 0.7, 0.8))) == [1]
    assert best("acc@25km", cells((0.1, 0.33, 0.9), (0.2, 0.67, 0.99))) == []  # three pictures
    assert best("median_km", cells((8, 9, 10), (2, 3, 4), None)) == [1] and best("acc@1km", cells(None)) == []
    assert best("tokens_mean", cells((3, 4, 5), (4, 5, 6))) == []


def test_training_shows_pass_at_k_and_tool_errors_by_step(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    validations = [{"step": n, "pass@1/acc@25km": n / 20, "pass@4/acc@25km": n / 10, "loss": 1.0} for n in (0, 10)]
    metrics = {"tool_error_rate": [0.5, None, 0.25], "reward": [0.1, 0.2, 0.3], "validations": validations}
    metrics |= {f"behaviour/{name}": [1.0, 0.5, 0.0] for name in ("marks all", "marks none", "repeats")}
    metrics |= {"reward/tools": [0.0, 0.1, 0.2], "reward/form": [0.1] * 3, "tool_near": [0.0, None, 0.5]}
    model = {"model_id": "m", "training_stage": "grpo", "checkpoint": "models/m", "recipe": "r"}
    lake.upsert("models", [{**model, "metrics_json": json.dumps(metrics)}], Commit("train", 1))
    plots = {
        block["title"]: block
        for block in training_page.make(Source(lake, {"table_versions_json": "{}"}, ReviewSettings()))
        if block["block"] == "lines"
    }
    best = plots["pass@K within 25km"]
    assert best["x"] == [0, 10] and best["series"] == {"pass@1": [0.0, 0.5], "pass@4": [0.0, 1.0]}
    [errors] = [block for title, block in plots.items() if title.startswith("tool errors: share of calls")]
    assert errors["series"]["tool error rate"] == [0.5, None, 0.25]
    shown = {title.partition(":")[0]: set(block["series"]) for title, block in plots.items()}
    assert shown["ways to be paid without the work"] == {"marks all", "marks none", "repeats"}
    assert shown["what the reward consists of"] == {"tools", "form"} and shown["recorded tools"] == {"tool near"}
    assert shown["reward"] == {"reward"}
