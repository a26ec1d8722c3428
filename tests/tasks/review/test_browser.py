"""The site in a browser, opened from a file: Debian's chromium, driven by playwright.

`.ci/run` installs chromium where it is missing.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from schemas.settings.review import ReviewSettings
from tasks.lake import Commit, Lake
from tasks.review.marks import import_marks, read_marks
from tasks.review.site import build_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; `.ci/run` installs Debian's"),
]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SNAPSHOT = "c" * 24
expect.set_options(timeout=30_000)  # a loaded machine is slow, not wrong


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, reviewed_rows: Callable[[Lake], dict[str, Any]]) -> Lake:
    found = Lake(tmp_path_factory.mktemp("browser") / "lake")
    for table, rows in reviewed_rows(found).items():
        (found.append if table == "runs" else found.upsert)(table, rows, Commit(f"test-{table}", 1))
    versions = {name: found.version(name) for name in ("places", "images", "labels", "rejects")}
    reasons = {"non_localizable": 3, "no_imagery_near": 1}
    stages = [{"stage": "curate.judge", "items_in": 16, "kept": 12, "rejected": 3, "failed": 1, "rows": 12}]
    counts = {"places": 9, "images": 16, "labels": 13, "countries": 8, "rejects_by_reason": reasons, "stages": stages}
    distances = (0.5, 1, 2, 3, 10, 25, 50, 200, 750, 2500)
    shown = [{"step": n, "loss": 4.0, "reward": 0.1, **{f"acc@{d:g}km": 0.5 for d in distances}} for n in (0, 60, 120)]
    model = {"model_id": "m" * 24, "training_stage": "sft", "checkpoint": "models/m", "base": "tiny", "stage": "train",
             "metrics_json": json.dumps({"loss": [4.0, 3.0], "validations": shown})}  # fmt: skip
    found.upsert("models", [model], Commit("model", 1))
    checks = [{"table": "labels", "says": "there is at least one row", "passed": True, "checked": 13, "unexpected": 0}]
    row = {
        **{"snapshot_id": SNAPSHOT, "table_versions_json": json.dumps(versions), "counts_json": json.dumps(counts)},
        **{"checks_json": json.dumps([{**one, "examples": []} for one in checks]), "checks_passed": True},
        **{"status": "pending", "report": f"reports/{SNAPSHOT}/index.html", "stage": "review", "item_id": SNAPSHOT},
    }
    found.upsert("snapshots", [row], Commit("review", 1))
    build_site(found, found.read("snapshots").row(0, named=True), ReviewSettings(thumbnail_px=96, sample=5))
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # As root Chromium starts only without its sandbox; WebGL is drawn in software.
        options = ["--no-sandbox", "--enable-unsafe-swiftshader"]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@pytest.fixture(params=SIZES)
def page(browser: Browser, lake: Lake, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The first page at one width; at the end no error was logged and nothing was asked from elsewhere."""
    width, height = SIZES[request.param]
    opened = browser.new_page(viewport={"width": width, "height": height})
    problems: list[str] = []
    opened.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("requestfailed", lambda asked: problems.append(f"failed: {asked.url}"))
    allowed = ("file:", "data:", "blob:")
    opened.on("request", lambda asked: None if asked.url.startswith(allowed) else problems.append(asked.url))
    opened.goto((lake.root / "reports" / SNAPSHOT / "index.html").as_uri())
    yield opened
    opened.close()
    assert problems == []


def go(page: Page, title: str) -> None:
    menu = page.get_by_role("button", name="Pages")
    if menu.is_visible():
        menu.click()
    page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()


def no_wider_than_the_window(page: Page) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 1, "the page itself does not scroll sideways"


