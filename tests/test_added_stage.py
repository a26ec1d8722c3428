"""A new stage is three new files and one line: then there is a command, a flow, settings and a table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.lake import Commit, Lake

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parent.parent

TABLES = '''"""Heights of places."""

from schemas.tables.base import FLOAT, STRING, Table

TABLES = (Table("elevations", ("place_id",), {"place_id": STRING, "elevation_m": FLOAT}, about="height of places"),)
'''
SETTINGS = '''"""Which heights are kept."""

from pydantic import Field

from schemas.settings.base import Settings


class ElevateSettings(Settings):
    """Which heights are kept."""

    highest_m: float = Field(9000.0, gt=0, description="places above are rejected")


SECTION = ElevateSettings
'''
ELEVATE = '''"""Elevate: the height of every place."""

import polars as pl

from schemas.settings.elevate import ElevateSettings
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Row, Stage, WorkerSetup


def places(inputs: Inputs, settings: ElevateSettings) -> pl.DataFrame:
    return inputs.frame("places").select("lat", id="place_id")


def measure(item: Row, settings: ElevateSettings) -> Outcome:
    elevation_m = abs(item["lat"]) * 100
    if elevation_m > settings.highest_m:
        return Rejected("too_high", {"elevation_m": elevation_m})
    return Kept({"elevations": [{"place_id": item["id"], "elevation_m": elevation_m}]})


def open_context(settings: ElevateSettings, setup: WorkerSetup) -> ElevateSettings:
    return settings


STAGES = [Stage("elevate", ("places",), ("elevations",), places, measure, open_context)]
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with the new stage in it."""
    root = tmp_path_factory.mktemp("checkout")
    for package in ("flows", "tasks", "schemas", "infra"):
        shutil.copytree(ROOT / package, root / package)  # with their bytecode, which stays valid: times are copied
    (root / "tasks" / "elevate").mkdir()
    (root / "tasks" / "elevate" / "__init__.py").write_text(ELEVATE)
    (root / "schemas" / "tables" / "elevate.py").write_text(TABLES)
    (root / "schemas" / "settings" / "elevate.py").write_text(SETTINGS)
    order = root / "flows" / "order.py"
    text = order.read_text()
    assert text.count('STAGES = ("plan", ') == 1
    order.write_text(text.replace('STAGES = ("plan", ', 'STAGES = ("plan", "elevate", '))
    return root


def geofix(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1500, check=False, cwd=checkout,
        env={**own, "PYTHONPATH": str(checkout)},
    )  # fmt: skip


def test_it_has_a_command_settings_a_table_and_a_place_in_the_order(checkout: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    rows = [{"place_id": f"p{n}", "country": "DE", "lat": 48.0 + n, "lon": 9.0, "split": "train"} for n in range(5)]
    Lake(folder).upsert("places", rows, Commit("test", 1))
    alone = geofix(checkout, "elevate", "--lake", str(folder), "--set", "elevate.highest_m=5000", "--json")
    assert alone.returncode == 0, alone.stderr
    [stage] = json.loads(alone.stdout)["stages"]
    assert [stage[name] for name in ("stage", "items_in", "kept", "rejected", "failed")] == ["elevate", 5, 3, 2, 0]
    shown, helped, said, flows = looked(checkout, folder)
    assert shown["exit_code"] == 0 and shown["output"].count('"elevation_m"') == 3, shown
    assert helped["exit_code"] == 0 and "height of every place" in helped["output"], helped
    # It has a flow that can be deployed, and a place in the order.
    assert said == "elevate | Elevate: the height of every place."
    assert flows == ["plan", "elevate"]


def looked(checkout: Path, lake: Path) -> Any:
    """What a process in the checkout finds: two commands, the new flow, and the stages up to it."""
    code = (
        "import json, sys\n"
        "from typer.testing import CliRunner\n"
        "from prefect.flows import load_flow_from_entrypoint as load\n"
        "from flows.cli import app\n"
        "from flows.order import stages_of_flow\n"
        "commands = (['show', 'elevations', '--lake', sys.argv[1], '--json'], ['elevate', '--help'])\n"
        "results = [CliRunner().invoke(app, command) for command in commands]\n"
        "found = [{'exit_code': one.exit_code, 'output': one.output} for one in results]\n"
        "flow, whole = load('flows/single.py:elevate'), load('flows/pipeline.py:pipeline')\n"
        "last = whole.validate_parameters({'last': 'elevate'})['last']\n"
        "stages = list(stages_of_flow(whole.name, last=last))\n"
        "print(json.dumps([*found, f'{flow.name} | {flow.description}', stages]))\n"
    )
    own = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", code, str(lake)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=checkout, env=own)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
