"""SpotSFT (3.2.2): a picture and its coordinates as a visual question with one answer, in one turn, without tools.

The same words ask every policy that answers at once: Pass@K, GRPO without tools, evaluation.
"""

from typing import Any

from schemas.messages import Message
from tasks.agent.recipe import Budgets, Recipe
from tasks.agent.recipes.spotagent import ANSWER, QUESTION

SYSTEM = f"""\
You are a helpful assistant. Your task is to determine the geographic location of an image through systematic visual \
analysis.

# Reasoning Requirement
Reason step by step about the visual evidence inside <think> ... </think> tags.

# Final Answer Format
{ANSWER}"""

RECIPE = Recipe(
    name="spotsft",
    version=2,
    system=SYSTEM,
    question=QUESTION,
    answer_form="lines",
    budgets=Budgets(calls=0, turns=1),
    writers=("truth", "agent"),
)


def direct_messages(picture: dict[str, Any]) -> list[Message]:
    """The conversation that asks a policy to answer in one turn, without tools."""
    return RECIPE.opening(picture)


def answer_lines(country: str, city: str, lat: float, lon: float, decimals: int) -> str:
    """An answer in the form the prompt asks for."""
    lines = (f"Country: {country}", f"City: {city}", f"Latitude: {lat:.{decimals}f}", f"Longitude: {lon:.{decimals}f}")
    return "<answer>\n" + "\n".join(lines) + "\n</answer>"
