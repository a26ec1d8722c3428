"""SpotSFT (SpotAgent 3.2.2): a picture and its coordinates as a visual question with one answer, without tools."""

from tasks.agent.prompt import DIRECT, answer_lines, lines_error
from tasks.recipes.recipe import Recipe, point_judge
from tasks.reward.outcome import Truth


def _label(truth: Truth, decimals: int) -> str:
    address = truth.address
    return answer_lines(address.country or "", address.city or "", truth.lat, truth.lon, decimals)


RECIPE = Recipe(
    name="spotsft",
    version=2,
    prompt=DIRECT,
    judge=point_judge(lines_error),
    kept_when="the label itself is the answer: the paper rejects none, only a label without country or city is",
    rules=(),
    label_answer=_label,
)
