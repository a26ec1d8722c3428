"""docs/papers.md: every file, setting and test that it names exists, and every row of a section has a test."""

import re
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.describe import settings_of
from schemas.paper_tables import papers

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
ROWS = [
    line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| section")
]
SETTINGS = [one.name for one in settings_of(Config(), Config())]
SECTIONS = "plan|collect|ingest|curate|synthesize|difficulty|train|evaluate|models|services"


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def known_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }


def test_there_is_a_chapter_for_every_paper() -> None:
    titles = [title.strip().casefold().replace(" ", "-") for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)]
    assert {*papers()} <= {*titles} and len(ROWS) > 40


def test_every_row_names_a_test_that_exists() -> None:
    tests = known_tests()
    for section, code, _, differs, named in ROWS:
        if differs.strip() == "not done":
            assert not code.strip() and not named.strip()
            continue
        assert quoted(named) and {*quoted(named)} <= tests, (section, {*quoted(named)} - tests)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_every_file_and_setting_exists(row: list[str]) -> None:
    _, code, settings, differs, _ = row
    missing = [one for one in quoted(code) if not (ROOT / one).is_file()]
    named = [one for one in quoted(settings) + quoted(differs) if re.match(rf"({SECTIONS})\.", one)]
    assert missing == [] and [one for one in named if not is_setting(one)] == []
    assert len(quoted(settings)) == len([one for one in quoted(settings) if is_setting(one)])


def is_setting(name: str) -> bool:
    """Whether it is a setting, or a section of settings."""
    return any(one == name or one.startswith(f"{name}.") for one in SETTINGS)
