"""What `make` would do, without doing it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def would_run(*words: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("there is no make on this machine")
    # These tests run under `make test` themselves: what the outer make hands on would show in the output.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--no-print-directory", *words]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("lake", ["lake", "/data/lake"])
def test_clean_deletes_no_lake(lake: str) -> None:
    deleted = would_run("clean", f"LAKE={lake}").split()
    assert ".venv" in deleted and lake not in deleted


def test_the_demos_lake_is_deleted_only_by_name() -> None:
    assert would_run("clean-demo", "LAKE=/data/lake").split() == ["rm", "-rf", "lake"]
