"""The five recipes by name. A new one is a file with a `RECIPE`, named here."""

from tasks.agent.recipe import Recipe
from tasks.agent.recipes import geoagent, geovista, spotagent, spotsft, thinking_with_map

RECIPES: dict[str, Recipe] = {
    module.RECIPE.name: module.RECIPE for module in (spotagent, geovista, geoagent, thinking_with_map, spotsft)
}
