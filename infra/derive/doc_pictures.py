"""Pictures for docs/, one of each stage and recipe: what the review site of a lake shows, and the map of its plan.

    python -m infra.derive.doc_pictures LAKE docs/pictures

Needs chromium and playwright, and a lake that went through all stages, such as the demo's.
"""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from PIL import Image

from schemas.settings.review import ReviewSettings
from tasks.lake import Lake
from tasks.review.site import build_site

SIZE = {"width": 1200, "height": 800}
WIDTH = 840  # of a picture in the docs
# Commands on the pages name the lake: where it lies on this machine is not for the docs.
FORGET_PATH = """path => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) walker.currentNode.nodeValue = walker.currentNode.nodeValue.replaceAll(path, "lake");
}"""
PAGES = {
    "collect": "map",
    "collect-satellite": "pictures?kind=satellite",
    "curate": "funnel",
    "review": "start",
    "difficulty": "difficulty",
    "train": "training",
    "evaluate": "leaderboard",
}


def addresses(lake: Lake) -> Iterator[tuple[str, str]]:
    """Names of pictures, and the pages of the site that they show."""
    yield from PAGES.items()
    told = lake.read("trajectories", columns=["trajectory_id", "recipe", "verdict", "error_km"])
    best = told.sort(pl.col("verdict") != "kept", "error_km", nulls_last=True).unique("recipe", keep="first")
    for trajectory, recipe in best.sort("recipe").select("trajectory_id", "recipe").iter_rows():
        yield f"recipe-{recipe}", f"trajectory/{trajectory}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m infra.derive.doc_pictures")
    parser.add_argument("lake")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--leaderboard", metavar="RECIPE", help="only the scores, as the picture of a recipe")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    lake = Lake(options.lake)
    newest = lake.read("snapshots").sort("created_at").row(-1, named=True)
    site = build_site(lake, newest, ReviewSettings())
    options.folder.mkdir(parents=True, exist_ok=True)
    shots = {}
    if not options.leaderboard:
        shots["plan"] = Image.open(lake.root / "reports/plan/map.png").convert("RGB")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        only = [(f"recipe-{options.leaderboard}", "leaderboard")]
        for name, address in only if options.leaderboard else addresses(lake):
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            page.goto(f"{site.resolve().as_uri()}#/{address}")
            page.wait_for_selector("#main:not([aria-busy])")
            page.wait_for_timeout(1500)  # pictures and charts draw themselves
            page.evaluate(FORGET_PATH, lake.uri)
            target = options.folder / f"{name}.png"
            page.screenshot(path=target)
            shots[name] = Image.open(target).convert("RGB")
            target.unlink()
            page.close()
        browser.close()
    for name, shot in shots.items():
        height = round(shot.height * WIDTH / shot.width)
        shot.resize((WIDTH, height), Image.Resampling.LANCZOS).save(options.folder / f"{name}.jpg", quality=72)


if __name__ == "__main__":
    main()
