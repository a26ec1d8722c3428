"""The pages of docs/ make a site without a warning, and every page is in its list."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_every_page_is_listed_once() -> None:
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = [
        page for entry in listed for value in entry.values() for page in ([value] if value == str(value) else value)
    ]
    assert sorted(pages) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


STAGE_PAGES = (
    "plan",
    "collect-street-view",
    "collect-satellite",
    "curate",
    "review",
    "agents",
    "evaluate",
    "train-gpu",
)


def test_every_stage_and_recipe_has_a_page_with_a_small_picture() -> None:
    recipes = re.findall(
        r"^\| \[[a-z-]+\]\((recipe-[a-z-]+)\.md\)", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE
    )
    assert len(recipes) == 5
    for page in (*STAGE_PAGES, *recipes):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        [picture, *_] = re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", text)
        assert (ROOT / "docs" / picture).stat().st_size < 120_000, page


def test_the_readme_fits_on_a_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 50


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)

    def build() -> int:
        command = [Path(sys.executable).parent / "zensical", "build", "--strict"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True).returncode

    assert build() == 0 and (tmp_path / "site" / "security" / "index.html").is_file()
    with (tmp_path / "docs" / "lake.md").open("a", encoding="utf-8") as page:
        page.write("\n[a page that is gone](gone.md)\n")
    assert build() != 0
