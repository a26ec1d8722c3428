"""One folder a published system: its settings, prompts, form of the answer, reward and evaluation.

`recipe.py` says what a recipe is and finds the folders. A folder `my_system` with an `__init__.py` that holds a
`RECIPE` and with a `settings.yaml` is the recipe `my-system`; nothing else names it. Folders of your own may also lie
in a package `geofix_recipes` anywhere on the Python path (docs/recipes.md).
"""
