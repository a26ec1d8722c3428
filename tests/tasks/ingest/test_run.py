"""A table into the lake: through the frame, again, in a new version, beside another dataset, and over a socket."""

import csv
import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.ingest import IngestResult, TableRefused, check_dataset, ingest_table, survey_table, table
from tasks.ingest.files import PictureFolder
from tasks.ingest.refusal import FIXES
from tasks.ingest.rows import item_batches
from tasks.ingest.stage import Job, WorkerContext, work
from tasks.lake import Lake
from tasks.review.withdraw import withdraw
from tasks.runtime.runner import Context, Kept, Rejected, Tick
from tasks.services import ServiceError, connect
from tasks.services.web import Pictures

pytestmark = pytest.mark.usefixtures("in_process")

WEB = {"allow_private": True, "attempts": 2, "backoff_s": 0, "timeout_s": 10, "limit_patience_s": 0}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def ingest(path: Path, lake: Lake, dataset: str = "set", **settings: Any) -> IngestResult:
    chosen = IngestSettings(**{"keep_lat_lon": True, "split": "train", "web": WEB, **settings})
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1), settings.pop("progress", _hush))
    found = survey_table(path, chosen)
    check_dataset(lake, found, dataset, chosen, PlanSettings())
    return ingest_table(found, dataset, chosen, PlanSettings(), context)


def _hush(tick: Tick) -> None:
    pass


def live(lake: Lake, dataset: str = "set") -> dict[str, dict[str, Any]]:
    rows = lake.read("images").filter(pl.col("source") == dataset)
    return {row["source_id"]: row for row in rows.iter_rows(named=True)}


def report_of(result: IngestResult) -> list[dict[str, str]]:
    with result.report.path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_withdrawn_photo_does_not_come_back(darkroom: Any, lake: Lake) -> None:
    for n in range(3):
        darkroom.save(f"{n}.jpg", seed=n)
    photos_csv = darkroom.plain([{"path": f"{n}.jpg", "creator": "Bo" if n == 2 else "Ana"} for n in range(3)])
    ingest(photos_csv, lake)
    photos = live(lake)
    withdraw(lake, photos["p0"]["image_id"], "a face", "Ada")
    withdraw(lake, "creator:Bo", "asked", "Ada")
    again = ingest(photos_csv, lake)
    assert set(live(lake)) == {"p1"} and again.report.refused.counts == {"withdrawn": 2}
    assert set(again.report.refused.counts) <= set(FIXES), "the summary says what to do about each reason"
    assert not any(lake.images.exists(photos[name]["sha256"], "jpg") for name in ("p0", "p2"))


