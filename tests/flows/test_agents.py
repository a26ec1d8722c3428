"""The models an agent outside a stage is served with."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.agents import _checkpoint
from flows.cli import app
from flows.cli.locating import read_picture
from schemas.config import Config
from schemas.errors import InputError
from tasks.agent.attempt import PACKAGED
from tasks.agent.environment import Environment
from tasks.agent.toolbox import Toolbox
from tasks.lake import Lake
from tasks.recipes import spotmini
from tasks.train.packaged import AGENT


def test_the_packaged_agent_needs_no_trained_model_in_the_lake(tmp_path: Path) -> None:
    folder, name = _checkpoint(Lake(tmp_path), AGENT)
    assert name == AGENT and (folder / "config.json").is_file()
    with pytest.raises(InputError, match=r"holds no trained model 'other'; the packaged one is 'trained:finds-2'"):
        _checkpoint(Lake(tmp_path), "other")


def test_it_is_shown_what_it_was_taught_with(tmp_path: Path) -> None:
    from PIL import Image

    file = tmp_path / "a.jpg"
    Image.new("RGB", (2048, 1024)).save(file)
    picture = read_picture(file, Config(), PACKAGED)
    assert (picture.width, picture.height) == (448, 224)
    assert picture.width * picture.height <= spotmini.MAX_PIXELS
    tools = Toolbox()
    environment = Environment(picture, tools, spotmini.PROMPT)
    assert environment.tools.context.max_results == 1 and tools.context.max_results == 5
    assert set(spotmini.PROMPT.tools) == {"image_zoom_in_tool", "maps_geocode"}


def test_the_page_of_locate_lies_in_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr("flows.agents.agent_session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("flows.cli.locating.locate_all", nothing)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    said = CliRunner().invoke(app, ["locate", "a.jpg", "--lake", str(tmp_path / "lake")])
    written = tmp_path / "lake" / "reports" / "locate.html"
    assert said.exit_code == 0 and str(written) in said.stdout
    assert "<title>geofix locate</title>" in written.read_text() and not list(here.iterdir())
    assert CliRunner().invoke(app, ["locate", "a.jpg", "--page", "mine.html", "--lake", str(tmp_path)]).exit_code == 0
    assert (here / "mine.html").is_file()
