"""What docs/recipes.md promises: a recipe is one folder, and nothing else names it."""

import ast
import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infra.offline.faults import Faults
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.config import Config
from schemas.load import load_config
from schemas.recipes import default_recipe, recipe_folders
from tasks.difficulty import STAGES as DIFFICULTY
from tasks.evaluate import STAGES as EVALUATE
from tasks.lake import Commit, Lake
from tasks.recipes.recipe import RECIPES, recipe_module
from tasks.recipes.rewards import reward_for, rewarded_recipes
from tasks.runtime.runner import Context, run
from tasks.services import Mapillary, connect
from tasks.synthesize import STAGES as SYNTHESIZE
from tasks.train import STAGES as TRAIN

ROOT = Path(__file__).resolve().parents[3]

RECIPE = '''
"""Street clocks: look at the clock, geocode its town, answer in lines."""

from tasks.agent.prompt import ANSWER, lines_error
from tasks.agent.prompt import Budgets, Prompt
from tasks.recipes.recipe import Recipe, RecipeReward, point_judge
from tasks.reward.outcome import score_point

RECIPE = Recipe(
    name="street-clocks",
    version=1,
    prompt=Prompt(
        "You find places by their street clocks, with at most {max_tool_calls} tool calls.\\n" + ANSWER,
        "Where does this clock stand?",
        ("image_zoom_in_tool", "maps_geocode"),
        Budgets(calls=4, turns=5),
    ),
    judge=point_judge(lines_error, by_distance=False),
    kept_when="the calls and the form",
    reward=RecipeReward(lambda text, truth, deps: score_point(text, truth, lambda km: 1 / (1 + km))),
)
'''
SETTINGS = """
synthesize: {recipe: street-clocks, max_images: 2, view_max_pixels: 100352}
difficulty:
  {recipe: street-clocks, agent_recipe: street-clocks, tools: [all], policy: agent, k: 2, keep: learnable,
   view_max_pixels: 100352, max_images: 1}
train: {recipe: street-clocks, phases: [cold_start]}
evaluate: {agent_recipe: street-clocks, tools: [all], view_max_pixels: 100352}
"""


@pytest.fixture
def sixth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A recipe in one folder of a user's own, on the Python path."""
    folder = tmp_path / "mine" / "geofix_recipes" / "street_clocks"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(RECIPE)
    (folder / "settings.yaml").write_text(SETTINGS)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    yield "street-clocks"
    for name in [name for name in sys.modules if name.startswith("geofix_recipes")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[World, str]]:
    made = World(seed=7, size=200, pano_width=512)
    with serving(create_app(made, Faults(), warm=False)) as url:
        yield made, url


def configuration(recipe: str, url: str) -> Config:
    names = {"mapillary": "mapillary", "geocoder": "nominatim", "search": "tavily", "maps": "maps", "chat": "openai/v1"}
    services = {name: {"base_url": f"{url}/{path}", "timeout_s": 120} for name, path in names.items()}
    tiny = {"vocabulary": 400, "hidden": 64, "layers": 1, "intermediate": 64, "vision_hidden": 32, "vision_layers": 1}
    train = {
        "precision": "fp32", "loader_threads": 0, "image_min_pixels": 1568, "image_max_pixels": 4704, "tiny": tiny,
        "validation_images": 0, "cold_start": {"max_steps": 1, "batch_size": 1, "micro_batch": 1},
    }  # fmt: skip
    own = {
        "synthesize": {"also": [], "require": []},
        "evaluate": {"policies": ["agent"], "trained": False, "resamples": 100},
    }
    return load_config(recipe=recipe, extra={"services": services, "train": train, **own})


def filled(lake: Lake, world: World, config: Config) -> Lake:
    """Three pictures of the world: two for training, one for the benchmark."""
    mapillary = Mapillary(connect(config.services, {}).mapillary)
    images, labels = [], []
    for number, split in enumerate(("train", "train", "benchmark")):
        record, city = world.first_image(number), world.place(number).city

        async def fetched(source_id: str = record.image_id) -> bytes:
            return await mapillary.fetch((await mapillary.image(source_id))["thumb_1024_url"])

        row = {"image_id": f"i{number}", "sha256": lake.images.put(asyncio.run(fetched()), "jpg")}
        row |= {"lat": record.lat, "lon": record.lon}
        known = {"kind": "photo", "source": "s", "source_id": f"s{number}", "licence": "CC0", "attribution": "a"}
        images.append({**row, **known, "extension": "jpg"})
        labels.append({**row, "country": city.country, "region": city.admin1, "city": city.name, "split": split})
    lake.upsert("images", images, Commit("test", 1))
    lake.upsert("labels", labels, Commit("test", 2))
    return lake


