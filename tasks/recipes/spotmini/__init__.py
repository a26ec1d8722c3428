"""SpotAgent's words with two of its tools, for a model of ten million parameters: zoom, read, geocode, answer.

The packaged agent (`tasks/train/packaged.py`) was taught with exactly these words, view sizes and one result a call.
Half of a small model's prompt is descriptions of tools, so it is offered the two it was taught.
"""

from dataclasses import replace

from tasks.recipes.spotagent import RECIPE as SPOTAGENT

MAX_PIXELS, MIN_PIXELS = 100_352, 40_000  # a view of 448 x 224 pixels, and the zoom its base was taught to read
RESULTS = 1  # of a call: it is shown the best match alone
REPLY_TOKENS = 128  # a right one has at most 70 or so

BUDGETS = replace(SPOTAGENT.prompt.budgets, calls=3, turns=4)
PROMPT = replace(SPOTAGENT.prompt, budgets=BUDGETS).with_tools("image_zoom_in_tool", "maps_geocode")
RECIPE = replace(SPOTAGENT, prompt=PROMPT)
