"""smileGeo: a swarm of agents that elects, reviews and discusses. Whom to elect is learned; no agent is trained."""

from tasks.recipes.recipe import Recipe
from tasks.recipes.smilegeo.evaluation import EVALUATION
from tasks.recipes.smilegeo.form import DIRECT, PROMPT, addresses_of, gold, judge

__all__ = ["EVALUATION", "RECIPE"]

RECIPE = Recipe(
    name="smilegeo",
    prompt=PROMPT,
    direct=DIRECT,
    judge=judge,
    gold=gold,
    kept_when="the form: the paper makes no trajectories",
    addresses_of=addresses_of,
)
