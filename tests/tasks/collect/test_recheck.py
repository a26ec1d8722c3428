"""A second run on the offline world: what was deleted ends, what changed is fetched anew, all else stays untouched."""

import io
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from PIL import Image

from schemas.settings.collect import CollectSettings
from schemas.settings.curate import QualitySettings
from tasks.collect import STAGES, recheck, satellite, street_view
from tasks.curate import quality
from tasks.imaging.perspective import View
from tasks.lake import Lake
from tasks.review.views import cut_view
from tasks.runtime.runner import Context, Inputs, StageResult, pending, run

SETTINGS = CollectSettings(photos=0, panorama_width=512, panorama_min_pixels=1)
PLACES = 6

pytestmark = pytest.mark.usefixtures("in_process")


def due(days: float | None = 0, **refresh: Any) -> CollectSettings:
    return SETTINGS.model_copy(update={"refresh": SETTINGS.refresh.model_copy(update={"after_days": days, **refresh})})


def collect(context: Context, settings: CollectSettings = SETTINGS) -> list[StageResult]:
    results = [run(stage, settings, context) for stage in (recheck.STAGE, street_view.STAGE)]
    assert not any(result.failed for result in results), context.lake.read("failures")
    return results


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lake lies that was collected once, for all tests to copy; empty until the first of them is run."""
    return tmp_path_factory.mktemp("collected") / "lake"


@pytest.fixture
def context(earth: Any, collected: Path, tmp_path: Path) -> Context:
    """A lake that was collected once, and a log that starts after that."""
    if not collected.exists():
        lake = Lake(collected)
        earth.plan(lake, PLACES, empty=1)
        collect(earth.context(lake))
        assert lake.read("images").height >= 3
    shutil.copytree(collected, tmp_path / "lake")
    earth.forget()
    return earth.context(Lake(tmp_path / "lake"))


def stripped(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows without what says when and by which run they were written."""
    return rows.drop("run_id", "written_at", "made_from").sort("image_id")


def die_at_writing(table: str, patch: pytest.MonkeyPatch) -> None:
    """End the run when rows of a table are written, whether new or redone."""

    def dying(write: Any) -> Any:
        def written(self: Lake, name: str, *arguments: Any) -> Any:
            if name == table:
                raise KeyboardInterrupt
            return write(self, name, *arguments)

        return written

    for method in ("append_new", "change"):
        patch.setattr(Lake, method, dying(getattr(Lake, method)))


def test_rechecks_come_before_places() -> None:
    names = [stage.name for stage in STAGES]
    assert names.index("collect.recheck") < names.index("collect")


def test_a_second_run_without_news_asks_nothing(earth: Any, context: Context) -> None:
    for settings in (SETTINGS, due(None), due(29)):
        assert all(result.nothing_to_do for result in collect(context, settings))
    assert earth.log("requests") == {}


def test_everything_due_and_nothing_new_downloads_no_picture(earth: Any, context: Context) -> None:
    before = stripped(context.lake.read("images"))
    checked, redone = collect(context, due())
    short = context.lake.read("checks").filter(pl.col("subject") == "place").height
    assert checked.kept == before.height + short and redone.items_in == short > 0
    assert set(earth.log("statuses")["mapillary-cdn"]) == {"304"}
    assert earth.log("bytes").get("mapillary-cdn", 0) == 0
    assert stripped(context.lake.read("images")).equals(before)
    checks = context.lake.read("checks")
    assert set(checks.select("subject", "status").iter_rows()) == {("image", "same"), ("place", "look_again")}
    assert all(result.nothing_to_do for result in collect(context))  # the places are finished again
    collect(context, due())
    assert set(context.lake.read("checks")["nth"]) == {2}


def test_one_request_asks_for_fifty_pictures(earth: Any, context: Context) -> None:
    run(recheck.STAGE, due(bytes="never"), context)
    assert earth.log("requests") == {"mapillary": 1}


