"""What `make` would do, without doing it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def would_run(*words: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("there is no make on this machine")
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("lake", ["lake", "/data/lake"])
def test_clean_deletes_no_lake(lake: str) -> None:
    deleted = would_run("clean", f"LAKE={lake}").split()
    assert ".venv" in deleted and lake not in deleted


def test_the_demos_lake_is_deleted_only_by_name() -> None:
    assert would_run("clean-demo", "LAKE=/data/lake").split() == ["rm", "-rf", "lake"]
