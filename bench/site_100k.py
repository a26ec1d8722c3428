"""The review site of 100,000 pictures: how long it takes to build, and how it answers in Chromium.

Every picture is a file of its own bytes (JPEG, 640 x 320, drawn scenes with a mark of their own), is decoded and made
small, and has its history. Goals: built in under 5 minutes, the first page loads under 1 MB, a search in the gallery
answers in under 200 ms. The rival is what a reviewer would do without the site: one HTML page with every picture as a
card (`pandas.DataFrame.to_html`), whose size is printed beside the first page's.
"""

import hashlib
import json
import random
import resource
import shutil
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl

from bench.goals import Goal, judge
from schemas.settings.review import ReviewSettings
from schemas.tables import TABLES
from tasks.geo.atlas import DATA
from tasks.lake import Commit, Lake
from tasks.lake.table_schema import to_arrow
from tasks.review.site import build_site

COUNT = 100_000
SCENES = 64  # different drawings; every file has bytes of its own
SEARCHES = ("paris", "walker 17", "text pharmacy", "saint", "new york", "sa", "road sign left", "kyoto photo")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
SNAPSHOT = "e" * 24


def scenes() -> list[bytes]:
    """Drawn pictures with enough detail to weigh what a small photo weighs."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(SCENES):
        picture = np.full((320, 640, 3), rng.integers(120, 240, 3), np.uint8)
        cv2.rectangle(picture, (0, 180), (640, 320), rng.integers(60, 160, 3).tolist(), -1)
        for _ in range(40):
            x, y = int(rng.integers(0, 600)), int(rng.integers(40, 280))
            cv2.rectangle(picture, (x, y), (x + 40, y + 30), rng.integers(0, 255, 3).tolist(), -1)
        picture = cv2.add(picture, rng.integers(0, 12, picture.shape, dtype=np.uint8))
        found.append(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 82])[1].tobytes())
    return found


def marked(jpeg: bytes, number: int) -> bytes:
    """The same picture as a file of its own: a JPEG comment holds the number."""
    note = str(number).encode()
    return jpeg[:2] + b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note + jpeg[2:]


def fill(lake: Lake, count: int) -> dict[str, Any]:
    """A lake as the stages before the review leave it; returns the snapshot's row."""
    drawn, rng = scenes(), random.Random(0)
    towns = pl.read_parquet(DATA.joinpath("cities.parquet").read_bytes())
    towns = towns.with_columns(lat=pl.col("lat_e5") / 1e5, lon=pl.col("lon_e5") / 1e5)
    names = [hashlib.blake2b(str(n).encode(), digest_size=12).hexdigest() for n in range(count)]
    rows = towns.sample(count, with_replacement=True, seed=1).to_dicts()
    images, labels, rejects, judged = [], [], [], []
    for number, (image_id, town) in enumerate(zip(names, rows, strict=True)):
        data = marked(drawn[number % SCENES], number)
        sha256 = hashlib.sha256(data).hexdigest()
        path = lake.images.path(sha256, "jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        point = {"lat": town["lat"] + rng.uniform(-0.05, 0.05), "lon": town["lon"] + rng.uniform(-0.05, 0.05)}
        own = {"stage": "collect", "item_id": image_id, "made_from": "m", "run_id": "r", "written_at": NOW}
        creator = f"walker {rng.randrange(4000)}"
        kind = "panorama" if number % 3 == 0 else "photo"
        images.append(
            {"image_id": image_id, "kind": kind, **point, "source": "mapillary", "source_id": f"id{number}",
             "sequence_id": f"drive{number // 5}", "licence": "CC BY-SA 4.0", "creator": creator,
             "attribution": f"Image by {creator}, CC BY-SA 4.0", "captured_at": NOW - timedelta(days=number % 3000),
             "fetched_at": NOW, "sha256": sha256, "extension": "jpg", "bytes": len(data), "width": 640, "height": 320,
             "split": "train", **own}
        )  # fmt: skip
        said = f"text {rng.choice(('pharmacy', 'bakery', 'school', 'station'))} {town['name']}; traffic on the left"
        score = round(rng.uniform(0, 10), 1)
        judged.append(
            {"image_id": image_id, "sha256": sha256, "model": "judge", "score": score, "reason": said,
             "localizability": "localizable" if score > 2 else "non_localizable",
             "scenes_json": '{"buildings": "yes", "sign": "yes", "plants": "no"}', **own}
        )  # fmt: skip
        if score > 2:
            labels.append(
                {"image_id": image_id, "sha256": sha256, **point, "country_code": town["country"],
                 "country": town["country"], "city": town["name"], "localizability": "localizable",
                 "localizability_score": score, "judge_model": "judge", "judge_reason": said,
                 "split": ("train", "train", "validation", "benchmark")[number // 5 % 4], **own}
            )  # fmt: skip
        else:
            rejects.append({"reason": "non_localizable", "evidence_json": "{}", **own, "stage": "curate.labels"})
    for name, found in {"images": images, "labels": labels, "rejects": rejects, "judgements": judged}.items():
        lake.append(
            name, to_arrow(TABLES[name], pl.DataFrame(found, infer_schema_length=None)), Commit("fill", 1, name)
        )
    versions = {name: lake.version(name) for name in ("places", "images", "labels", "rejects")}
    counts = {"images": count, "labels": len(labels), "rejects_by_reason": {"non_localizable": len(rejects)}}
    return {
        **{"snapshot_id": SNAPSHOT, "status": "pending", "checks_passed": True, "checks_json": "[]"},
        **{"table_versions_json": json.dumps(versions), "counts_json": json.dumps(counts)},
    }


def in_browser(index: Path) -> tuple[int, float, float, float]:
    """Bytes of the first page, seconds until the gallery shows, until its search is ready, and the slowest answer."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(index.as_uri())
        page.wait_for_selector("main[data-page='start'] h1")
        first = sum(
            Path(url.removeprefix("file://").partition("#")[0]).stat().st_size for url in asked if "file:" in url
        )
        start = time.monotonic()
        page.evaluate("location.hash = '/pictures'")
        page.wait_for_selector(".gallery .card", timeout=120_000)
        shown = time.monotonic() - start
        page.evaluate("geofix.findPictures(new URLSearchParams('search=anything'))")
        ready = time.monotonic() - start
        slowest = 0.0
        for words in SEARCHES:
            page.fill("#search", words)
            page.wait_for_function(
                "(words) => location.hash.includes(new URLSearchParams({search: words}).toString())", arg=words
            )
            page.wait_for_timeout(50)
            took, found = page.evaluate(
                "(({ searchMs, found }) => [+searchMs, +found])(document.querySelector('.gallery').dataset)"
            )
            print(f"   search '{words}': {found:,.0f} pictures in {took:.0f} ms")
            slowest = max(slowest, took)
        browser.close()
    return first, shown, ready, slowest


def cpu_s() -> float:
    """CPU of this process and of those it started."""
    who = (resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in who)


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        lake = Lake(Path(scratch) / "lake")
        start = time.monotonic()
        row = fill(lake, COUNT)
        print(f"   lake of {COUNT:,} pictures filled in {time.monotonic() - start:.0f} s")
        start, worked = time.monotonic(), cpu_s()
        index = build_site(lake, row, ReviewSettings())
        built, worked = time.monotonic() - start, cpu_s() - worked
        print(f"   built in {built:.0f} s ({worked:.0f} s of CPU), {COUNT / built:,.0f} pictures/s", flush=True)
        flat = len(lake.read("labels").to_pandas().to_html().encode())
        first, shown, ready, slowest = in_browser(index)
    print(
        f"   first page {first / 1e6:.2f} MB; the labels as one flat page {flat / 1e6:.0f} MB, {flat / first:.0f} times"
    )
    print(f"   gallery shown after {shown:.1f} s, search ready after {ready:.1f} s, slowest answer {slowest:.0f} ms")
    return judge(
        [
            Goal("minutes to build", built / 60, at_most=5),
            Goal("MB of the first page", first / 1e6, at_most=1),
            Goal("ms of the slowest search", slowest, at_most=200),
        ]
    )