def test_a_deleted_picture_ends_and_is_replaced_and_leaves_what_follows(earth: Any, context: Context) -> None:
    lake = context.lake
    before = lake.read("images")
    gone = before.filter(pl.col("kind") == "panorama").row(0, named=True)
    earth.faults({"service": "*", "kind": "deleted", "ids": [gone["source_id"]]})
    checked, _ = collect(context, due())
    ended = lake.scan("images").filter(pl.col("image_id") == gone["image_id"]).collect().row(0, named=True)
    assert ended["tombstone"] == "deleted upstream" and ended["run_id"] == checked.run_id
    check = lake.read("checks").filter(pl.col("subject_id") == gone["image_id"]).row(0, named=True)
    assert (check["status"], check["news"]) == ("deleted", 1)
    after = lake.read("images")
    assert after.filter(pl.col("place_id") == gone["place_id"], pl.col("kind") == "panorama").height == 1  # another
    others = pl.col("place_id") != gone["place_id"]
    assert stripped(after.filter(others)).equals(stripped(before.filter(others)))
    assert earth.log("statuses")["mapillary-cdn"].get("200", 0) == 1  # the replacement, and nothing else
    inputs = Inputs(lake, {table: lake.version(table) for table in ("places", "images")})
    measured = quality.items(inputs, QualitySettings())
    assert gone["image_id"] not in set(measured["id"]) and measured.height == after.height
    assert all(result.nothing_to_do for result in collect(context))
    # Later checks pass it over: it is not asked for again, and its place is not redone for it.
    again, _ = collect(context, due())
    assert gone["image_id"] not in set(lake.read("checks").filter(pl.col("run_id") == again.run_id)["subject_id"])


def test_views_end_with_their_panorama(earth: Any, context: Context) -> None:
    gone, kept = context.lake.read("images").filter(pl.col("kind") == "panorama").rows(named=True)[:2]
    looks = [View(yaw, 0, 60, 64, 48) for yaw in (0, 90)]
    of_gone = {cut_view(context.lake, gone["image_id"], look)[0]["view_id"] for look in looks}
    of_kept = {cut_view(context.lake, kept["image_id"], look)[0]["view_id"] for look in looks}
    earth.faults({"service": "*", "kind": "deleted", "ids": [gone["source_id"]]})
    run(recheck.STAGE, due(), context)
    assert set(context.lake.read("views")["view_id"]) == of_kept
    ended = context.lake.scan("views").filter(pl.col("view_id").is_in(sorted(of_gone))).collect()
    assert set(ended["tombstone"]) == {"its row in images is gone: deleted upstream"}
    version = context.lake.version("views")
    run(recheck.STAGE, due(None), context)  # nothing more to end, nothing written
    assert context.lake.version("views") == version


def test_only_the_places_with_news_are_redone(earth: Any, context: Context) -> None:
    gone = context.lake.read("images").row(0, named=True)
    earth.faults({"service": "*", "kind": "deleted", "ids": [gone["source_id"]]})
    _, redone = collect(context, due(bytes="never"))
    looked = set(context.lake.read("checks").filter(pl.col("news") > 0)["place_id"])
    assert {gone["place_id"], "ocean0"} <= looked
    assert redone.items_in == len(looked) and redone.skipped == PLACES + 1 - len(looked) > 0


def test_a_changed_picture_is_a_new_version_of_the_same_image(earth: Any, context: Context) -> None:
    lake = context.lake
    old = lake.read("images").row(0, named=True)
    version = lake.version("images")
    for count in (1, 2):
        rule = {"service": "*", "kind": "changed", "ids": [old["source_id"]]}
        earth.faults(*[rule] * count)
        collect(context, due())
        new = lake.read("images").filter(pl.col("image_id") == old["image_id"]).row(0, named=True)
        assert new["sha256"] != old["sha256"] and new["etag"] != old["etag"]
        assert new["source_sha256"] != old["source_sha256"] and new["fetched_at"] > old["fetched_at"]
        assert lake.read("checks").filter(pl.col("status") == "changed")["news"].to_list() == [count]
        # The bytes that showed the change are those that are stored; no other picture came.
        assert earth.log("statuses")["mapillary-cdn"]["200"] == count
        assert new["fetched_at"] == lake.read("checks").filter(pl.col("status") == "changed")["checked_at"][0]
        before = lake.read("images", version).filter(pl.col("image_id") == old["image_id"]).row(0, named=True)
        for row in (before, new):
            assert Image.open(io.BytesIO(lake.images.read(row["sha256"], row["extension"]))).size[0] == row["width"]
        old, version = new, lake.version("images")
    collect(context, due())
    assert "changed" not in set(lake.read("checks")["status"])
    assert lake.read("images").filter(pl.col("image_id") == old["image_id"])["sha256"].to_list() == [old["sha256"]]
    assert all(result.nothing_to_do for result in collect(context))


HOST_LOST_ALL = {"service": "mapillary-cdn", "kind": "deleted", "rate": 1.0}  # 404 there, while the metadata lives


