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


STAGE_PAGES = ("plan", "collect", "curate", "review", "agents", "evaluate", "train-gpu")


def test_every_stage_and_recipe_has_a_small_picture() -> None:
    sections = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in STAGE_PAGES}
    recipes = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| \[([a-z-]+)\]\(#\1\)", recipes, re.MULTILINE)
    assert len(names) == 5
    sections |= {name: recipes.partition(f"\n## {name}\n")[2].partition("\n## ")[0] for name in names}
    for name, text in sections.items():
        [picture, *_] = re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", text)
        assert (ROOT / "docs" / picture).stat().st_size < 120_000, name


def test_the_pages_stay_few_and_short() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    assert len(pages) <= 26 and sum(len(page.split()) for page in pages) <= 30_000


def test_the_readme_fits_on_a_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 50


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)

    def build() -> int:
        command = [Path(sys.executable).parent / "zensical", "build", "--strict"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True).returncode

    assert build() == 0 and (tmp_path / "site" / "security" / "index.html").is_file()
    with (tmp_path / "docs" / "plan.md").open("a", encoding="utf-8") as page:
        page.write("\n[a page that is gone](gone.md)\n")
    assert build() != 0
