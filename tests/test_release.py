"""A release: version, metadata, changelog, and wheel and sdist that work in an empty environment."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ("3.11", "3.12", "3.13")
UV = str(Path(sys.executable).parent / "uv")
# Small enough for two cores; every stage has work.
SMALL = (
    *("plan.places=6", "plan.countries=[DE, FR, GB]", "plan.split={train: 0.5, validation: 0, benchmark: 0.5}"),
    *("collect.satellite.size_px=256", "curate.quality.kinds=[panorama, photo]", "spread.workers=1"),
    *("curate.judge.view_max_pixels=300000", "difficulty.k=2", "difficulty.policy=answerer-base"),
    *("train.sft.max_steps=2", "train.cold_start.max_steps=1", "train.grpo.max_steps=1"),
    *("evaluate.split=train", "evaluate.max_images=1"),
)


def test_the_metadata_names_the_pythons_that_are_checked() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert tuple(named) == PYTHONS
    assert [f"3.{minor}" for minor in range(9, 16) if allowed.contains(f"3.{minor}.0")] == list(PYTHONS)


def test_the_changelog_begins_with_the_version_by_kinds_of_change() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", text, re.MULTILINE)
    assert sections[0] == PROJECT["version"] and len(sections) == len(re.findall(r"^## ", text, re.MULTILINE))
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {"Added", "Changed", "Removed", "Fixed"}


def uv(*words: str | Path) -> None:
    done = subprocess.run([UV, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made of the sdist, which is made of a clone."""
    folder = tmp_path_factory.mktemp("release")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    subprocess.run(["git", "init", "-q", folder / "clone"], check=True)
    for name in filter(None, (os.fsdecode(name) for name in tracked)):
        if (ROOT / name).is_file():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "clone" / name)
    identity = ("-c", "user.name=release", "-c", "user.email=release@example.org")
    subprocess.run(["git", "add", "-A"], cwd=folder / "clone", check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "all"], cwd=folder / "clone", check=True)
    uv("build", "--out-dir", folder / "dist", folder / "clone")
    return next((folder / "dist").glob("*.whl"))


@pytest.mark.slow
def test_wheel_and_sdist_hold_what_is_tracked(built: Path) -> None:
    clone = built.parents[1] / "clone"
    ours = {
        str(path.relative_to(clone))
        for room in ("flows", "tasks", "schemas", "infra")
        for path in (clone / room).rglob("*")
        if path.is_file() and path.name != ".gitignore"
    }
    wheel = set(zipfile.ZipFile(built).namelist())
    assert {name for name in ours if name not in wheel} == set()
    with tarfile.open(next(built.parent.glob("*.tar.gz"))) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert {*ours, "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= packed


def _interpreter(python: str) -> str | None:
    """A Python of this version that starts: on the path, or of pyenv, whose shims start the chosen version alone."""
    pyenv = sorted(map(str, Path.home().glob(f".pyenv/versions/{python}.*/bin/python{python}")))
    for path in filter(None, (shutil.which(f"python{python}"), *pyenv)):
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_works_in_an_empty_environment(built: Path, python: str, tmp_path: Path) -> None:
    """Doctor and demo; RELEASE_EXTRAS=offline: without training, where torch for that Python is gigabytes of CUDA."""
    home = os.environ | {"VIRTUAL_ENV": "", "PYTHONPATH": ""}
    interpreter = _interpreter(python)
    if interpreter is None:
        pytest.skip(f"there is no Python {python} on this machine")
    extras = os.environ.get("RELEASE_EXTRAS", "offline,train")
    uv("venv", "--python", interpreter, tmp_path / "empty")
    links = ["--find-links", path] if (path := os.environ.get("PIP_FIND_LINKS")) else []
    install = ("pip", "install", "--python", tmp_path / "empty/bin/python", "--compile-bytecode", *links)
    uv(*install, "--constraints", ROOT / "constraints.txt", f"geofix[{extras}] @ {built.as_uri()}")

    def geofix(*words: str) -> str:
        command = [str(tmp_path / "empty/bin/geofix"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-3000:])
        return done.stdout

    lake = ("--lake", str(tmp_path / "lake"))
    sets = [word for setting in SMALL for word in ("--set", setting)]
    assert f"Python {python}" in geofix("doctor", "--profile", "offline", *lake)
    if "train" in extras:
        assert "What it made:" in geofix("demo", *lake, *sets)
    else:
        geofix("run", "--to", "difficulty", "--set", "review.auto_approve=true", *lake, *sets)
    rows = {row["table"]: row["rows"] for row in json.loads(geofix("tables", "--json", *lake))}
    wanted = {"images", "labels", "snapshots", "trajectories", "attempts"} | (
        {"models"} if "train" in extras else set()
    )
    assert all(rows.get(table, 0) > 0 for table in wanted), rows
