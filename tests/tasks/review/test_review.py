"""Review: broken tables are found, the snapshot's name follows from its content."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.errors import NotFound
from schemas.settings.review import ReviewSettings
from tasks.lake import Commit, Lake
from tasks.review import ReviewRefused, approve, auto_approve, decisions, newest_snapshot, reject
from tasks.review.checks import Check
from tasks.review.evidence import TABLES, funnel, gather, unfinished
from tasks.review.snapshot import WorkerContext, items, work
from tasks.runtime.runner import Inputs
from tasks.runtime.snapshots import verdict_text

MakeLake = Callable[..., Lake]
Rows = dict[str, list[dict[str, Any]]]
NOW, LATER = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
SETTINGS = ReviewSettings(thumbnail_px=96, data_docs=False)  # test_suites.py builds the Data Docs, which take seconds


def item_of(lake: Lake) -> dict[str, Any]:
    inputs = Inputs(lake, {table: lake.version(table) for table in TABLES})
    return items(inputs, SETTINGS).row(0, named=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Replaces the checks, which take a second, by a list that the test may change."""
    checks = [Check("labels", "there is at least one row", True, 13, 0)]
    monkeypatch.setattr("tasks.review.snapshot.run_checks", lambda *given: checks)
    return checks


def review(lake: Lake) -> dict[str, Any]:
    """The snapshot row, as the frame would write it."""
    outcome = work(item_of(lake), WorkerContext(lake, SETTINGS))
    row = outcome.rows["snapshots"][0]
    written = {**row, "stage": "review", "item_id": row["snapshot_id"], "made_from": "m"}
    lake.upsert("snapshots", [written], Commit(f"review-{lake.version('snapshots')}", 1))
    return row


def data(lake: Lake, row: dict[str, Any], name: str) -> str:
    """A data script of the snapshot's site."""
    return ((lake.root / row["report"]).parent / "data" / f"{name}.js").read_text("utf-8")


def failing(row: dict[str, Any]) -> set[str]:
    return {f"{check['table']}: {check['says']}" for check in json.loads(row["checks_json"]) if not check["passed"]}


def test_a_sound_lake_passes_and_adds_up(make_lake: MakeLake) -> None:
    lake = make_lake()
    row = review(lake)
    assert failing(row) == set()
    assert row["checks_passed"] is True
    assert row["status"] == "pending"
    counts = json.loads(row["counts_json"])
    assert (counts["places"], counts["images"], counts["labels"], counts["rejects"]) == (9, 16, 13, 4)
    assert [(one.stage, one.items_in, one.kept, one.rejected) for one in funnel(gather(lake))] == [
        ("plan", 9, 9, 0),
        ("collect", 9, 8, 1),
        ("curate.labels", 16, 13, 3),
    ]
    assert "no_imagery_near" in data(lake, row, "start") and "CC BY-SA 4.0" in data(lake, row, "licences")
    assert f"approve {row['snapshot_id'][:12]}" in data(lake, row, "reproduce")
    assert "Salvador" in data(lake, row, "pictures-0")
    assert not list((lake.root / "reports").rglob(".*"))


def _set(table: str, column: str, value: Any, number: int = 0) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows[table][number][column] = value

    return change


def _same_sequence(rows: Rows) -> None:
    for image in rows["images"]:
        image["sequence_id"] = "one-drive"


def _lose_a_label(rows: Rows) -> None:
    rows["labels"].pop()


