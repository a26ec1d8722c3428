"""SpotSFT (SpotAgent 3.2.2): a picture and its coordinates as a visual question with one answer, without tools."""

from tasks.agent.prompt import DIRECT, lines_error
from tasks.recipes.recipe import Recipe, point_judge

RECIPE = Recipe(
    name="spotsft",
    prompt=DIRECT,
    judge=point_judge(lines_error),
    kept_when="the label itself is the answer: the paper rejects none, only a label without country or city is",
    rules=(),
    writes_gold=True,
)
