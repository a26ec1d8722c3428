"""The step that tries a policy K times at each training picture: one item is one attempt.

More trials only add attempts, a killed run goes on where it stopped, and another policy has attempts of its own.
"""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import StageRefused
from schemas.settings.difficulty import DifficultySettings
from tasks.agent.attempt import (
    PHASES,
    TRAINED,
    policy_role,
    run_attempt,
    shown_pixels,
    stable_seed,
    trained_pixels,
)
from tasks.agent.picture import StoredPictures
from tasks.agent.service_tools import open_toolbox, tool_services
from tasks.agent.toolbox import Toolbox
from tasks.recipes.reading import AddressSearch, located, reads_addresses
from tasks.recipes.recipe import RECIPES, prompt_with
from tasks.recipes.rewards import Reward, reward_for, reward_roles, reward_services, reward_words
from tasks.reward.outcome import TRUTH_COLUMNS, Excluded
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat, ServiceError
from tasks.services.geocoder import open_recalling

OPENED = 4  # pictures: the trials of one are made side by side


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: DifficultySettings
    pictures: Callable[[str], StoredPictures]  # in the size that a policy is shown
    chat: Chat
    tools: Toolbox
    reward: Reward
    geocoder: AddressSearch


def attempt_identity(settings: DifficultySettings) -> dict[str, Any]:
    """The settings an attempt depends on: K and the thresholds leave the attempts at hand as they are."""
    wanted = ("tools", "agent_recipe", "temperature", "max_tokens", "view_max_pixels", "view_min_pixels", "recipe")
    return {name: value for name, value in settings.identity().items() if name in (*wanted, "reward")}


def items(inputs: Inputs, settings: DifficultySettings) -> pl.DataFrame:
    """One row for each picture meant for training and each trial, with the truth it is measured by."""
    wanted = RECIPES[settings.agent_recipe].pictures
    chosen = labelled_pictures(inputs, "train", settings.max_images, wanted)
    names = inputs.frame("labels").select("image_id", "country", "region", "city")
    policy = policy_of(inputs, settings)
    trials = pl.DataFrame({"trial": list(range(settings.k))}, schema={"trial": pl.Int64})
    return (
        chosen.join(names, on="image_id", how="left")
        .join(trials, how="cross")
        .with_columns(pl.lit(policy).alias("policy"), pl.lit(inputs.snapshot_id).alias("snapshot_id"))
        .select(pl.format("{}|{}|{}", "image_id", "policy", "trial").alias("id"), pl.all())
    )


def policy_of(inputs: Inputs, settings: DifficultySettings) -> str:
    """The role of the policy that is tried."""
    name = TRAINED + settings.policy.removeprefix(TRAINED) if settings.endpoint == "trained" else settings.policy
    return policy_role(name, inputs.frame("models"), settings.recipe)


def is_trained(settings: DifficultySettings) -> bool:
    """Whether the policy is a model that this lake holds."""
    return settings.endpoint == "trained" or settings.policy in PHASES or settings.policy.startswith(TRAINED)


def roles(settings: DifficultySettings) -> tuple[str, ...]:
    """The models that are queried, the reward's included; a trained one is served by the run itself."""
    own = "trained" if is_trained(settings) else settings.policy
    return (own, *reward_roles(settings.recipe, settings.reward))


def words(settings: DifficultySettings) -> list[Any]:
    """What policy and reward models are told."""
    prompt = prompt_with(settings.agent_recipe, settings.tools, settings.prompt)
    return [prompt.opening_words, reward_words(settings.recipe, settings.reward)]


def services(settings: DifficultySettings) -> tuple[str, ...]:
    """The services that attempts and their rewards ask."""
    prompt = prompt_with(settings.agent_recipe, settings.tools, settings.prompt)
    geocodes = ("answer_geocoder",) if reads_addresses(settings.agent_recipe) else ()
    names = ("chat", *geocodes, *reward_services(settings.recipe, settings.reward), *tool_services(prompt.tools))
    return tuple(dict.fromkeys(names))


def open_context(settings: DifficultySettings, setup: WorkerSetup) -> WorkerContext:
    connections = setup.connections
    if is_trained(settings) and connections.trained is None:
        raise StageRefused("difficulty.policy is a trained model, but services.trained names no server")
    reward = reward_for(settings.recipe, settings.reward, connections)
    tools = open_toolbox(connections, setup.lake.state)
    geocoder = open_recalling(connections.answer_geocoder, setup.responses())
    trained = trained_pixels(setup.lake.read("models", columns=["model_id", "config_json"]))

    @functools.cache
    def pictures(policy: str) -> StoredPictures:
        most, least = shown_pixels(policy, trained, settings.view_max_pixels, settings.view_min_pixels)
        return StoredPictures(setup.lake.images, most, least, OPENED)

    return WorkerContext(settings, pictures, Chat(connections.chat), tools, reward, geocoder)


async def work(item: Row, context: WorkerContext) -> Kept:
    """One attempt as a row. A reply that cannot be read is a miss; an outage raises, and it is tried again."""
    settings = context.settings
    picture = await context.pictures(item["policy"]).of_row(item)
    tried = await run_attempt(
        context.chat,
        item["policy"],
        picture,
        prompt_with(settings.agent_recipe, settings.tools, settings.prompt),
        context.tools,
        temperature=settings.temperature,
        seed=stable_seed("difficulty", item["sha256"], item["policy"], item["trial"]),
        max_tokens=settings.max_tokens,
    )
    names = {name: item[name] for name in TRUTH_COLUMNS}
    scored = await asyncio.to_thread(context.reward.many, [tried.text], [names], None, [tried.trajectory])
    if isinstance(scored[0], Excluded):
        raise ServiceError("reward", "outage", f"the reward's service failed: {scored[0].reason}", retryable=True)
    row: Row = {
        "attempt_id": digest(item["image_id"], item["policy"], list(settings.tools), item["trial"]),
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "policy": item["policy"],
        "tools": ", ".join(settings.tools) or "none",
        "trial": item["trial"],
        "reward": scored[0].reward,
        **tried.columns(),
        **vars(await located(settings.agent_recipe, tried.text, item["lat"], item["lon"], context.geocoder)),
    }
    return Kept({"attempts": [row]}, tried.trajectory.usage)


STAGE = Stage(
    name="difficulty.attempts",
    reads=("labels", "images", "models"),
    writes=("attempts",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=16, chunk=8),
    services=services,
    roles=roles,
    words=words,
    identity=attempt_identity,
    snapshot=True,
    keeps_history=True,  # attempts of other policies stand beside the new ones
    unhashed=("snapshot_id",),
)
