"""The rows that benchmarks recheck are made by the stage's own work."""

import asyncio

from bench.agent_pictures import item_of, places, services
from infra.offline.render import render_jpeg
from infra.offline.world import World
from schemas.settings.synthesize import SynthesizeSettings
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.runtime.stage import WorkerSetup
from tasks.services import connect
from tasks.synthesize.trajectories import open_context, work


def test_a_picture_of_a_benchmark_is_an_item_of_the_stage(tmp_path):
    world, [place] = World(size=50, pano_width=512), places(1, World(size=50))
    recipe = next(name for name, recipe in RECIPES.items() if recipe.writes_gold)  # it asks no model
    lake = Lake(tmp_path)
    sha256 = lake.images.put(render_jpeg(world, world.first_image(0)), "jpg")
    context = open_context(
        SynthesizeSettings(recipe=recipe), WorkerSetup(lake, connect(services("http://127.0.0.1:9"), {}))
    )
    [row] = asyncio.run(work(item_of(place, sha256, recipe), context)).rows["trajectories"]
    assert row["verdict"] == "kept" and row["image_id"] == "picture-0"
