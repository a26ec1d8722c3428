"""SpotAgent's words with two of its tools, for a model of ten million parameters: zoom, read, geocode, answer.

The packaged agent (`tasks/train/packaged.py`) was taught with exactly these words, view sizes and one result a call.
Half of a small model's prompt is descriptions of tools, so it is offered the two it was taught. Its trajectories are
written by SpotAgent's pair of models, which is asked to think in one short sentence and to go by a street's name alone.
"""

from dataclasses import replace

from schemas.settings.synthesize import Rule, SynthesizeSettings
from tasks.agent.attempt import PACKAGED_PIXELS, PACKAGED_RECIPE
from tasks.agent.environment import Ask
from tasks.agent.prompt import DIRECT
from tasks.recipes.recipe import Writer, WriterContext
from tasks.recipes.spotagent import RECIPE as SPOTAGENT
from tasks.recipes.spotagent.observer_pair import ObserverPair

MAX_PIXELS, MIN_PIXELS = PACKAGED_PIXELS  # a view of 448 x 224 pixels, and the zoom its base was taught to read
RESULTS = 1  # of a call: it is shown the best match alone

BRIEFLY = """

# How to Work
Go by the name of a street and its region: zoom to the board that bears them, ask the geocoder for both exactly as the \
board reads, with a comma between, for the street alone if it knows none there, and answer with the first result's \
country, city and coordinates, these cut after two decimals. Think in one short sentence each time."""

BUDGETS = replace(SPOTAGENT.prompt.budgets, calls=3, turns=4, results=RESULTS)
PROMPT = replace(
    SPOTAGENT.prompt,
    budgets=BUDGETS,
    helpers={**SPOTAGENT.prompt.helpers, "planner": SPOTAGENT.prompt.helpers["planner"] + BRIEFLY},
).with_tools("image_zoom_in_tool", "maps_geocode")


def _pair(context: WriterContext) -> tuple[str, Ask]:
    settings = context.settings
    words = context.prompt.helpers
    # The pair sees the picture in full; the model that learns from it could not follow what it says of small things.
    return "pair", ObserverPair(
        context.chat, words, settings.observer, settings.planner, context.sampling, tells_all=False
    )


def _roles(settings: SynthesizeSettings) -> tuple[str, ...]:
    return settings.observer, settings.planner


# Its coordinates are cut, not rounded, so none of them is the tool's own number.
RULES: tuple[Rule, ...] = ("true_statements", "placed_answer", "unnamed_answer")
RECIPE = replace(
    SPOTAGENT, name=PACKAGED_RECIPE, prompt=PROMPT, direct=DIRECT, short=None, writer=Writer(_pair, _roles), rules=RULES
)