def test_the_life_of_a_dataset(darkroom: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(6):
        darkroom.save(f"{n}.jpg", seed=n)
    darkroom.save("cut.jpg", darkroom.jpeg()[:3000])
    rows = [{"path": f"{n}.jpg"} for n in range(6)]
    bad = [{"path": "cut.jpg"}, {"path": "late.jpg"}, {"lat": 95, "id": "north"}]

    # The first time, in portions: everything is accounted for and reported by line.
    with monkeypatch.context() as patch:
        patch.setattr(table, "BATCH", 4)
        first = ingest(darkroom.plain([*rows, *bad]), lake)
    assert (first.stage.total, first.stage.kept, first.stage.rejected, first.stage.failed) == (9, 6, 3, 0)
    assert first.report.refused.counts == {"truncated": 1, "missing_file": 1, "out_of_range": 1}
    told = {row["row"]: (row["id"], row["reason"], row["column"]) for row in report_of(first)}
    assert told == {
        "8": ("p6", "truncated", "path"), "9": ("p7", "missing_file", "path"), "10": ("north", "out_of_range", "lat")
    }  # fmt: skip
    photos = live(lake)
    assert set(photos) == {f"p{n}" for n in range(6)}
    one = photos["p3"]
    assert one["image_id"] == lake.name("set", "p3") and (one["kind"], one["split"]) == ("photo", "train")
    assert (one["licence"], one["attribution"], one["request_url"]) == ("CC0", "Photo p3 by Ana, CC0", "3.jpg")
    assert one["place_id"] is None and lake.images.read(one["sha256"], one["extension"])

    # Again: nothing to redo, and the report still has every refused row.
    again = ingest(darkroom.plain([*rows, *bad]), lake)
    assert again.stage.nothing_to_do and again.stage.skipped == 9
    assert report_of(again) == report_of(first) and live(lake) == photos

    # Another dataset touches nothing of the first one.
    other = ingest(darkroom.plain([{"path": "1.jpg", "id": "p1"}]), lake, "other")
    assert other.stage.kept == 1 and live(lake) == photos and len(live(lake, "other")) == 1
    assert lake.read("rejects").height == 3

    # A new version: one row left, one moved, one late file is there, one picture was replaced; a line above all.
    darkroom.save("late.jpg", seed=50)
    darkroom.save("4.jpg", seed=51)
    new = [{"path": "new.jpg", "id": "top"}, *[{**row, "id": f"p{n}"} for n, row in enumerate(rows) if n != 0]]
    new[2] = {**new[2], "lat": 49.25}
    changed = ingest(darkroom.plain([*new, {"path": "cut.jpg", "id": "p6"}, {"path": "late.jpg", "id": "p7"}]), lake)
    assert changed.retired == 1 and changed.stage.kept == 3 and changed.stage.skipped == 4
    now = live(lake)
    assert set(now) == {"p1", "p2", "p3", "p4", "p5", "p7"}
    assert now["p2"]["lat"] == 49.25 and now["p2"]["sha256"] == photos["p2"]["sha256"]
    assert now["p4"]["sha256"] != photos["p4"]["sha256"]
    assert now["p5"]["run_id"] == photos["p5"]["run_id"], "what did not change was not done again"
    assert {row["row"]: row["reason"] for row in report_of(changed)} == {"2": "missing_file", "8": "truncated"}
    gone = lake.scan("images").filter(pl.col("source_id") == "p0").collect().row(0, named=True)
    assert "no longer in the table" in gone["tombstone"]
    assert set(lake.read("rejects")["item_id"]) == {"set/top", "set/p6"}

    # Another table under the same name is not taken for its new version.
    strange = darkroom.plain([{"path": "1.jpg", "id": f"x{n}"} for n in range(5)])
    with pytest.raises(
        TableRefused, match=r"6 photos, and 6 of them would leave it.* 6 are not in this file.*--name.*--replace"
    ):
        ingest(strange, lake)
    assert live(lake) == now
    replaced = ingest(strange, lake, replace=True)
    assert replaced.retired == 6 and set(live(lake)) == {f"x{n}" for n in range(5)} and len(live(lake, "other")) == 1


def test_notes_are_kept_and_progress_adds_up(darkroom: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    darkroom.save("turned.jpg", darkroom.jpeg(exif=darkroom.exif(orientation=8)))
    darkroom.save("a.jpg")
    ticks: list[Tick] = []
    rows = [{}, {"path": "turned.jpg", "captured_at": "soon"}, {"id": "1.0"}]
    path = darkroom.plain(rows)
    chosen = IngestSettings(keep_lat_lon=True, split="validation")
    monkeypatch.setattr(table, "BATCH", 1)
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1), ticks.append)
    result = ingest_table(survey_table(path, chosen), "set", chosen, PlanSettings(), context)
    assert result.report.noted.counts == {"captured_at_unreadable": 1, "turned_upright": 1}
    assert [(row["row"], row["outcome"], row["reason"], row["given"]) for row in report_of(result)] == [
        ("3", "kept", "captured_at_unreadable", "soon"),
        ("3", "kept", "turned_upright", "orientation 8"),
        ("4", "refused", "id_damaged", "1.0"),
    ]
    assert live(lake)["p1"]["notes"] == ["captured_at_unreadable: soon", "turned_upright: orientation 8"]
    assert [tick.finished for tick in ticks].count(True) == 1 and ticks[-1].finished
    assert (ticks[-1].total, ticks[-1].kept, ticks[-1].rejected) == (3, 2, 1)
    assert result.photos.to_dicts() == [{"kind": "photo", "split": "validation", "photos": 2}]


def test_the_report_holds_no_formulas(darkroom: Any, lake: Lake) -> None:
    darkroom.save("a.jpg")
    rows = [
        {"id": "=HYPERLINK(1)", "lat": 95},
        {"id": "@x", "path": "+no.jpg"},
        {"lat": -33.5, "lon": 999},
        {"id": "-5", "lat": ""},
        {},
    ]
    told = report_of(ingest(darkroom.plain(rows), lake))
    assert [(row["id"], row["given"]) for row in told] == [
        ("'=HYPERLINK(1)", "95, 2.5"), ("'@x", "'+no.jpg"), ("p2", "-33.5, 999"), ("-5", "")
    ]  # fmt: skip
    assert lake.read("rejects").filter(item_id="set/=HYPERLINK(1)").height == 1, "the lake has it as it is"


@dataclass
class Host:
    """A host of pictures that can be told to fail."""

    pictures: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""


@pytest.fixture
def host() -> Iterator[Host]:
    here = Host()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].strip("/")
            here.asked[name] += 1
            status, media, body = here.pictures.get(name, (404, "text/plain", b"no"))
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere.jpg")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield here
    server.shutdown()
    server.server_close()