def test_a_stranger_finds_rejected_pictures_and_a_history(page: Page) -> None:
    expect(page.get_by_text(f"snapshot {SNAPSHOT} passes all 1 checks; it is pending")).to_be_visible()
    no_wider_than_the_window(page)
    page.get_by_role("link", name="The judge sees too few clues to tell where this is.").click()
    expect(page.get_by_text("3 of 16 pictures")).to_be_visible()
    cards = page.locator(".gallery .card")
    expect(cards).to_have_count(3)
    expect(page.locator(".gallery .card img").first).to_have_js_property("complete", True)
    image_id = cards.first.get_attribute("data-id")
    cards.first.click()
    history = page.locator(".history > li")
    expect(history).to_have_count(3)
    expect(history.nth(2)).to_contain_text("A plain field without any writing")
    expect(page.get_by_text(f"geofix trace {image_id} --lake")).to_be_visible()
    no_wider_than_the_window(page)
    page.get_by_role("button", name="Enlarge").click()
    expect(page.locator("dialog img")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    neighbour = page.locator(".grid.small .card").first
    neighbour.click()
    expect(page).not_to_have_url(re.compile(str(image_id)))
    expect(page.get_by_role("heading", name="History")).to_be_visible()


def test_filters_and_search(page: Page) -> None:
    go(page, "All pictures")
    expect(page.get_by_text("16 pictures", exact=True)).to_be_visible()
    page.get_by_label("Country").select_option("Japan")
    expect(page.get_by_text("2 of 16 pictures")).to_be_visible()
    page.get_by_label("Kind").select_option("photo")
    expect(page.get_by_text("1 of 16 pictures")).to_be_visible()
    assert "country=Japan" in page.url and "kind=photo" in page.url, "the address can be sent to a colleague"
    page.get_by_role("button", name="Clear").click()
    page.locator("body").press("/")
    page.keyboard.type("salva")
    expect(page.locator(".gallery .card")).to_have_count(2)
    expect(page.locator(".gallery .card .title").first).to_contain_text("Salvador")
    page.get_by_label("Search").fill("walker1 kyoto")
    expect(page.locator(".gallery .card")).to_have_count(2)
    page.get_by_label("Search").fill("nowhere at all")
    expect(page.get_by_text("0 of 16 pictures")).to_be_visible()


def test_the_keyboard_is_enough(page: Page) -> None:
    go(page, "All pictures")
    first = page.locator(".gallery .card").first
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".gallery .card").nth(1)).to_be_focused()
    second = page.locator(".gallery .card").nth(1).get_attribute("data-id")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"picture/{second}"))
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    shown = page.locator("article.picture")
    expect(shown).to_have_attribute("data-id", str(second))
    page.keyboard.press("ArrowRight")
    expect(shown).not_to_have_attribute("data-id", str(second))
    page.keyboard.press("ArrowLeft")
    expect(shown).to_have_attribute("data-id", str(second))


def test_marks_are_saved_and_brought_in(page: Page, lake: Lake, tmp_path: Path) -> None:
    go(page, "Mark a sample")
    expect(page.get_by_text("Picture 1 of 5")).to_be_visible()
    page.keyboard.press("r")
    expect(page.get_by_text("Picture 2 of 5. Marked here: 1, right: 1.")).to_be_visible()
    page.keyboard.press("w")
    page.get_by_role("button", name="Right", exact=True).click()
    expect(page.get_by_role("button", name="Right", exact=True)).to_have_attribute("aria-pressed", "true")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save marks to a file").click()
    file = tmp_path / "marks.json"
    saved.value.save_as(file)
    done = import_marks(lake, read_marks(file.read_text()), "Ada")
    assert done.taken == 3 and done.precision is not None
    assert (done.precision.right, done.precision.marked) == (2, 3)
    page.reload()
    go(page, "Verdict")
    expect(page.get_by_text("2 of 3 marked pictures right").first).to_be_visible()


def test_every_page_opens_at_every_width(page: Page) -> None:
    go(page, "All pictures")
    ids: list[str] = page.evaluate(
        "geofix.values.get('site').pages.filter((page) => !page.hidden).map((page) => page.id)"
    )
    assert len(ids) > 10
    for name in ids:
        page.evaluate(f"location.hash = '/{name}'")
        expect(page.locator(f"main[data-page='{name}'] h1")).to_be_visible()
        expect(page.locator("main .words.bad")).to_have_count(0)
        assert "[object" not in page.locator("main").inner_text()
        no_wider_than_the_window(page)


def test_funnel_training_and_first_page_show_what_they_hold(page: Page) -> None:
    expect(page.locator("main .grid .card img").first).to_have_js_property("complete", True)
    expect(page.locator("main .grid .card")).to_have_count(8)  # one of each country
    go(page, "Funnel")
    expect(page.locator(".shares .label")).to_have_text(["curate.judge"])
    expect(page.locator(".shares .bar i")).to_have_count(3)
    go(page, "Training")
    expect(page.get_by_role("row", name="acc@2500km 0.5 0.5 0.5")).to_be_visible()
    cut = page.locator("main .scroll").nth(1).evaluate("(one) => one.scrollWidth - one.clientWidth")
    assert cut <= 1, "the table of validations is seen whole"


