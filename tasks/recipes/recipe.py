"""What a recipe is, and the recipes by name.

A recipe answers six questions, each in one place: how it opens a conversation (`prompt`, `direct`), how its answer is
read (`judge`, `gold`, `addresses_of`), what it earns (`reward`), which pictures it uses and how trajectories are made
of them (`pictures`, `notes`, `writer`), in which order its phases and Pass@K run (`train.phases`, `train.grpo.pictures`
and `difficulty.policy` of its `settings.yaml`), and how it is evaluated (`evaluate` there, and `EVALUATION` of its
folder, `evaluation.py`).
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from schemas.errors import InputError
from schemas.messages import Message
from schemas.recipes import PACKAGES, recipe_folders
from schemas.settings.reward import RewardSettings
from schemas.settings.synthesize import DirectPrompt, Rule, SynthesizeSettings
from tasks.agent.attempt import Sampling
from tasks.agent.environment import Ask, Trajectory
from tasks.agent.picture import Picture
from tasks.agent.prompt import DIRECT, Prompt, answer_lines
from tasks.geo.distance import distance_km
from tasks.reward.answer import ParsedAnswer, parse_answer
from tasks.reward.outcome import Excluded, Scored, Truth
from tasks.reward.services import RewardDeps
from tasks.runtime.labelled import ON_THE_GROUND, PictureFilter
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
    forms: Any = None  # in which they are to answer, beyond the words of the prompt


def _asks_none(settings: RewardSettings) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class RecipeReward:
    """What an answer earns, and the services and model roles that it needs."""

    score: Callable[[str | None, Truth, RewardDeps], Scored | Excluded]
    asks: Callable[[RewardSettings], tuple[str, ...]] = _asks_none
    roles: Callable[[RewardSettings], tuple[str, ...]] = _asks_none
    words: Callable[[RewardSettings], tuple[str, ...]] = _asks_none  # what those models are told
    # In place of `score` where there is a conversation with tools: its calls and what they gave count too
    of_trajectory: Callable[[Trajectory, Truth, RewardDeps], Scored | Excluded] | None = None


def gold_lines(truth: Truth, decimals: int) -> str:
    """The truth in the four lines of SpotSFT."""
    address = truth.address
    return answer_lines(address.country or "", address.city or "", truth.lat, truth.lon, decimals)


@dataclass(frozen=True)
class Recipe:
    """One published way to locate a picture."""

    name: str
    # With its tools: synthesis and cold start; GRPO, validation, Pass@K and evaluation where they offer tools
    prompt: Prompt
    judge: Judge
    kept_when: str  # in one line, for reports: which trajectories are kept
    # What they are held to beyond the paper, unless `synthesize.require` says otherwise: no false thing is learned
    rules: tuple[Rule, ...] = ("visible_signs", "true_statements", "unnamed_answer")
    further_tools: tuple[str, ...] = ()  # offered only where `evaluate.tools` or `difficulty.tools` name them
    # Without tools, in one turn: SFT; GRPO, validation, Pass@K and evaluation where they offer none
    direct: Prompt = DIRECT
    short: Prompt | None = None  # shorter words of ours for the same, where the settings ask for them; None: `direct`
    gold: Callable[[Truth, int], str] = gold_lines  # the true answer in the form of `direct`, with n decimals
    reasoned_gold: Callable[[Truth, int], str] | None = None  # with all that the reward reads; None: `gold`
    # What is wrong with how a trajectory went; None: every call has to be well formed and answered
    process_error: Callable[[Trajectory], tuple[str, ...]] | None = None
    # A kept trajectory's messages with labels of its tools' results in its replies, which follow from the truth
    labelled: Callable[[Trajectory, Truth], list[Message]] | None = None
    # What of a reply is geocoded to a point, the first that is found; None: the point that it names
    addresses_of: Callable[[str], tuple[str, ...]] | None = None
    reward: RecipeReward | None = None
    pictures: PictureFilter = ON_THE_GROUND
    writer: Writer | None = None  # None: a single agent writes, as it is also where the settings say so
    writes_gold: bool = False  # in place of a model's reply: trajectories that are labels
    # Of the settings and the lake's table `notes`, the image_id, notes and note_id that trajectories are made of; None:
    # of every labelled picture
    notes: Callable[[SynthesizeSettings, pl.DataFrame], pl.DataFrame | None] = lambda settings, written: None

    def at_once(self, words: DirectPrompt) -> Prompt:
        """The prompt that asks for an answer without tools."""
        return self.short if words == "short" and self.short is not None else self.direct


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
    """The recipes by name; a folder is imported when its recipe is first used."""

    def __getitem__(self, name: str) -> Recipe:
        recipe = getattr(recipe_module(name), "RECIPE", None)
        if not isinstance(recipe, Recipe):
            raise KeyError(name)
        return recipe

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


def prompt_with(recipe: str, tools: tuple[str, ...], words: DirectPrompt = "paper") -> Prompt:
    """The recipe's prompt with these of its tools; without any the one that asks for an answer at once."""
    if recipe not in RECIPES:
        raise InputError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    if not tools:
        return RECIPES[recipe].at_once(words)
    prompt = RECIPES[recipe].prompt
    offered = tuple(dict.fromkeys((*prompt.tools, *RECIPES[recipe].further_tools)))
    strangers = [name for name in tools if name not in offered and name != "all"]
    if strangers:
        raise InputError(f"recipe {recipe} has no tool {strangers[0]!r}; it has {', '.join(offered)}")
    return replace(prompt, tools=offered).with_tools(*tools, *(prompt.tools if "all" in tools else ()))


def rollout_prompt(recipe: str, max_turns: int, words: DirectPrompt = "paper") -> Prompt:
    """What GRPO and validation ask: with the recipe's tools where rollouts have turns for them, else at once."""
    if not max_turns:
        return RECIPES[recipe].at_once(words)
    prompt = RECIPES[recipe].prompt
    return replace(prompt, budgets=replace(prompt.budgets, turns=max_turns))
