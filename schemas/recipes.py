"""The recipes by name, found by their folders: `settings.yaml` in a folder of one of two packages."""

import importlib.util
from functools import cache
from pathlib import Path

import yaml

PACKAGES = ("tasks.recipes", "geofix_recipes")  # ours, and a user's own anywhere on the Python path
SETTINGS = "settings.yaml"
OURS = "ours.yaml"  # what `quality: ours` changes in it
ALL = "all"  # in a list of recipes: every recipe that trains


def package_places() -> list[Path]:
    """The folders in which folders of recipes lie."""
    specs = (importlib.util.find_spec(package) for package in PACKAGES)
    return [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]


def recipe_folders() -> dict[str, Path]:
    """The folder of every recipe with settings of its own, by name. A folder `my_system` is the recipe `my-system`."""
    folders: dict[str, Path] = {}
    for settings in (file for place in package_places() for file in place.glob(f"*/{SETTINGS}")):
        folders.setdefault(settings.parent.name.replace("_", "-"), settings.parent)
    return dict(sorted(folders.items()))


def training_recipes() -> list[str]:
    """The recipes that train a model, and so want trajectories; another one says `train: {phases: []}`."""
    settings = {
        name: yaml.safe_load((folder / SETTINGS).read_text()) or {} for name, folder in recipe_folders().items()
    }
    return [name for name, own in settings.items() if own.get("train", {}).get("phases") != []]


@cache
def default_recipe() -> str:
    """The recipe of a run that names none."""
    return str(yaml.safe_load((package_places()[0] / "default.yaml").read_text())["recipe"])


def known_recipe(name: str) -> str:
    """The name, if a recipe has it; ValueError with those that there are."""
    known = recipe_folders()
    if name not in known:
        raise ValueError(f"must be {' or '.join(known)}")
    return name
