"""The threat model names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = sorted(set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def defined() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}


def test_the_page_names_a_test_in_every_line() -> None:
    ways = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition("## Ways in")[2].partition("##")[0]
    lines = [line for line in ways.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 10 and all("`test_" in line for line in lines)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str, defined: set[str]) -> None:
    assert name in defined