def test_failed_addresses_are_tried_again_and_refused_ones_on_demand(
    darkroom: Any, lake: Lake, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (200, "image/jpeg", darkroom.jpeg(seed=3))
    host.pictures = {"a.jpg": good, "out.jpg": (503, "text/plain", b"later")}
    rows = [{"path": "", "url": f"{host.url}/{name}.jpg?token=secret"} for name in ("a", "out", "none")]
    path = darkroom.plain(rows)
    with monkeypatch.context() as patch:
        patch.setattr(table, "BATCH", 1)
        first = ingest(path, lake)
    assert (first.stage.kept, first.stage.rejected, first.stage.failed) == (1, 1, 1)
    assert first.stage.status == "done_with_failures"
    assert lake.read("failures")["item_id"].to_list() == ["set/p1"], "a later portion says nothing of an earlier one"
    told = {row["row"]: (row["outcome"], row["reason"], row["what to do"]) for row in report_of(first)}
    assert told["3"] == ("failed", "outage", "run the same command again: it is tried again") and set(told) == {
        "3",
        "4",
    }
    assert first.report.failed.examples["outage"][0]["id"] == "p1" and first.to_dict()["failed"] == {"outage": 1}
    assert live(lake)["p0"]["request_url"] == f"{host.url}/a.jpg" and live(lake)["p0"]["http_status"] == 200

    host.pictures |= {"out.jpg": good, "none.jpg": good}
    second = ingest(path, lake)
    assert (second.stage.skipped, second.stage.kept) == (2, 1) and host.asked["a.jpg"] == 1
    assert lake.read("failures").is_empty()
    third = ingest(path, lake, retry_refused=True)
    assert third.stage.kept == 1 and host.asked["none.jpg"] == 2 and set(live(lake)) == {"p0", "p1", "p2"}
    stored = json.dumps(lake.scan("images").collect().to_dicts(), default=str) + first.report.path.read_text()
    assert "secret" not in stored + json.dumps(lake.scan("rejects").collect().to_dicts(), default=str)


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        ((404, "text/plain", b"no"), "url_not_found", "404"),
        ((403, "text/plain", b"no"), "url_refused", "403"),
        ((302, "text/plain", b""), "url_moved", "302"),
        ((400, "text/plain", b"no"), "url_bad_answer", "400"),
        ((200, "text/html", b"<html>"), "not_an_image", "no picture"),
        ((200, "image/jpeg", b"<html>"), "not_an_image", "neither JPEG nor PNG"),
        ((200, "image/jpeg", b"x" * 200_000), "too_big", "more than"),
        ((500, "text/plain", b"no"), "outage", ""),
        ((429, "text/plain", b"no"), "rate_limit", ""),
    ],
)
async def test_what_hosts_say(
    darkroom: Any, lake: Lake, host: Host, answer: tuple[int, str, bytes], reason: str, words: str
) -> None:
    host.pictures = {"a.jpg": answer}
    path = darkroom.plain([{"path": "", "url": f"{host.url}/a.jpg?sig=secret"}])
    chosen = IngestSettings(keep_lat_lon=True, split="train", web=WEB, picture={"max_file_mb": 0.1})
    found = survey_table(path, chosen)
    job = Job("set", darkroom.folder, chosen, dict(found.names))
    bench = WorkerContext(lake, PictureFolder(darkroom.folder), Pictures(chosen.web, 0.1), job)
    item = next(iter(item_batches(found, "set", chosen, PlanSettings()))).row(0, named=True)
    if not words:
        with pytest.raises(ServiceError) as caught:
            await work(item, bench)
        assert caught.value.kind == reason and caught.value.retryable and "secret" not in str(caught.value)
        return
    outcome = await work(item, bench)
    assert isinstance(outcome, Rejected) and outcome.reason == reason and words in outcome.evidence["problem"]
    assert outcome.evidence["row"] == 2 and outcome.evidence["column"] == "url"
    assert outcome.evidence["given"] == f"{host.url}/a.jpg"


async def test_a_table_cannot_make_us_ask_this_machine(darkroom: Any, lake: Lake, host: Host) -> None:
    host.pictures = {"a.jpg": (200, "image/jpeg", darkroom.jpeg())}
    path = darkroom.plain([{"path": "", "url": f"{host.url}/a.jpg"}])
    for allowed, kind in ((False, Rejected), (True, Kept)):
        chosen = IngestSettings(keep_lat_lon=True, split="train", web={**WEB, "allow_private": allowed})
        found = survey_table(path, chosen)
        job = Job("set", darkroom.folder, chosen, dict(found.names))
        bench = WorkerContext(lake, PictureFolder(darkroom.folder), Pictures(chosen.web, 64), job)
        item = next(iter(item_batches(found, "set", chosen, PlanSettings()))).row(0, named=True)
        outcome = await work(item, bench)
        assert isinstance(outcome, kind)
        if isinstance(outcome, Rejected):
            assert outcome.reason == "url_not_public" and not host.asked
