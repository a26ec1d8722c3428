"""What docs/recipes.md promises: a recipe is one folder, and nothing else names it."""

import ast
import asyncio
import contextlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.order import roles_of, segments, services_of
from flows.trained import checkpoints
from infra.offline.faults import Faults
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.config import Config, section_of
from schemas.errors import GeofixError
from schemas.load import load_config
from schemas.messages import texts_of
from schemas.recipes import default_recipe, recipe_folders
from schemas.settings.services import TrainedEndpoint
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.difficulty import STAGES as DIFFICULTY
from tasks.evaluate import STAGES as EVALUATE
from tasks.lake import Commit, Lake
from tasks.recipes.recipe import RECIPES, recipe_module, rollout_prompt
from tasks.recipes.rewards import reward_for, rewarded_recipes
from tasks.reward.answer import Address
from tasks.reward.outcome import Truth
from tasks.runtime.runner import Context, run
from tasks.services import Chat, connect
from tasks.synthesize import STAGES as SYNTHESIZE
from tasks.train import PHASES as TRAIN
from tasks.train.rollouts.source import EmbeddedRollouts, Episode, recipe_scorer
from tasks.train.token_samples import Completion

ROOT = Path(__file__).resolve().parents[3]

RECIPE = '''
"""Street clocks: look at the clock, geocode its town, answer in lines."""

from tasks.agent.prompt import ANSWER, lines_error
from tasks.agent.prompt import Budgets, Prompt
from tasks.recipes.recipe import Recipe, RecipeReward, point_judge
from tasks.reward.outcome import score_point

RECIPE = Recipe(
    name="street-clocks",
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
synthesize: {max_images: 2, view_max_pixels: 100352}
difficulty: {tools: [all], policy: agent, k: 2, keep: learnable, view_max_pixels: 100352, max_images: 1}
train: {phases: [cold_start]}
evaluate: {tools: [all], view_max_pixels: 100352}
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


def configuration(recipe: str, url: str, **changes: dict[str, Any]) -> Config:
    names = {
        "mapillary": "mapillary",
        "geocoder": "nominatim",
        "search": "tavily",
        "image_search": "vision",
        "maps": "maps",
        "world_maps": "places",
        "chat": "openai/v1",
    }
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
    sections: dict[str, dict[str, Any]] = {"services": services, "train": train, **own}
    merged = {name: {**sections.get(name, {}), **changes.get(name, {})} for name in {*sections, *changes}}
    return load_config(recipe=recipe, extra=merged)


# The label of a picture as the offline agent answers to it: forms are tested here, and a wrong place is rejected.
TOLD = {12: ("Brazil", "Goiás", "Goiás")}
PHOTOS = (("photo", "train", 0), ("photo", "train", 1), ("photo", "benchmark", 2))


def filled(lake: Lake, world: World, config: Config, wanted: Sequence[tuple[str, str, int]] = PHOTOS) -> Lake:
    """Pictures of the world, each of a kind, for a split and of a place."""
    mapillary = Mapillary(connect(config.services, {}).street_view["mapillary"])
    images, labels = [], []
    for number, (kind, split, place) in enumerate(wanted):
        record, city = world.first_image(place), world.place(place).city

        async def fetched(source_id: str = record.image_id) -> bytes:
            return await mapillary.fetch((await mapillary.image(source_id))["thumb_1024_url"])

        row = {"image_id": f"i{number}", "sha256": lake.images.put(asyncio.run(fetched()), "jpg")}
        row |= {"lat": record.lat, "lon": record.lon}
        known = {"kind": kind, "source": "s", "source_id": f"s{number}", "licence": "CC0", "attribution": "a"}
        images.append({**row, **known, "extension": "jpg"})
        names = TOLD.get(place, (city.country, city.admin1, city.name))
        labels.append({**row, **dict(zip(("country", "region", "city"), names, strict=True)), "split": split})
    lake.upsert("images", images, Commit("test", 1))
    lake.upsert("labels", labels, Commit("test", 2))
    return lake


@pytest.mark.whole
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
    untrained = {"smilegeo"}  # no model of its own learns from trajectories
    assert config.synthesize.recipe == sixth
    assert set(config.synthesize.further_recipes) == {*RECIPES} - {sixth} - untrained


def test_every_recipe_is_whole() -> None:
    assert default_recipe() in RECIPES
    for name, recipe in RECIPES.items():
        assert recipe.name == name and recipe.prompt.question and recipe.kept_when
        assert recipe.writer is None or not recipe.writes_gold, "a recipe writes in one way"
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


def test_no_other_room_names_the_newest_recipe() -> None:
    """Its name is a word too: as a text of its own, or as a module, it would be the recipe."""
    for folder in ("tasks", "flows", "schemas"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            # A geocoder's own word: from a point to its address.
            if not path.is_relative_to(ROOT / "tasks/recipes/reverse") and path.name != "geocoder.py":
                nodes = list(ast.walk(ast.parse(path.read_text())))
                assert not any(isinstance(node, ast.Constant) and node.value == "reverse" for node in nodes), path
                assert "recipes.reverse" not in path.read_text(), path


def test_a_name_would_be_found() -> None:
    assert NAMES.findall('recipe == "geovista"') and NAMES.findall("THINKING_WITH_MAP = 1")
    assert not NAMES.findall("GeoVista eq. 4")


# The four that are trained, each through all its steps.

STEPS = {
    "spotagent": "synthesize train.samples train.sft difficulty.attempts difficulty.regimes train.samples "
    "train.cold_start train.grpo",
    "geovista": "synthesize train.samples train.sft train.cold_start train.grpo",
    "geoagent": "synthesize train.samples train.sft train.cold_start train.grpo",
    "reverse": "synthesize train.samples train.sft train.cold_start train.grpo",
    "thinking-with-map": "train.samples train.sft train.cold_start train.grpo",  # no cold start, so no trajectories
}
MODELS = {
    "spotagent": ["sft", "cold_start", "grpo"],
    "geovista": ["cold_start", "grpo"],
    "geoagent": ["cold_start", "grpo"],
    "reverse": ["sft", "cold_start", "grpo"],
    "thinking-with-map": ["grpo"],
}
# Photos of which every recipe keeps a trajectory, and two that are called scenes.
WANTED = (
    *(("photo", "train", 0), ("photo", "train", 1), ("photo", "train", 12), ("photo", "benchmark", 9)),
    *(("satellite", "train", 3), ("satellite", "benchmark", 13)),
)
SMALL: dict[str, dict[str, Any]] = {
    "synthesize": {"also": [], "require": [], "max_error_km": 20_000},
    "difficulty": {"k": 2, "keep": "learnable", "max_tokens": 64, "view_max_pixels": 100352},
    "evaluate": {
        "policies": ["agent"], "trained": False, "resamples": 100, "view_max_pixels": 100352, "max_tokens": 1024,
        "scaling": {"policies": []},
    },
}  # fmt: skip


def small_training(recipe: str) -> dict[str, Any]:
    one = {"max_steps": 1, "batch_size": 1, "micro_batch": 1}
    grpo = {
        "max_steps": 1, "group_size": 2, "prompts_per_generation": 1, "prompts_per_step": 1, "micro_batch": 2,
        "max_completion_tokens": 8,
    }  # fmt: skip
    given = configuration(recipe, "http://127.0.0.1:9").train.model_dump(include={"tiny"})
    sizes = {"precision": "fp32", "loader_threads": 0, "image_min_pixels": 1568, "image_max_pixels": 4704}
    return {**given, **sizes, "validation_images": 0, "lora": None, "sft": one, "cold_start": one, "grpo": grpo}


@contextlib.contextmanager
def served(config: Config, lake: Lake, stage: str) -> Iterator[Config]:
    """The configuration with the model that the stage asks for, served in this process."""
    wanted = checkpoints(config, lake.read("models"), stage)
    if not wanted:
        yield config
        return
    from infra.serve.model import Model
    from infra.serve.server import Service

    [(model_id, folder)] = wanted.items()
    with serving(Service(Model(lake.blobs.pull(folder), 1, 8192), model_id).app()) as url:
        trained = {"base_url": f"{url}/v1", "timeout_s": 120}
        services = config.services.model_copy(update={"trained": TrainedEndpoint.model_validate(trained)})
        yield config.model_copy(update={"services": services})


def taken_through(config: Config, lake: Lake) -> list[str]:
    """The names of the steps that were run, in their order, from synthesis to scores."""
    names = []
    for stage, steps in segments(config, ("synthesize", "difficulty", "train", "evaluate")):
        with served(config, lake, stage) as reachable:
            context = Context(lake, connect(reachable.services, {}, models=reachable.models))
            for step in steps:
                names.append(step.name)
                result = run(step, section_of(reachable, step.section or stage), context)
                assert result.failed == 0, (step.name, lake.read("failures").to_dicts())
    return names


def words(messages: Sequence[dict[str, Any]]) -> str:
    """What a model is told before its first reply, without its tools, which servers and trainers add to it."""
    told = [text for message in messages[:2] for text in texts_of(message)]
    return "\n".join(told).replace(tools_block_in(told[0]), "")


def tools_block_in(system: str) -> str:
    return system[system.index("\n\n# Tools\n") :] if "\n\n# Tools\n" in system else "\0"


def the_trained_model_is_evaluated(config: Config, lake: Lake, prompt: str) -> None:
    """The model that GRPO made, a Qwen3-VL, served and asked with the recipe's words and tools."""
    [model] = lake.read("models").filter(training_stage="grpo").to_dicts()
    told = json.loads((lake.blobs.pull(model["checkpoint"]) / "config.json").read_text())
    assert (told["model_type"], model["path"]) == ("qwen3_vl", "packed")
    asked = {"policies": ("grpo",), "max_tokens": 8, "scaling": config.evaluate.scaling}
    mine = config.model_copy(update={"evaluate": config.evaluate.model_copy(update=asked)})
    with served(mine, lake, "evaluate") as reachable:
        context = Context(lake, connect(reachable.services, {}, models=reachable.models))
        for step in EVALUATE:
            assert run(step, section_of(reachable, step.section or "evaluate"), context).failed == 0
    found = lake.read("predictions").filter(pl.col("policy") == f"trained:{model['model_id']}")
    assert found.height and all(words(json.loads(one)) == prompt for one in found["messages_json"])


@pytest.mark.usefixtures("in_process")
# One recipe in `make test`, the others in `make test-all`: each trains three models.
@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name == "geoagent" else pytest.mark.whole) for name in STEPS]
)
def test_a_recipe_keeps_its_own_form_through_all_its_steps(
    recipe: str, world: tuple[World, str], tmp_path: Path, snapshot_of: Callable[..., str]
) -> None:
    # An answer that is drawn changes with every word of a prompt; that of TOLD is the likeliest.
    likeliest = {"temperature": 0.0} if recipe == "geoagent" else {}
    given = {**SMALL, "synthesize": {**SMALL["synthesize"], **likeliest}}
    config = configuration(recipe, world[1], train=small_training(recipe), **given)
    lake = filled(Lake(tmp_path / "lake"), world[0], config, WANTED)
    snapshot_of(lake)
    names = taken_through(config, lake)
    assert names[: names.index("evaluate.answers")] == STEPS[recipe].split(), "the paper's order"
    models = lake.read("models").sort("written_at")
    learnable = recipe != "spotagent" or lake.read("regimes")["kept"].any()
    verdicts = lake.read("trajectories").select("image_id", "reasons", "answer").to_dicts()
    assert models["training_stage"].to_list() == MODELS[recipe][: None if learnable else -1], verdicts
    assert set(models["recipe"]) == {recipe}

    own, has_scenes = RECIPES[recipe], recipe == "geovista"
    trajectories, samples = lake.read("trajectories"), lake.read("samples")
    opening = words(own.prompt.opening({"type": "image"}))
    assert (trajectories.height > 0) == ("synthesize" in STEPS[recipe])
    assert all(words(json.loads(one)) == opening for one in trajectories["messages_json"])
    calls = [call for one in trajectories["calls_json"] for call in json.loads(one)]
    for tool in {call["name"] for call in calls} & {*own.prompt.tools}:
        assert any(call["well_formed"] for call in calls if call["name"] == tool), (tool, calls)
    cold_start = samples.filter(pl.col("training_stage") == "cold_start")
    assert all(words(json.loads(one)) == opening for one in cold_start["messages_json"])
    kinds = dict(lake.read("images").select("image_id", "kind").iter_rows())
    for table in (*([trajectories] if trajectories.height else []), samples, lake.read("predictions")):
        assert ("satellite" in {kinds[one] for one in table["image_id"]}) == has_scenes

    # The prompt of GRPO is that of evaluation, and of Pass@K.
    prompt = words(rollout_prompt(recipe, config.train.grpo.max_turns, config.train.prompt).opening({"type": "image"}))
    predictions = lake.read("predictions")
    phases = ("grpo",) if config.train.grpo.max_turns else ("grpo", "sft")
    asked = samples.filter(pl.col("training_stage").is_in(phases))["messages_json"]
    assert asked.len() and {words(json.loads(one)) for one in (*asked, *predictions["messages_json"])} == {prompt}
    said = predictions.select("answer", "parse_error", "end_reason").to_dicts()
    assert predictions["error_km"].is_not_null().all(), ("answers are read as the recipe reads them", said)
    assert predictions["parse_error"].is_null().all(), said

    if config.train.tiny.family == "qwen3_vl":
        the_trained_model_is_evaluated(config, lake, prompt)

    # The truth is in no prompt.
    for row in lake.read("labels").iter_rows(named=True):
        for name in (row["country"], row["city"], f"{row['lat']:.2f}", f"{row['lon']:.2f}"):
            assert name not in opening and name not in prompt


def test_the_lists_of_clues_stand_in_both_prompts() -> None:
    own = RECIPES["geoagent"]
    for prompt in (own.prompt, own.direct):
        told = words(prompt.opening({"type": "image"}))
        for clue in ("driving direction", "license plate style", "house number", "shop name and storefront"):
            assert clue in told, "figure 7"


SWARM: dict[str, Any] = {
    "agents": ["answerer-small", "answerer-large", "answerer-base", "answerer-base as europe"], "debate_rounds": 1,
    "rounds": 1, "learning": {"rounds": 3, "encoder_steps": 2, "side": 32, "width": 16, "epochs": 40},
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.usefixtures("in_process")
def test_a_swarm_learns_whom_to_elect_and_is_evaluated_beside_its_baselines(
    world: tuple[World, str], tmp_path: Path, snapshot_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"policies": [], "resamples": 100, "view_max_pixels": 100352, "max_tokens": 512, "swarm": SWARM}
    config = configuration("smilegeo", world[1], evaluate=small)
    lake = filled(Lake(tmp_path / "lake"), world[0], config)
    planted = {"country": "Zubrowka", "region": "Nebelsbad", "city": "Lutz"}
    lake.upsert("labels", [{**row, **planted} for row in _of_label(lake)], Commit("test", 3))
    snapshot_of(lake)
    asked: list[str] = []
    complete = Chat.complete

    async def recorded(self: Chat, role: str, messages: Any, **options: Any) -> Any:
        asked.extend(text for message in messages for text in texts_of(message))
        return await complete(self, role, messages, **options)

    monkeypatch.setattr(Chat, "complete", recorded)
    names = taken_through(config, lake)
    assert names[:2] == ["train.swarm_rounds", "train.election"], (
        "the paper's order: no trajectory, no agent is trained"
    )
    assert names[2:] == [step.name for step in EVALUATE]
    assert not lake.read("samples").height and lake.read("swarm_rounds").height == 2
    [model] = lake.read("models").to_dicts()
    assert (model["recipe"], model["training_stage"]) == ("smilegeo", "election")
    predictions = lake.read("predictions")
    frameworks = {f"swarm {name}" for name in ("vote", "debate", "blender", "php", "reflexion", "dylan", "fixed")}
    assert set(predictions["policy"]) == {"swarm", *frameworks, *(f"swarm agent {name}" for name in SWARM["agents"])}
    said = predictions.select("policy", "answer", "parse_error").to_dicts()
    assert predictions["error_km"].is_not_null().sum() >= 9, ("locations are geocoded", said)
    scores = lake.read("scores").filter(pl.col("policy") == "swarm")
    figures = dict(scores.select("metric", "value").iter_rows())
    assert {"acc@50km", "tokens_mean", "coverage", "consistency"} <= set(figures) and figures["coverage"] == 1.0
    # Every agent searched the web, and the truth is in no request.
    assert any("Page 1: " in text for text in asked) and any("traveler around Europe" in text for text in asked)
    cities = world[0].gazetteer
    for row in lake.read("labels").iter_rows(named=True):
        point = [row["lat"], row["lon"]]
        for name in (*planted.values(), *(f"{one:.4f}" for one in point), "error_km"):
            assert not [text for text in asked if name in text], name
        # Pages give centres of towns, which follow from no picture: one number of three decimals may agree by chance.
        town = cities.city(cities.nearest(*point)[0][0])
        pair = [f"{one:.3f}" for one in point]
        told = [text for text in asked if all(one in text for one in pair)]
        assert not told or pair == [f"{town.lat:.3f}", f"{town.lon:.3f}"], pair


def _of_label(lake: Lake) -> list[dict[str, Any]]:
    return lake.read("labels").select("image_id", "sha256", "lat", "lon", "split").to_dicts()


def test_the_gold_answer_earns_the_maximum_through_the_trainers_call(world: tuple[World, str]) -> None:
    place = world[0].place(0)
    city, record = place.city, world[0].first_image(0)
    address = Address(city.country, city.admin1, city.name)
    truth = Truth(city.lat, city.lon, address)
    row = {"lat": truth.lat, "lon": truth.lon, "country": city.country, "region": city.admin1, "city": city.name}
    assert record.image_id

    def earned(recipe: str, text: str) -> float | None:
        config = configuration(recipe, world[1])
        scorer = recipe_scorer(recipe, config.train.grpo.reward, connect(config.services, {}, models=config.models))
        [found] = scorer([(Episode(Completion([], []), True, text), row)])
        return found.reward

    for recipe in ("spotagent", "thinking-with-map"):
        assert earned(recipe, RECIPES[recipe].gold(truth, 5)) == 1.0
    state = RECIPES["geovista"].gold(Truth(0, 0, replace(address, city="Elsewhere")), 5)
    country = RECIPES["geovista"].gold(Truth(0, 0, replace(address, region="Elsewhere", city="Nowhere")), 5)
    assert [earned("geovista", one) for one in (RECIPES["geovista"].gold(truth, 5), state, country)] == [4, 2, 1]
    full = RECIPES["geoagent"].reasoned_gold
    assert full is not None and earned("geoagent", full(truth, 5)) == pytest.approx(3.0, abs=0.01)
    assert earned("geoagent", RECIPES["geoagent"].gold(truth, 5)) == pytest.approx(2.5, abs=0.01), "no reasoning"


@pytest.mark.usefixtures("in_process")
def test_the_calls_of_a_reward_are_counted_and_a_budget_ends_training_with_a_checkpoint(
    world: tuple[World, str], tmp_path: Path, snapshot_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"embedder": (0, 0), "consistency": (1000, 0)}
    roles = {name: {"price": {"prompt": one[0], "completion": one[1]}} for name, one in prices.items()}
    training = small_training("geoagent")
    training |= {"phases": ["grpo"], "grpo": {**training["grpo"], "max_steps": 50}}
    config = configuration("geoagent", world[1], train=training, models={"roles": roles, "budget_usd": 1.0}, **SMALL)
    lake = filled(Lake(tmp_path / "lake"), world[0], config)
    snapshot_of(lake)
    numbers = itertools.count()

    class Reasoning(EmbeddedRollouts):
        """The policy's rollouts, but for what they say: a tiny model names no place that a reward could ask about."""

        def draw(self, prompts: Any, rows: Any) -> list[list[Episode]]:
            def said(one: Episode) -> Episode:
                truth = Truth(49.0, 0.5, Address("France", "Normandy", f"Ville {next(numbers)}"))
                return replace(one, answer=RECIPES["geoagent"].reasoned_gold(truth, 5))  # type: ignore[misc]

            return [[said(one) for one in group] for group in super().draw(prompts, rows)]

    monkeypatch.setattr("tasks.train.training.EmbeddedRollouts", Reasoning)
    assert services_of(config, ["train"]) == {"answer_geocoder", "chat"}
    assert {role for _, role in roles_of(config, ["train"])} == {"embedder", "consistency"}
    ready: list[str] = []
    context = Context(
        lake, connect(config.services, {}, models=config.models), ready=lambda: ready.append("services are started")
    )
    run(TRAIN[0], config.train, context)
    assert ready == []
    with pytest.raises(GeofixError) as ended:
        run(TRAIN[3], config.train, context)
    assert ready, "the reward's services are started before the first step"
    told = str(ended.value)
    found = re.search(
        r"^train.grpo stopped: the money budget is used up: .*; the checkpoint of step (\d+) is kept$", told
    )
    assert found, told
    [kept] = (tmp_path / "lake" / "models").glob(".*/checkpoint-*")
    assert kept.name == f"checkpoint-{found[1]}"
    calls = lake.read("calls")
    assert set(calls["stage"]) == {"train.grpo"} and set(calls["role"]) == {"embedder", "consistency"}
    assert 0 < calls["cost_usd"].sum() <= 1.0


@pytest.mark.whole
@pytest.mark.usefixtures("in_process")
def test_notes_of_the_review_site_become_a_chain_of_thought(
    world: tuple[World, str], tmp_path: Path, snapshot_of: Callable[..., str]
) -> None:
    config = configuration("geoagent", world[1], synthesize={"also": [], "require": [], "notes": "review"})
    lake = filled(Lake(tmp_path / "lake"), world[0], config)
    snapshot_of(lake)
    note = {"image_id": "i0", "snapshot_id": "s", "sha256": "a" * 64, "licence": "CC BY 4.0"}
    for day, (author, text) in enumerate(
        {"Ada": "Old.", "Bob": "The plates are from Wyoming, so it is Lander."}.items()
    ):
        row = {**note, "note_id": author, "author": author, "notes": text}
        row |= {"noted_at": datetime(2026, 3, 1 + day, tzinfo=UTC)}
        lake.upsert("notes", [row], Commit("notes", day))
    [(stage, [step])] = segments(config, ["synthesize"])
    context = Context(lake, connect(config.services, {}, models=config.models))
    assert run(step, section_of(config, stage), context).failed == 0
    [made] = lake.read("trajectories").to_dicts()
    assert (made["image_id"], made["writer"], made["note_id"]) == ("i0", "notes", "Bob"), "the newest of the picture"
    chain = json.loads(json.loads(made["messages_json"])[-1]["content"])
    assert list(chain) == ["ChainOfThought", "FinalAnswer"] and "Wyoming" in json.dumps(chain)
    assert run(step, section_of(config, stage), context).nothing_to_do
