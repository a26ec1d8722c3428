"""What the page shows: links that lead somewhere, the plan beside it, one colour a split everywhere."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from schemas.settings.review import ReviewSettings
from tasks.lake import Commit, Lake
from tasks.plan.report import SPLIT_COLOURS
from tasks.review.checks import Check
from tasks.review.evidence import gather
from tasks.review.report import HERE, render, write_report

MakeLake = Callable[..., Lake]
CHECKS = [Check("labels", "there is at least one row", True, 13, 0)]


SNAPSHOT: dict[str, Any] = {
    "snapshot_id": "a" * 24,
    "counts_json": '{"places": 8, "images": 0, "labels": 0, "countries": 0, "rejects": 0, "failures": 1, '
    '"images_by_kind": {"satellite": 0}}',
    "table_versions_json": "{}",
    **dict.fromkeys(("reviewer", "reviewed_at", "why")),
    "status": "pending",
    "checks_passed": True,
    "report": "reports/a/index.html",
}


def page(lake: Lake) -> str:
    return render(lake, SNAPSHOT, gather(lake), CHECKS, ReviewSettings(gallery=2, thumbnail_px=96))


def _nothing_had(rows: dict[str, list[dict[str, Any]]]) -> None:
    for table in ("images", "labels", "rejects"):
        rows[table].clear()


@pytest.mark.parametrize("change", [None, _nothing_had])
def test_every_link_of_the_page_leads_somewhere(make_lake: MakeLake, change: Any) -> None:
    text = page(make_lake(change) if change else make_lake())
    wanted, there = set(re.findall(r'href="#([^"]+)"', text)), set(re.findall(r'id="([^"]+)"', text))
    assert wanted and wanted <= there


def test_without_any_picture_the_page_says_so(make_lake: MakeLake) -> None:
    lake = make_lake(_nothing_had)
    failure = {"stage": "collect", "item_id": "p1", "kind": "outage", "message": "no answer", "attempts": 1}
    lake.upsert("failures", [failure], Commit("test", 1))
    text = page(lake)
    assert "No picture has been had yet" in text and "as of" not in text
    assert "no place has a picture or a reason why not" in text and 'href="#failed"' in text


def test_a_snapshots_folder_holds_the_plan_as_it_was(make_lake: MakeLake) -> None:
    lake = make_lake()
    settings = ReviewSettings(gallery=2, thumbnail_px=96)
    write_report(lake, SNAPSHOT, gather(lake), CHECKS, settings)
    assert "The plan itself" not in lake.blobs.get(SNAPSHOT["report"]).decode()
    for name in ("countries.csv", "map.png", "made_from.txt"):
        lake.blobs.put(f"reports/plan/{name}", f"first {name}".encode())
    write_report(lake, SNAPSHOT, gather(lake), CHECKS, settings)
    lake.blobs.put("reports/plan/map.png", b"the next plan's")
    links = re.findall(r'href="(plan/[^"]+)"', lake.blobs.get(SNAPSHOT["report"]).decode())
    assert links == ["plan/map.png", "plan/countries.csv"]
    assert [lake.blobs.get(f"reports/a/{link}") for link in links] == [b"first map.png", b"first countries.csv"]


def test_a_split_has_the_same_colour_on_the_plan_and_on_the_page() -> None:
    light = (HERE / "report.css").read_text().partition("@media")[0]
    for split, colour in SPLIT_COLOURS.items():
        assert f"--{split}: #{bytes(colour).hex()};" in light


def test_every_table_scrolls_by_itself(make_lake: MakeLake) -> None:
    text = page(make_lake())
    assert len(re.findall(r'<div class="scroll"><table', text)) == text.count("<table") > 5
