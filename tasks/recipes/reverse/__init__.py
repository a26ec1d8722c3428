"""REVERSE: where to look, what to ask and which evidence to trust, rewarded on the way (arXiv:2605.26861).

One strong model writes trajectories: it zooms, searches the web by a crop of the picture and by words, and says after
every search which results speak of this very place.
"""

from tasks.agent.prompt import QUESTION, Budgets, Prompt
from tasks.recipes.recipe import Recipe
from tasks.recipes.reverse.form import DIRECT, SYSTEM, gold, judge, process_error, reasoned_gold
from tasks.recipes.reverse.labels import with_labels
from tasks.recipes.reverse.reward import REWARD

TOOLS = ("image_search", "image_zoom", "text_search")

RECIPE = Recipe(
    name="reverse",
    prompt=Prompt(SYSTEM, QUESTION, TOOLS, Budgets(calls=9, turns=10), search_results=10),
    direct=Prompt(DIRECT, QUESTION, budgets=Budgets(calls=0, turns=1)),
    judge=judge,
    process_error=process_error,
    labelled=with_labels,
    gold=gold,
    reasoned_gold=reasoned_gold,
    kept_when="one call a reply, one at least, five refused ones at most, the answer in its form and under 200 km off",
    reward=REWARD,
)
