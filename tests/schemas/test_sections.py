"""Contracts and settings of a new part: one new file each, found without a list to edit."""

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.config import Config, section_of
from schemas.tables import TABLES

TABLE = """
from schemas.tables.base import FLOAT, STRING, Table
TABLES = (Table("{name}", ("place_id",), {{"place_id": STRING, "elevation_m": FLOAT}}),)
"""
SETTINGS = """
from pydantic import Field
from schemas.settings.base import Settings

class ElevateSettings(Settings):
    highest_m: float = Field(9000.0, gt=0)

SECTION = ElevateSettings
"""
# The folders are added to the packages' own, as if the files lay in them.
LOOK = """
import sys, schemas, schemas.settings
schemas.settings.__path__.append(sys.argv[1] + "/settings")
import importlib.util, pickle
spec = importlib.util.find_spec("schemas.tables")
spec.submodule_search_locations.append(sys.argv[1] + "/tables")
module = importlib.util.module_from_spec(spec)
sys.modules["schemas.tables"] = module
spec.loader.exec_module(module)
from schemas.load import load_config
config = load_config(overrides=["elevate.highest_m=5"])
print(pickle.loads(pickle.dumps(config)).elevate.highest_m, module.TABLES["elevations"].key)
"""


def look(folder: Path, table: str = "elevations") -> subprocess.CompletedProcess[str]:
    (folder / "tables").mkdir()
    (folder / "settings").mkdir()
    (folder / "tables" / "elevate.py").write_text(TABLE.format(name=table))
    (folder / "settings" / "elevate.py").write_text(SETTINGS)
    return subprocess.run([sys.executable, "-c", LOOK, str(folder)], capture_output=True, text=True, check=False)


def test_a_new_part_brings_its_table_and_settings_as_two_files(tmp_path: Path) -> None:
    done = look(tmp_path)
    assert done.stdout.split("\n")[0] == "5.0 ('place_id',)", done.stderr


def test_a_table_declared_twice_names_both_files(tmp_path: Path) -> None:
    done = look(tmp_path, "labels")
    assert "table 'labels' is declared in curate.py and again in elevate.py" in done.stderr


def test_tables_stand_in_the_order_of_the_data() -> None:
    names = list(TABLES)
    assert names[0] == "places"
    assert names.index("images") < names.index("labels") < names.index("snapshots") < names.index("samples")
    assert names[-3:] == ["rejects", "failures", "runs"]


def test_a_section_is_found_by_its_dotted_path() -> None:
    config = Config()
    assert section_of(config, "plan") is config.plan
    assert section_of(config, "train.sft") is config.train.sft
    for wrong in ("planet", "plan.places", "plan.places.x", "train.sftt", ""):
        with pytest.raises(ValueError, match=f"no section '{wrong}'"):
            section_of(config, wrong)
