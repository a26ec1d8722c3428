"""SpotAgent's words with two of its tools, for a model of ten million parameters: zoom, read, geocode, answer.

The packaged agent (`tasks/train/packaged.py`) was taught with exactly these words, view sizes and one result a call.
Half of a small model's prompt is descriptions of tools, so it is offered the two it was taught.
"""

from dataclasses import replace

from tasks.agent.recipe import Recipe
from tasks.agent.recipes.spotagent import RECIPE as SPOTAGENT

MAX_PIXELS, MIN_PIXELS = 100_352, 40_000  # a view of 448 x 224 pixels, and the zoom its base was taught to read
RESULTS = 1  # of a call: it is shown the best match alone
REPLY_TOKENS = 128  # a right one has at most 70 or so

RECIPE: Recipe = replace(SPOTAGENT, budgets=replace(SPOTAGENT.budgets, calls=3, turns=4)).with_tools(
    "image_zoom_in_tool", "maps_geocode"
)