def test_a_picture_its_host_does_not_have_stays_and_fails_no_run(earth: Any, context: Context) -> None:
    lake = context.lake
    before = stripped(lake.read("images"))
    earth.faults(HOST_LOST_ALL)
    for _ in range(2):
        checked, _ = collect(context, due())
        checks = lake.read("checks").filter(pl.col("subject") == "image")
        assert (checked.status, set(checks["status"]), set(checks["news"])) == ("done", {"unavailable"}, {0})
        assert stripped(lake.read("images")).equals(before)
    assert all(result.nothing_to_do for result in collect(context))
    # It is there again, and one of them has changed meanwhile.
    changed = before["source_id"][0]
    earth.faults({"service": "*", "kind": "changed", "ids": [changed]})
    collect(context, due())
    found = dict(lake.read("checks").filter(pl.col("subject") == "image").group_by("status").len().iter_rows())
    assert found == {"same": before.height - 1, "changed": 1}
    after = lake.read("images").filter(pl.col("source_id") == changed)
    assert after["sha256"][0] != before["sha256"][0]


def test_a_picture_that_is_unavailable_is_kept_when_its_place_is_redone(earth: Any, context: Context) -> None:
    lake = context.lake
    had = lake.read("images")
    earth.faults(HOST_LOST_ALL)
    collect(context, due())
    more = run(street_view.STAGE, due().model_copy(update={"panoramas": 2}), context)
    assert more.failed, "a host that gives nothing is in trouble: no place is finished by that"
    assert not lake.read("rejects").filter(reason="no_usable_image").height
    assert set(had["source_id"]) <= set(lake.read("images")["source_id"])
    assert set(lake.read("checks").filter(pl.col("subject") == "image")["status"]) == {"unavailable"}


