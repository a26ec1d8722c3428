"""A plain install plans, collects, curates and reviews; what only some commands need is in extras."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from flows.cli import app
from flows.servers import START_S, answers, free_port
from schemas.extras import EXTRAS, MissingExtra, extra_of, require_extras

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Distributions that a plain install must not bring, also not by way of another one.
HEAVY = {
    *("torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors", "tokenizers", "vllm"),
    *("prefect-docker", "prefect-kubernetes"),
    *("rapidocr", "onnxruntime", "openvino", "ttf-opensans", "matplotlib-fontja", "matplotlib", "bitsandbytes"),
}
# The modules that may need an extra when they are imported. All others import it where they use it.
NEED_EXTRAS = re.compile(
    r"tasks\.train\..*|infra\.pretrain\..*|infra\.serve\..*"
    r"|tasks\.(agent\.verl_tools|imaging\.processor|recipes\.smilegeo\.(encoder|network))"
)

# Imports every module and prints those that could not be imported, as {module: missing module}.
IMPORT_ALL = """
import importlib, json, pkgutil, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
failed = {}
for root in ("schemas", "tasks", "flows", "infra"):
    for module in pkgutil.walk_packages(importlib.import_module(root).__path__, root + ".", failed.setdefault):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                failed[module.name] = error.name
from flows.cli import app
from typer.testing import CliRunner
shown = CliRunner().invoke(app, ["--help"])
assert shown.exit_code == 0 and "collect" in shown.output, shown.output
print(json.dumps(failed))
"""


@pytest.mark.whole
def test_every_room_of_a_plain_install_imports_without_the_extras() -> None:
    blocked = [name.replace("-", "_") for name in HEAVY]
    program = [sys.executable, "-c", IMPORT_ALL % blocked]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    failed = json.loads(done.stdout.splitlines()[-1])
    assert {name: why for name, why in failed.items() if not NEED_EXTRAS.fullmatch(name)} == {}
    assert "torch" in failed.values()  # the block works


def test_the_plain_dependencies_are_light() -> None:
    def names(lines: list[str]) -> set[str]:
        return {Requirement(line).name.lower() for line in lines}

    extras = PROJECT["project"]["optional-dependencies"]
    assert names(PROJECT["project"]["dependencies"]) & HEAVY == set()
    assert set(extras) == {"offline", "train", "cluster", "trace", "dev"}
    assert set(PROJECT["dependency-groups"]) == {"vllm", "serve-llm"}
    brought = names(extras["train"]) | names([line for name in names(extras["train"]) for line in requires(name) or []])
    assert {module.replace("_", "-") for module in EXTRAS["offline"]} <= names(extras["offline"])
    assert set(EXTRAS["train"]) <= brought


@pytest.fixture(params=["offline", "train"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An extra that seems not to be installed."""
    _uninstall(monkeypatch, *EXTRAS[request.param])
    return str(request.param)


def _uninstall(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkeypatch.setattr("schemas.extras.find_spec", lambda name: None if name in modules else find_spec(name))


NEEDED = {
    "offline": (["demo"], ["offline", "--port", "0"], ["plan"], ["base", "new"]),
    "train": (["demo"], ["train"], ["serve", "finds-2"], ["verl"], ["base", "new"], ["run"]),
}


def test_a_missing_extra_is_one_line_with_the_fix(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in NEEDED[missing]:
        port = ["--set", f"offline.port={free_port()}"] if words in (["plan"], ["run"], ["train"]) else []
        done = CliRunner().invoke(app, [*words, *port])
        assert done.exit_code == 1, (words, done.output)
        [line] = [line for line in done.output.splitlines() if line.startswith("geofix:")]
        assert f"pip install 'geofix[{missing}]'" in line and EXTRAS[missing][0] in line, words
    assert list(tmp_path.iterdir()) == []


def test_several_missing_extras_are_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _uninstall(monkeypatch, "torch", "rapidocr")
    with pytest.raises(MissingExtra, match=r"\(rapidocr, torch\): pip install 'geofix\[offline,train\]'"):
        require_extras("geofix demo", "offline", "train")
    assert [extra_of(name) for name in ("torch.nn", "onnxruntime", "polars", None)] == ["train", "offline", None, None]


@pytest.mark.slow
def test_a_fresh_environment_plans_collects_curates_and_reviews(tmp_path: Path) -> None:
    """`pip install .` alone, against the offline world served from this environment."""
    source, python = tmp_path / "source", tmp_path / "plain/bin/python"
    left_out = shutil.ignore_patterns("__pycache__", "vllm_cpu")  # vllm_cpu is a distribution of its own
    for package in ("flows", "tasks", "schemas", "infra"):  # a copy: building leaves files beside them
        shutil.copytree(ROOT / package, source / package, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    ours = [path.relative_to(source) for path in source.glob("*/**/*") if path.is_file()]
    uv = [str(Path(sys.executable).parent / "uv")]
    links = ["--find-links", found] if (found := os.environ.get("PIP_FIND_LINKS")) else []
    subprocess.run([*uv, "venv", "--python", sys.executable, str(tmp_path / "plain")], check=True)
    install = ["pip", "install", "--python", str(python), "--compile-bytecode", *links]
    subprocess.run([*uv, *install, "--constraints", str(ROOT / "constraints.txt"), str(source)], check=True)
    listed = subprocess.run([*uv, "pip", "list", "--python", str(python), "--format", "json"], capture_output=True)
    assert {row["name"].lower() for row in json.loads(listed.stdout)} & HEAVY == set()
    packages = next((tmp_path / "plain/lib").glob("python*/site-packages"))
    assert [path for path in ours if not (packages / path).exists()] == []

    port = free_port()
    options = ["--port", str(port), "--size", "2000"]
    world = subprocess.Popen([sys.executable, "-m", "infra.offline", *options], cwd=ROOT)
    try:
        assert _answers_within(f"http://127.0.0.1:{port}/health", START_S)
        for stage in ("plan", "collect", "curate", "review"):
            settings = (f"offline.port={port}", "offline.size=2000", "plan.places=5", "plan.countries=[DE, FR, GB]")
            sets = [word for setting in settings for word in ("--set", setting)]
            command = [python.with_name("geofix"), stage, *sets, "--lake", str(tmp_path / "lake")]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, (stage, done.stderr[-2000:])
    finally:
        world.terminate()
        world.wait(30)
    show = [python.with_name("geofix"), "tables", "--json", "--lake", str(tmp_path / "lake")]
    rows = {
        row["table"]: row["rows"] for row in json.loads(subprocess.run(show, capture_output=True, check=True).stdout)
    }
    assert rows["places"] == 5 and rows["images"] > 5 and rows["labels"] > 0 and rows["snapshots"] == 1


def _answers_within(url: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answers(url):
            return True
        time.sleep(0.2)
    return False
