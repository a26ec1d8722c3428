"""Every hyper-parameter of the papers' training table, read back from the recipe files (spec, section 7)."""

from typing import Any

import pytest

from schemas.load import load_config
from tasks.recipes.recipe import RECIPES

TABLE: dict[str, dict[str, Any]] = {
    "spotagent": {
        "phases": ("sft", "cold_start", "grpo"), "precision": "bf16", "validation_steps": 10, "save_steps": 100,
        "lora": None, "grpo.group_size": 8, "grpo.prompts_per_generation": 256, "grpo.prompts_per_step": 128,
        "grpo.learning_rate": 1e-6, "grpo.kl": 0.001, "grpo.max_completion_tokens": 4096, "grpo.epochs": 1,
        "grpo.max_turns": 0, "grpo.pictures": "learnable", "verl.tensor_parallel": 2, "verl.memory_share": 0.8,
    },
    "geovista": {
        "phases": ("cold_start", "grpo"), "cold_start.epochs": 1, "cold_start.learning_rate": 1e-5,
        "cold_start.batch_size": 32, "cold_start.max_tokens": 32768, "grpo.prompts_per_generation": 64,
        "grpo.prompts_per_step": 32, "grpo.learning_rate": 1e-6, "grpo.kl": 0.0, "grpo.max_turns": 6,
        "grpo.max_completion_tokens": 32768, "grpo.pictures": "all",
    },
    "geoagent": {
        "phases": ("cold_start", "grpo"), "lora.rank": 64, "lora.alpha": 128, "cold_start.epochs": 2,
        "cold_start.learning_rate": 1e-5, "grpo.group_size": 8, "grpo.temperature": 0.7, "grpo.kl": 0.001,
        "grpo.epochs": 1, "grpo.max_turns": 0, "grpo.learning_rate": 1e-5, "grpo.pictures": "all",
    },
    "thinking-with-map": {
        "phases": ("grpo",), "grpo.group_size": 16, "grpo.prompts_per_generation": 64, "grpo.prompts_per_step": 16,
        "grpo.learning_rate": 1e-6, "grpo.kl": 0.001, "grpo.epochs": 2, "grpo.max_turns": 8,
        "grpo.pictures": "all",
    },
}  # fmt: skip


@pytest.mark.parametrize("recipe", TABLE)
def test_the_papers_values_are_configured(recipe: str) -> None:
    train = load_config(recipe=recipe, profile="production").train
    assert train.recipe == recipe
    found = {}
    for name in TABLE[recipe]:
        value: Any = train
        for step in name.split("."):
            value = getattr(value, step)
        found[name] = value
    assert found == TABLE[recipe]


def test_the_limits_of_tools_and_pictures_are_the_papers() -> None:
    """GeoVista: up to 10 results, a context of 32 K, 1 M pixels; Thinking with Map: 1,024 tokens of a tool's text."""
    geovista, maps = RECIPES["geovista"], RECIPES["thinking-with-map"]
    assert (geovista.prompt.search_results, geovista.prompt.budgets.context) == (10, 32_768)
    assert geovista.pictures.min_pixels == 1_000_000 and "satellite" in geovista.pictures.kinds
    assert maps.prompt.result_chars == 4 * 1024


@pytest.mark.parametrize("recipe", TABLE)
def test_every_section_follows_the_recipe(recipe: str) -> None:
    config = load_config(recipe=recipe)
    named = (config.synthesize.recipe, config.difficulty.recipe, config.difficulty.agent_recipe, config.train.recipe)
    assert {*named, config.evaluate.agent_recipe} == {recipe}