@pytest.mark.parametrize("breaks_at", ["looking", "checks", "decoding", "images"])
@pytest.mark.parametrize("days", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_a_changed_picture_comes_once_whenever_the_run_is_killed(
    earth: Any, context: Context, breaks_at: str, days: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when everything is checked once more in between."""
    lake = context.lake
    pictures = lake.read("images")
    changed = pictures.filter(pl.col("place_id") == pictures["place_id"][0])["source_id"].to_list()
    earth.faults({"service": "*", "kind": "changed", "ids": changed})

    async def interrupted(function: Any, *arguments: Any) -> Any:
        if function.__name__ == {"looking": "_is_picture", "decoding": "_store"}[breaks_at]:
            raise KeyboardInterrupt
        return function(*arguments)

    with earth.journal() as asked:
        with monkeypatch.context() as patch:
            die_at_writing(breaks_at, patch)
            if breaks_at in ("looking", "decoding"):
                patch.setattr("tasks.collect.download.computing.run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                collect(context, due())
        collect(context, due(0 if breaks_at in ("looking", "checks") else days))
    came = [request for _, service, request, outcome in asked if (service, outcome) == ("mapillary-cdn", "ok")]
    fetched = Counter(name for name in changed for request in came if f"/{name}/" in request)
    assert len(came) == len(changed)
    assert fetched == Counter(changed)


@pytest.mark.parametrize("breaks_at", ["checks", pytest.param("images", marks=pytest.mark.whole)])
def test_a_run_that_dies_at_any_moment_ends_like_one_that_does_not(
    earth: Any, context: Context, breaks_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = context.lake
    gone, changed = lake.read("images").filter(pl.col("kind") == "panorama")["source_id"].to_list()[:2]
    earth.faults(
        {"service": "*", "kind": "deleted", "ids": [gone]}, {"service": "*", "kind": "changed", "ids": [changed]}
    )
    with monkeypatch.context() as patch:
        die_at_writing(breaks_at, patch)
        with pytest.raises(KeyboardInterrupt):
            collect(context, due())
    # Nothing is due by the clock, and still what was begun is brought to its end.
    collect(context, due(1))
    assert lake.read("checks").filter(pl.col("status") == "deleted").height == 1
    if breaks_at == "checks":
        collect(context, due())  # nobody had noted the change
    rows = lake.read("images")
    assert gone not in set(rows["source_id"]) and changed in set(rows["source_id"])
    ended = lake.scan("images").filter(pl.col("source_id") == gone).collect()
    assert ended["tombstone"].to_list() == ["deleted upstream"]
    fresh = earth.context(Lake(lake.root.parent / "fresh"))
    earth.plan(fresh.lake, PLACES, empty=1)
    collect(fresh)
    names = ["source_id", "kind", "sha256", "etag", "source_sha256", "lat", "lon", "place_id"]
    assert rows.select(names).sort("source_id").equals(fresh.lake.read("images").select(names).sort("source_id"))
    assert all(result.nothing_to_do for result in collect(context, due(1)))


def test_a_picture_whose_file_was_lost_is_fetched_when_its_place_is_redone(earth: Any, context: Context) -> None:
    lake = context.lake
    both = due().model_copy(update={"photos": 1})
    collect(context, both)
    short = lake.read("images").group_by("place_id").len().filter(pl.col("len") == 1)["place_id"]
    row = lake.read("images").filter(pl.col("place_id").is_in(short.implode())).row(0, named=True)
    lake.images.path(row["sha256"], row["extension"]).unlink()
    earth.forget()
    collect(context, both)
    assert lake.images.read(row["sha256"], row["extension"])
    assert earth.log("statuses")["mapillary-cdn"]["200"] == 1


def test_more_pictures_wanted_fetches_only_what_is_missing(earth: Any, context: Context) -> None:
    had = set(context.lake.read("images")["source_id"])
    collect(context, SETTINGS.model_copy(update={"panoramas": 2}))
    now = set(context.lake.read("images")["source_id"])
    assert now > had
    assert earth.log("requests")["mapillary-cdn"] == len(now - had)
    # Other bytes are made of each: nothing that was stored serves.
    earth.forget()
    collect(context, SETTINGS.model_copy(update={"panoramas": 2, "panorama_width": 256}))
    assert earth.log("requests")["mapillary-cdn"] == len(now)


def test_what_is_due_follows_from_when_it_was_last_seen(context: Context) -> None:
    lake = context.lake
    inputs = Inputs(lake, {table: lake.version(table) for table in recheck.STAGE.reads})
    seen = lake.read("images")["fetched_at"].min()
    assert seen is not None
    age = (datetime.now(UTC) - seen) / timedelta(days=1)
    assert recheck.items(inputs, due(age + 1)).is_empty()
    all_due = recheck.items(inputs, due(0))
    assert set(all_due.filter(pl.col("subject") == "image")["id"]) == set(lake.read("images")["image_id"])
    assert "ocean0" in set(all_due.filter(pl.col("subject") == "place")["id"])
    assert recheck.items(inputs, due(None)).is_empty()


def test_rejected_satellite_pictures_are_due_again_and_may_be_all_that_is_wanted(earth: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 2)
    context = earth.context(lake)
    none_then = {"size_px": 64, "start": "2010-01-01", "end": "2010-01-02"}
    wanted = CollectSettings(panoramas=0, photos=0, satellite=none_then, refresh={"after_days": 30})
    assert [run(stage, wanted, context).rejected for stage in STAGES] == [0, 0, 2]
    assert [pending(stage, wanted, context).height for stage in STAGES] == [0, 0, 0]
    assert earth.log("requests").keys() == {"stac"}
    due_now = wanted.model_copy(update={"refresh": wanted.refresh.model_copy(update={"after_days": 0})})
    again = [run(stage, due_now, context) for stage in STAGES]
    assert [(one.kept, one.rejected) for one in again] == [(2, 0), (0, 0), (0, 2)]
    assert set(lake.read("checks")["subject"]) == {"scene"}
    assert pending(satellite.STAGE, due_now, context).is_empty(), "until they are due once more"


def test_an_ended_picture_does_not_make_its_place_due_besides(earth: Any, context: Context) -> None:
    """A kill between check and places must not leave one more check than there is without it."""
    lake, settings = context.lake, due(30).model_copy(update={"photos": 1, "photo_min_pixels": 1})
    collect(context, settings)
    for table in ("images", "rejects"):
        older = {name: f"{name} - INTERVAL '40 days'" for name in ("fetched_at", "written_at")[table == "rejects" :]}
        DeltaTable(str(lake.root / "tables" / table)).update(updates=older)
    both = lake.read("images").filter(pl.col("kind").n_unique().over("place_id") == 2)
    gone = both.filter(pl.col("kind") == "panorama").row(0, named=True)
    earth.faults({"service": "*", "kind": "deleted", "ids": [gone["source_id"]]})
    run(recheck.STAGE, settings, context)
    assert lake.read("checks").filter(status="deleted").height == 1
    assert pending(recheck.STAGE, settings, context)["id"].to_list() == []
