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


def test_an_audit_without_the_list_of_vulnerabilities_says_so() -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make on this machine")
    nowhere = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
    command = ["make", "--no-print-directory", "-o", ".venv/.ready", "audit"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "") and done.stderr.startswith("NOT AUDITED: ")


def test_all_that_is_pinned_is_audited_and_listed() -> None:
    for target, tool in (("audit", "pip-audit==2"), ("sbom", "cyclonedx-bom==7")):
        words = would_run("-o", ".venv/.ready", target)
        assert tool in words and "cat constraints.txt; grep -o 'torch==[0-9.]*' pyproject.toml" in words
