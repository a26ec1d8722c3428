"""The models an agent outside a stage is served with."""

from pathlib import Path

import pytest

from flows.agents import _checkpoint
from flows.cli.locating import PACKAGED, read_picture
from schemas.config import Config
from schemas.errors import InputError
from tasks.agent.environment import Environment
from tasks.agent.toolbox import Toolbox
from tasks.lake import Lake
from tasks.recipes import spotmini
from tasks.train.packaged import AGENT


def test_the_packaged_agent_needs_no_trained_model_in_the_lake(tmp_path: Path) -> None:
    folder, name = _checkpoint(Lake(tmp_path), AGENT)
    assert name == AGENT and (folder / "config.json").is_file()
    with pytest.raises(InputError, match=r"holds no trained model 'other'; the packaged one is 'trained:finds-1'"):
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