def test_the_map_names_countries_and_counts_what_it_gathers(page: Page) -> None:
    go(page, "Map")
    expect(page.locator(".map .country", has_text="Brazil")).to_be_visible()
    expect(page.locator(".map .cluster", has_text=re.compile(r"^2$")).first).to_be_visible()
    counts = [int(text) for text in page.locator(".map .cluster").all_inner_texts()]
    assert min(counts) >= 2 and sum(counts) <= 17, "16 pictures, two at each city, and a place without"
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
        page.wait_for_timeout(400)
    expect(page.locator(".map .country").first).to_be_visible()


def test_leaving_the_gallery_while_it_loads_is_not_undone(page: Page) -> None:
    """The gallery writes its filters into the address when its rows have come: no longer after the reader has left."""
    page.evaluate(
        """() => {
            new MutationObserver((_, watcher) => {
                if (!document.querySelector(".gallery")) return;
                watcher.disconnect();
                location.hash = "/licences";
            }).observe(document.getElementById("main"), { childList: true });
            location.hash = "/pictures";
        }"""
    )
    expect(page.locator("main[data-page='licences'] h1")).to_be_visible()
    assert page.url.endswith("#/licences")


def test_a_panorama_can_be_looked_around_in(browser: Browser, lake: Lake) -> None:
    opened = browser.new_page()
    image_id = lake.read("labels").join(lake.read("images"), on="image_id").filter(kind="panorama")["image_id"][0]
    opened.goto(f"{(lake.root / 'reports' / SNAPSHOT / 'index.html').as_uri()}#/picture/{image_id}")
    opened.get_by_role("button", name="Look around").click()
    expect(opened.locator(".panorama canvas")).to_be_visible()
    expect(opened.locator(".pnlm-error-msg")).to_be_hidden()
    opened.close()


def test_keys_pressed_faster_than_marks_are_stored_lose_none(
    browser: Browser, lake: Lake, serving: Callable[[Lake, str], AbstractContextManager[str]]
) -> None:
    before = lake.version("marks")
    with serving(lake, SNAPSHOT) as address:
        opened = browser.new_page()
        opened.goto(f"{address}/?token=t#/sample")
        opened.goto(f"{address}/#/sample")
        expect(opened.get_by_text("Picture 1 of 5")).to_be_visible()
        for key in "rwrRw":
            opened.keyboard.press(key)
        expect(opened.get_by_text("Marked here: 5, right: 3. Stored: 5. All are marked.")).to_be_visible()
        shown = opened.evaluate(
            "JSON.parse(localStorage.getItem(`geofix-marks-${geofix.values.get('site').snapshot}`))"
        )
        opened.close()
    assert lake.version("marks") > before
    stored = lake.read("marks").filter(pl.col("marked_at") > pl.lit(datetime.now(UTC) - timedelta(minutes=5)))
    assert dict(stored.select("image_id", "mark").iter_rows()) == {id_: one["mark"] for id_, one in shown.items()}
    assert len(shown) == 5 and all(one["stored"] for one in shown.values())


def test_a_person_writes_how_a_place_is_found(
    browser: Browser, lake: Lake, serving: Callable[[Lake, str], AbstractContextManager[str]], tmp_path: Path
) -> None:
    image_id = lake.read("labels").sort("image_id")["image_id"][0]
    with serving(lake, SNAPSHOT) as address:
        opened = browser.new_page()
        opened.goto(f"{address}/?token=t")
        opened.goto(f"{address}/#/picture/{image_id}")
        save = opened.get_by_role("button", name="Save notes")
        expect(save).to_be_disabled()
        opened.get_by_label("notes", exact=True).fill("Palm trees and <b>left-hand</b> traffic.\nSo it is an island.")
        opened.get_by_label("licence").select_option("CC0 1.0")
        save.click()
        expect(opened.locator(".notes [role=status]")).to_have_text("Stored.")
        opened.screenshot(path=str(tmp_path / "notes.png"), full_page=True)
        opened.close()
    [stored] = lake.read("notes").filter(pl.col("image_id") == image_id).to_dicts()
    assert stored["notes"].startswith("Palm trees and <b>") and stored["licence"] == "CC0 1.0" and stored["author"]
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    opened.goto(f"{(lake.root / 'reports' / SNAPSHOT / 'index.html').as_uri()}#/picture/{image_id}")
    expect(opened.locator(".history")).to_contain_text("Palm trees and <b>left-hand</b> traffic.")
    expect(opened.get_by_label("notes", exact=True)).to_be_visible()
    no_wider_than_the_window(opened)
    opened.close()