BROKEN: list[tuple[Callable[[Rows], None], str]] = [
    (_set("places", "lat", 91.0), "places: lat lies in -90..90"),
    (_set("places", "split", "test", 1), "places: split is train, validation, benchmark"),
    (_set("places", "country", "fr", 2), "places: country is an ISO 3166 alpha-2 code"),
    (_set("places", "cell", "N00E002", 4), "places: no cell lies in two splits"),
    (_set("images", "lon", 200.0), "images: lon lies in -180..180"),
    (_set("images", "sha256", "not a hash", 1), "images: sha256 is 64 hex digits"),
    (_set("images", "source_id", "4.546e+18", 2), "images: source_id never went through a float"),
    (_set("images", "place_id", "unknown", 3), "images: every image answers a known place"),
    (_set("images", "width", 700, 4), "images: a panorama is twice as wide as high"),
    (_set("labels", "image_id", "unknown"), "labels: every label belongs to a live image"),
    (
        _set("labels", "split", "benchmark", 1),
        "labels: an image's split is its place's, or its own where it answers none",
    ),
    (_set("labels", "lat", 1.0, 2), "labels: label and image stand at the same point"),
    (_set("labels", "localizability", "landmark", 3), "labels: localizability is localizable, where a judge was asked"),
    (_set("labels", "country", None, 4), "labels: country is never missing"),
    (_same_sequence, "labels: no sequence leaks between splits"),
    (_set("runs", "kept", 1), "runs: in = kept + rejected + failed in every finished run"),
    (_lose_a_label, "stages: in = kept + rejected + failed over all runs: no row is lost"),
]


def test_broken_tables_are_found(make_lake: MakeLake) -> None:
    """All at once, each on a row of its own: a run of the checks takes a second."""

    def break_everything(rows: Rows) -> None:
        for change, _ in BROKEN:
            change(rows)
        train, other = rows["labels"][-1], next(one for one in rows["labels"] if one["split"] == "validation")
        other["sha256"] = train["sha256"]

    row = review(make_lake(break_everything))
    wanted = {says for _, says in BROKEN}
    wanted |= {"labels: no picture leaks between splits", "labels: no picture is there twice"}
    assert wanted - failing(row) == set()
    assert row["checks_passed"] is False


def test_failed_rows_and_missing_stages_fail_the_review(make_lake: MakeLake) -> None:
    lake = make_lake()
    labels = lake.read("labels").head(3)
    failures = [
        {"stage": "curate.labels", "item_id": item, "kind": "outage", "attempts": 1} for item in labels["item_id"]
    ]
    lake.upsert("failures", failures, Commit("failed", 1))
    assert failing(review(lake)) == {"stages: at most 10% of what a stage was given failed"}
    assert "curate.labels: 3 of 16" in verdict_text(lake.read("snapshots").row(0, named=True))

    def two_stages_amiss(rows: Rows) -> None:
        plan, _, curate = rows["runs"]
        rows["runs"].append({**curate, "run_id": "again", "status": "interrupted", "started_at": NOW})
        plan["finished_at"] = NOW  # places that collect has not seen
        rows["runs"][1]["input_versions_json"] = json.dumps({"places": 0})
        plan["input_versions_json"] = json.dumps({"images": 0, "labels": 0})  # of the refresh before, for its focus
        plan["started_at"] = datetime(2020, 1, 1, tzinfo=UTC)

    other = make_lake(two_stages_amiss, name="other")
    before = item_of(other)
    row = review(other)
    assert failing(row) == {"stages: every stage has finished, with all that came before it as its input"}
    said = verdict_text(row)
    assert "curate.labels: its last run was interrupted" in said and "collect has not seen what plan made" in said
    seen = [one for one in unfinished(other.read("runs")) if "has not seen" in one]
    assert seen == ["collect has not seen what plan made"], "what follows a plan is for the next one"
    runs = [{**run, "run_id": f"{run['run_id']}-2", "started_at": LATER, "finished_at": LATER, "status": "done"}
            for run in other.read("runs").unique("stage").to_dicts()]  # fmt: skip
    other.append("runs", runs, Commit("finished", 1))
    assert item_of(other) != before, "the review looks again"
    old = {**runs[0], "stage": "curate.old", "run_id": "old", "status": "failed", "started_at": NOW}
    other.append("runs", [{**old, "output_versions_json": '{"labels": 0}'}], Commit("renamed", 1))
    assert failing(review(other)) == set()


