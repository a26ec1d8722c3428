"""Trajectories: agents try to locate pictures, and rejection sampling keeps what is worth learning from."""

from schemas.settings.synthesize import SynthesizeSettings
from tasks.recipes.recipe import RECIPES
from tasks.runtime.labelled import empty_rows
from tasks.synthesize.report import report
from tasks.synthesize.trajectories import STAGE, chosen_recipes

__all__ = ["STAGE", "STAGES", "check", "report"]

STAGES = [STAGE]


def check(settings: SynthesizeSettings) -> None:
    """Refuse a file of notes that cannot be read before anything is queried."""
    for recipe in chosen_recipes(settings):
        RECIPES[recipe].notes(settings, empty_rows("notes"))