@pytest.mark.parametrize("size", SIZES)
def test_a_person_plays_by_keyboard_and_the_truth_comes_with_the_answer(
    browser: Browser, lake: Lake, serving: Callable[[Lake, str], AbstractContextManager[str]], size: str, tmp_path: Path
) -> None:
    says = [
        {"role": "user", "content": "Where is this?"},
        {"role": "assistant", "content": "<think>Acacia trees.</think><answer>-1.0, 36.0</answer>"},
    ]
    held_out = lake.read("labels").filter(split="benchmark")["image_id"]
    told = {"evaluation_id": "e", "policy": "answerer-base", "messages_json": json.dumps(says), "error_km": 96.0}
    rows = [{**told, "image_id": one, "lat": -1.0, "lon": 36.0, "answer": "-1.0, 36.0"} for one in held_out]
    lake.upsert("predictions", rows, Commit(f"predictions-{size}", 1))
    build_site(lake, lake.read("snapshots").row(0, named=True), ReviewSettings(thumbnail_px=96, sample=5))
    width, height = SIZES[size]
    with serving(lake, SNAPSHOT) as address:
        opened = browser.new_page(viewport={"width": width, "height": height})
        opened.goto(f"{address}/?token=t")
        opened.goto("about:blank")
        answers: list[Any] = []
        opened.on("response", lambda answer: answers.append(answer))
        opened.goto(f"{address}/#/play")
        opened.get_by_label("Your name").fill(f"Ada {size}")
        opened.get_by_label("I agree that they are stored").press("Space")
        opened.keyboard.press("Enter")
        expect(opened.get_by_alt_text("Where was this taken?")).to_have_js_property("complete", True)
        expect(opened.locator(".map.guess .country").first).to_be_attached()
        no_wider_than_the_window(opened)
        opened.locator(".map.guess").focus()
        for key in ("ArrowRight", "ArrowDown", "Enter"):
            opened.keyboard.press(key)
        expect(opened.get_by_label("latitude")).not_to_have_value("")
        opened.screenshot(path=str(tmp_path / f"guess-{size}.png"), full_page=True)
        data = [one for one in answers if "/assets/" not in one.url and "image" not in one.headers["content-type"]]
        seen = " ".join(f"{one.url} {one.text()}" for one in data)
        assert "geofix.push" in seen and "play/next" in seen
        assert not [one for one in ("Nairobi", "-1.29", "36.82") if one in seen]
        lost: list[str] = []

        def flaky(route: Route) -> None:
            """The first time the server is not there."""
            if lost:
                route.continue_()
            else:
                lost.append(route.request.url)
                route.abort()

        opened.route("**/play/guess", flaky)
        opened.get_by_label("Why there?").fill("red <b>earth</b>, acacias")
        opened.keyboard.press("Tab")
        opened.keyboard.press("Enter")
        expect(opened.get_by_text("The guess waits: geofix does not answer.")).to_be_visible()
        expect(opened.get_by_role("heading", name="Nairobi")).to_be_visible()
        expect(opened.locator(".steps")).to_contain_text("Acacia trees.")
        expect(opened.get_by_role("button", name="Next picture")).to_be_focused()
        no_wider_than_the_window(opened)
        opened.wait_for_timeout(500)
        opened.screenshot(path=str(tmp_path / f"revealed-{size}.png"), full_page=True)
        opened.close()
    [stored] = lake.read("guesses").filter(author=f"Ada {size}").to_dicts()
    assert stored["why"] == "red <b>earth</b>, acacias" and stored["licence"] == "CC BY 4.0"
    opened = browser.new_page()
    opened.goto(f"{(lake.root / 'reports' / SNAPSHOT / 'index.html').as_uri()}#/play")
    expect(opened.get_by_text("The game needs a server")).to_be_visible()
    expect(opened.get_by_text("review --serve").first).to_be_visible()
    opened.close()