def test_photos_that_were_ingested_need_no_plan(make_lake: MakeLake) -> None:
    def ingested(rows: Rows) -> None:
        splits = {place["place_id"]: place["split"] for place in rows["places"]}
        for image in rows["images"]:
            image |= {"split": splits[image["place_id"]], "place_id": None, "stage": "ingest"}
        for label in rows["labels"]:
            label["place_id"] = None
        rows["places"].clear()
        rows["rejects"] = [one for one in rows["rejects"] if one["stage"] != "collect"]
        rows["runs"] = [{**run, "stage": {"collect": "ingest"}.get(run["stage"], run["stage"])} for run in rows["runs"]
                        if run["stage"] != "plan"]  # fmt: skip

    assert failing(review(make_lake(ingested))) == set()

    def without_plan(rows: Rows) -> None:
        rows["places"].clear()

    assert "places: there is at least one row" in failing(review(make_lake(without_plan, name="unplanned")))


def test_a_damaged_file_is_found_and_shown_as_gone(make_lake: MakeLake) -> None:
    lake = make_lake()
    first = lake.read("labels").sort("country_code", "image_id").row(0, named=True)
    file = lake.images.path(first["sha256"], "jpg")
    whole = file.read_bytes()
    file.write_bytes(b"\xff\xd8 rotten")
    item = item_of(lake)
    row = review(lake)
    assert "files: a stored picture's bytes match its sha256" in failing(row)
    assert '"unreadable":1' in data(lake, row, "site")
    file.write_bytes(whole)
    second = item_of(lake)
    assert second != item and second["id"] == item["id"], "the picture may be back: it looks again"
    again = review(lake)
    assert failing(again) == set() and again["looks"] == 1
    assert item_of(lake) == second, "and then no more"


def test_an_item_whose_redoing_failed_is_counted_once(make_lake: MakeLake) -> None:
    lake = make_lake()
    rejected = lake.read("rejects").filter(pl.col("stage") == "curate.labels")["item_id"][0]
    kept = lake.read("labels")["item_id"][0]
    rows = [{"stage": "curate.labels", "item_id": item, "kind": "outage", "attempts": 1} for item in (kept, rejected)]
    lake.upsert("failures", rows, Commit("failed", 1))
    count = funnel(gather(lake))[-1]
    assert (count.items_in, count.kept, count.rejected, count.failed, count.lost) == (16, 12, 2, 2, 0)


def test_photos_brought_in_portion_by_portion_and_second_looks_upset_no_account(make_lake: MakeLake) -> None:
    def bring_in(rows: Rows) -> None:
        kind = {"kind": "photo", "place_id": None, "split": "train", "source": "mine", "source_id": "7"}
        photo = {**rows["images"][0], **kind, "image_id": "brought-in", "stage": "ingest", "item_id": "mine/7"}
        rows["images"].append(photo)
        rows["rejects"].append({**rows["rejects"][0], "stage": "ingest", "item_id": "mine/8", "reason": "null_island"})
        for stage, total in (("ingest", 1), ("collect.recheck", 5)):
            rows["runs"].append({**rows["runs"][1], "stage": stage, "run_id": stage, "total": total, "items_in": total})
            rows["runs"][-1] |= {"kept": total, "rejected": 0}

    count = {one.stage: one for one in funnel(gather(make_lake(bring_in)))}
    assert (count["ingest"].items_in, count["ingest"].kept, count["ingest"].rejected) == (2, 1, 1)
    assert "collect.recheck" not in count and not any(one.lost for one in count.values())


def test_an_empty_lake_fails_its_checks_without_falling_over(tmp_path: Path) -> None:
    row = review(Lake(tmp_path / "empty"))
    assert row["checks_passed"] is False
    assert "labels: there is at least one row" in failing(row)


def test_the_snapshot_id_follows_from_content_alone(make_lake: MakeLake) -> None:
    one, other = make_lake(name="one"), make_lake(name="other")
    # the same rows in another order, in more commits, fetched at another time
    for image in reversed(other.read("images").to_dicts()):
        image["request_url"] = "http://127.0.0.1:1/elsewhere"
        other.upsert("images", [image], Commit(f"again-{image['image_id']}", 1))
    assert other.version("images") > one.version("images")
    assert item_of(one) == item_of(other)
    label = other.read("labels").row(0, named=True)
    other.upsert("labels", [{**label, "city": "Elsewhere"}], Commit("change", 1))
    assert item_of(one)["id"] != item_of(other)["id"]