@pytest.mark.usefixtures("in_process")
def test_a_sixth_recipe_in_one_folder_runs_from_synthesize_to_evaluate(
    sixth: str, world: tuple[World, str], tmp_path: Path, snapshot_of: Callable[..., str]
) -> None:
    config = configuration(sixth, world[1])
    lake = filled(Lake(tmp_path / "lake"), world[0], config)
    snapshot_of(lake)
    context = Context(lake, connect(config.services, {}, models=config.models))
    parts: list[tuple[Any, Any]] = [
        (SYNTHESIZE, config.synthesize), (DIFFICULTY, config.difficulty), (TRAIN, config.train),
        (EVALUATE, config.evaluate),
    ]  # fmt: skip
    for stages, settings in parts:
        for stage in stages:
            result = run(stage, settings, context)
            assert result.failed == 0, (stage.name, lake.read("failures").to_dicts())
    trajectories = lake.read("trajectories")
    assert trajectories["recipe"].unique().to_list() == [sixth]
    assert trajectories["verdict"].to_list().count("kept") >= 1
    assert all("street clocks" in text for text in trajectories["messages_json"])
    assert lake.read("attempts").height == 2 and lake.read("attempts")["reward"].is_between(0, 1).all()
    [model] = lake.read("models").to_dicts()
    assert (model["recipe"], model["training_stage"]) == (sixth, "cold_start")
    [prediction] = lake.read("predictions").to_dicts()
    assert "street clocks" in prediction["messages_json"]
    assert lake.read("scores").filter(pl.col("metric") == "acc@25km").height == 1


def test_the_registry_knows_a_new_folder_at_once(sixth: str) -> None:
    assert sixth in recipe_folders() and sixth in list(RECIPES) and sixth in rewarded_recipes()
    assert reward_for(sixth)("<answer>48.0, 2.0</answer>", lat=48.0, lon=2.0).reward == 1.0  # type: ignore[union-attr]
    config = load_config(recipe=sixth)
    assert config.synthesize.recipe == sixth and set(config.synthesize.further_recipes) == {*RECIPES} - {sixth}


def test_every_recipe_is_whole() -> None:
    assert default_recipe() in RECIPES
    for name, recipe in RECIPES.items():
        assert recipe.name == name and recipe.prompt.question and recipe.kept_when
        assert recipe.writer is None or recipe.label_answer is None, "a recipe writes in one way"
        load_config(recipe=name)
    for name in ("no-such", "recipe", "../spotagent", "os"):
        assert name not in RECIPES
    assert recipe_module("smilegeo").EVALUATION.name == "swarm"


_LOWER = "spotagent|geovista|geoagent|thinking[-_]with[-_]map|smilegeo"
NAMES = re.compile(rf"(?<![A-Za-z])({_LOWER}|{_LOWER.upper()})(?![A-Za-z])")


def test_no_other_room_names_a_recipe() -> None:
    """Names in code and settings; a text may cite a paper by the name it is published under, such as GeoVista."""
    found = []
    for folder in ("tasks", "flows", "schemas"):
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.is_relative_to(ROOT / "tasks/recipes")
            if inside or path.suffix not in (".py", ".yaml") or not path.is_file():
                continue
            text = path.read_text() if path.suffix == ".yaml" else ast.unparse(ast.parse(path.read_text()))
            found += [f"{path.relative_to(ROOT)} names {name}" for name in NAMES.findall(text)]
    assert found == []


def test_a_name_would_be_found() -> None:
    assert NAMES.findall('recipe == "geovista"') and NAMES.findall("THINKING_WITH_MAP = 1")
    assert not NAMES.findall("GeoVista eq. 4")
