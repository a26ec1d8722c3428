"""What a recipe is, and the recipes by name.

A recipe answers six questions, each in one place: how it opens a conversation (`prompt`), how its answer is read
(`judge`), what it earns (`reward`), of which pictures and how trajectories are made (`notes`, `writer`,
`label_answer`), in which order its phases run (`train.phases` of its `settings.yaml`), and how it is evaluated
(`EVALUATION` of its folder, `evaluation.py`).
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.recipes import PACKAGES, recipe_folders
from schemas.settings.reward import RewardSettings
from schemas.settings.synthesize import Rule, SynthesizeSettings
from tasks.agent.attempt import Sampling
from tasks.agent.environment import Ask
from tasks.agent.picture import Picture
from tasks.agent.prompt import DIRECT, Prompt
from tasks.geo.distance import distance_km
from tasks.reward.answer import ParsedAnswer, parse_answer
from tasks.reward.outcome import Excluded, Scored, Truth
from tasks.reward.services import RewardDeps
from tasks.services.chat import Chat

# The parser's reasons where there is no answer at all, rather than one that cannot be used.
_NOTHING_SAID = ("empty", "no_answer")


@dataclass(frozen=True)
class Judged:
    """What rejection sampling finds in an answer: every reason against it, in a fixed order, and the point it names."""

    reasons: tuple[str, ...] = ()
    answer: str | None = None
    lat: float | None = None
    lon: float | None = None
    error_km: float | None = None


Judge = Callable[[str, Truth, float], Judged]  # the final message, the truth, and how near an answer has to be in km


@dataclass(frozen=True)
class WriterContext:
    """What a recipe's own way to write replies is given. The truth is not part of it."""

    chat: Chat
    prompt: Prompt
    picture: Picture
    settings: SynthesizeSettings
    sampling: Sampling
    notes: str | None = None  # a person's, where the recipe reads them


@dataclass(frozen=True)
class Writer:
    """The way a paper writes trajectories; every reply is made for the environment of one attempt."""

    open: Callable[[WriterContext], tuple[str, Ask]]  # the name that is stored, and who replies
    roles: Callable[[SynthesizeSettings], tuple[str, ...]]  # the models it asks


def _asks_none(settings: RewardSettings) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class RecipeReward:
    """What an answer earns, and the services that are asked for it."""

    score: Callable[[str | None, Truth, RewardDeps], Scored | Excluded]
    asks: Callable[[RewardSettings], tuple[str, ...]] = _asks_none


@dataclass(frozen=True)
class Recipe:
    """One published way to locate a picture."""

    name: str
    version: int  # raised with every change of its words
    prompt: Prompt
    judge: Judge
    kept_when: str  # in one line, for reports: which trajectories are kept
    # What they are held to beyond the paper, unless `synthesize.require` says otherwise: no false thing is learned
    rules: tuple[Rule, ...] = ("visible_signs", "true_statements", "unnamed_answer")
    writer: Writer | None = None  # None: a single agent writes, as it is also where the settings say so
    reward: RecipeReward | None = None
    # A text made of the truth, with n decimals, in place of a model's: samples that are labels
    label_answer: Callable[[Truth, int], str] | None = None
    # A table of image_id and notes that trajectories are made of; None: of every labelled picture
    notes: Callable[[SynthesizeSettings], pl.DataFrame | None] = lambda settings: None


def point_judge(form_error: Callable[[str], str | None], by_distance: bool = True) -> Judge:
    """The judge of recipes that answer with a point: form, fields and, if `by_distance`, nearness to the truth."""

    def judge(text: str, truth: Truth, max_error_km: float) -> Judged:
        reasons = []
        answer = parse_answer(text)
        if not isinstance(answer, ParsedAnswer):
            reason = "no_answer" if answer.reason in _NOTHING_SAID else "unparsable_answer"
            return Judged((reason,), answer.text.strip() or None)
        if form_error(text) is not None:
            reasons.append("wrong_form")
        if answer.lat is None or answer.lon is None:
            return Judged((*reasons, "missing_field"), answer.text.strip())
        if not answer.address.country or not answer.address.city:
            reasons.append("missing_field")
        error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
        # Strictly nearer, SpotAgent eq. 7; written so that an error that is not a number is not kept.
        if by_distance and not error_km < max_error_km:
            reasons.append("too_far")
        return Judged(tuple(reasons), answer.text.strip(), answer.lat, answer.lon, error_km)

    return judge


class _Recipes(Mapping[str, Recipe]):
    """The recipes by name; a folder is imported when its recipe is first asked for."""

    def __getitem__(self, name: str) -> Recipe:
        found = getattr(recipe_module(name), "RECIPE", None)
        if not isinstance(found, Recipe):
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(recipe_folders())

    def __len__(self) -> int:
        return len(recipe_folders())


RECIPES: Mapping[str, Recipe] = _Recipes()


def recipe_module(name: str) -> Any:
    """The package of a recipe's folder, whether or not it has settings of its own; None if there is none."""
    folder = name.replace("-", "_")
    for package in PACKAGES if folder.isidentifier() else ():
        module = f"{package}.{folder}"
        # The parent first: `find_spec` of a submodule raises where its package is missing.
        if importlib.util.find_spec(package) is not None and importlib.util.find_spec(module) is not None:
            return importlib.import_module(module)
    return None


def prompt_with(recipe: str, tools: tuple[str, ...]) -> Prompt:
    """The recipe's prompt with these of its tools; without any the one that asks for an answer at once."""
    if not tools:
        return DIRECT
    if recipe not in RECIPES:
        raise ValueError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    prompt = RECIPES[recipe].prompt
    strangers = [name for name in tools if name not in prompt.tools and name != "all"]
    if strangers:
        raise ValueError(f"recipe {recipe} has no tool {strangers[0]!r}; it has {', '.join(prompt.tools)}")
    return prompt if "all" in tools else prompt.with_tools(*tools)