def test_what_later_stages_reject_does_not_make_another_report(make_lake: MakeLake) -> None:
    lake = make_lake()
    before = item_of(lake)
    later = {"stage": "synthesize", "item_id": "x", "reason": "too_far", "made_from": "m", "run_id": "r"}
    lake.upsert("rejects", [later], Commit("later", 1))
    assert item_of(lake) == before
    lake.upsert("rejects", [{**later, "stage": "collect"}], Commit("earlier", 1))
    assert item_of(lake)["id"] == before["id"]
    assert item_of(lake)["shown"] != before["shown"]


def test_tables_that_change_under_review_are_noticed(make_lake: MakeLake) -> None:
    lake = make_lake()
    item = item_of(lake)
    keys = lake.read("labels").head(1)
    lake.tombstone("labels", keys, "gone", Commit("gone", 1))
    with pytest.raises(Exception, match="changed while"):
        work(item, WorkerContext(lake, SETTINGS))


def test_approval_stands_when_the_review_runs_again(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    row = review(lake)
    approve(lake, row["snapshot_id"], "Ada", "looks right")
    assert '"reviewer":"Ada"' in data(lake, row, "site") and "looks right" in data(lake, row, "reproduce")
    stored = lake.read("snapshots").row(0, named=True)
    assert (stored["status"], stored["reviewer"], stored["made_from"]) == ("approved", "Ada", "m")
    assert review(lake)["status"] == "approved"
    assert '"status":"approved"' in data(lake, row, "site")
    assert lake.read("snapshots").height == 1


def test_approval_can_be_taken_back_with_a_reason(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    snapshot = review(lake)["snapshot_id"]
    approve(lake, snapshot[:8], "Ada")
    with pytest.raises(ReviewRefused, match="why"):
        reject(lake, snapshot, "Ada", " ")
    with pytest.raises(ReviewRefused, match=r"already approved by Ada on .* UTC; to decide again: --force"):
        reject(lake, snapshot, "Bob", "blurred signs")
    assert reject(lake, snapshot, "Bob", "blurred signs", force=True)["status"] == "rejected"
    assert lake.read("snapshots")["why"].to_list() == ["blurred signs"]


def test_every_decision_stays_in_the_history(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    row = review(lake)
    snapshot = row["snapshot_id"]
    approve(lake, snapshot, "Ada", "looks right")
    for again in ({}, {"force": True}, {"why": "I as well"}, {"force": True, "why": " "}):
        with pytest.raises(ReviewRefused, match=r"already approved by Ada on .*: looks right; to decide again"):
            approve(lake, snapshot, "Bob", **again)  # type: ignore[arg-type]
    assert lake.read("snapshots")["reviewer"].to_list() == ["Ada"]
    approve(lake, snapshot, "Bob", "checked again", force=True)
    reject(lake, snapshot, "Cleo", "blurred signs", force=True)
    made = decisions(lake, snapshot)
    assert [(one["decision"], one["reviewer"], one["why"]) for one in made] == [
        ("approved", "Ada", "looks right"),
        ("approved", "Bob", "checked again"),
        ("rejected", "Cleo", "blurred signs"),
    ]
    assert {one["table_versions_json"] for one in made} == {row["table_versions_json"]}
    assert lake.read("snapshots").select("status", "reviewer").row(0) == ("rejected", "Cleo")
    created = lake.read("snapshots")["created_at"][0]
    assert review(lake)["created_at"] == created  # reviewed again, the same content is as old as before


def test_the_rule_approves_only_what_passes_and_is_undecided(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    assert newest_snapshot(lake) is None
    snapshot = review(lake)["snapshot_id"]
    reject(lake, snapshot, "Ada", "no")
    assert auto_approve(lake, snapshot)["status"] == "rejected"
    other = make_lake(name="other")
    found = auto_approve(other, review(other)["snapshot_id"])
    assert (found["status"], found["why"]) == ("approved", "every check passed")
    assert "rule" in found["reviewer"]
    quick.append(Check("stages", "no row is lost", False, 3, 1))
    failing_one = make_lake(name="failing")
    assert auto_approve(failing_one, review(failing_one)["snapshot_id"])["status"] == "pending"


def test_the_newest_snapshot_is_the_one_of_the_present_content(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    first = review(lake)["snapshot_id"]
    label = lake.read("labels").row(0, named=True)
    lake.upsert("labels", [{**label, "city": "Elsewhere"}], Commit("there", 1))
    assert (newest_snapshot(lake) or {})["snapshot_id"] == first  # not reviewed yet: the last one there is
    second = review(lake)["snapshot_id"]
    assert (newest_snapshot(lake) or {})["snapshot_id"] == second
    lake.upsert("labels", [label], Commit("back", 1))
    assert (newest_snapshot(lake) or {})["snapshot_id"] == first


def test_unknown_snapshots_are_refused_and_known_ones_named(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    with pytest.raises(NotFound, match="nor any other yet"):
        approve(lake, "0" * 24, "Ada")
    snapshot = review(lake)["snapshot_id"]
    for wrong in ("0" * 24, "", snapshot[:3]):
        with pytest.raises(NotFound, match=f"known: {snapshot} \\(pending\\)"):
            approve(lake, wrong, "Ada")
    with pytest.raises(NotFound, match=f"no snapshot '{snapshot[:5]}' .at least 6 letters of its id are needed"):
        approve(lake, snapshot[:5], "Ada")
    with pytest.raises(ReviewRefused, match="name"):
        approve(lake, snapshot, " ")
    assert approve(lake, snapshot[:6], "Ada")["snapshot_id"] == snapshot


def test_failed_checks_need_force_and_a_reason(make_lake: MakeLake, quick: list[Check]) -> None:
    quick.append(Check("stages", "no row is lost", False, 3, 1))
    lake = make_lake()
    snapshot = review(lake)["snapshot_id"]
    with pytest.raises(ReviewRefused, match="does not pass its checks"):
        approve(lake, snapshot, "Ada", "please")
    with pytest.raises(ReviewRefused, match="reason"):
        approve(lake, snapshot, "Ada", force=True)
    assert approve(lake, snapshot, "Ada", "known gap", force=True)["status"] == "approved"
    assert review(lake)["status"] == "approved"  # the same content, forced before: the decision stands


def test_snapshots_keep_their_versions(make_lake: MakeLake, quick: list[Check]) -> None:
    lake = make_lake()
    row = review(lake)
    versions = json.loads(row["table_versions_json"])
    assert set(versions) == {"places", "images", "labels", "rejects"}
    lake.tombstone("labels", lake.read("labels").head(1), "gone", Commit("gone", 1))
    then = lake.read("labels", versions["labels"])
    assert then.height == 13 and lake.read("labels").height == 12
    assert isinstance(then, pl.DataFrame)


def test_steps_with_tables_of_their_own_are_counted_without_a_list(make_lake: MakeLake) -> None:
    """A stage before the review is known by its runs, with the tables they wrote; one after it names its snapshot."""

    def add_steps(rows: Rows) -> None:
        labels = rows["labels"]
        rows["judgements"] = [
            {"image_id": one["image_id"], "sha256": one["sha256"], "model": "judge", "stage": "curate.judge",
             "item_id": one["image_id"], "made_from": "rejected:m" if n == 0 else "m"}
            for n, one in enumerate(labels)
        ]  # fmt: skip
        rows["rejects"].append({**rows["rejects"][0], "stage": "curate.judge", "item_id": labels[0]["image_id"]})
        run = {"total": len(labels), "items_in": len(labels), "kept": len(labels) - 1, "rejected": 1}
        written = json.dumps({"judgements": 0, "rejects": 0})
        rows["runs"].append({**rows["runs"][0], **run, "stage": "curate.judge", "output_versions_json": written})
        later = {"stage": "synthesize", "snapshot_id": "s", "output_versions_json": '{"trajectories": 0}'}
        rows["runs"].append({**rows["runs"][0], **later})

    counts = funnel(gather(make_lake(add_steps)))
    assert [one.stage for one in counts] == ["plan", "collect", "curate.judge", "curate.labels"]
    judged = counts[2]
    assert (judged.items_in, judged.kept, judged.rejected, judged.rows, judged.lost) == (13, 12, 1, 13, 0)
