"""The step that asks every policy where every benchmark picture was taken, and which policy answers which picture."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from schemas.errors import StageRefused
from schemas.messages import Message, image_references
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.reward import RewardSettings
from tasks.agent.attempt import (
    PACKAGED,
    PACKAGED_RECIPE,
    PACKAGED_TOKENS,
    PHASES,
    TRAINED,
    Attempt,
    newest_model,
    policy_role,
    run_attempt,
    shown_pixels,
    stable_seed,
    trained_pixels,
)
from tasks.agent.picture import Picture, stored_picture
from tasks.agent.prompt import Prompt
from tasks.agent.service_tools import open_toolbox, tool_services
from tasks.agent.stored import derived_rows
from tasks.agent.toolbox import Toolbox
from tasks.geo.distance import distance_km
from tasks.lake.image_store import ImageStore
from tasks.recipes.reading import AddressSearch, located, reads_addresses
from tasks.recipes.recipe import RECIPES, prompt_with
from tasks.reward.answer import Address, parse_answer
from tasks.reward.levels import address_lines, verdicts
from tasks.reward.metrics import geoscore
from tasks.reward.services import VERIFIER, RewardServices
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat
from tasks.services.geocoder import open_recalling


def answer_identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings an answer depends on, and the words of its question.

    Another policy, or other intervals, leave the answers at hand as they are.
    """
    wanted = (
        *("split", "source", "temperature", "max_tokens", "view_max_pixels", "view_min_pixels"),
        *("tools", "agent_recipe", "verifier", "geocode"),
    )
    named = {"name": settings.name} if settings.name else {}
    prompt = _prompt(settings)
    words = digest(prompt.opening_words, VERIFIER if settings.verifier else None)
    return {**{name: value for name, value in settings.identity().items() if name in wanted}, **named, "words": words}


def asked_as(policy: str, settings: EvaluateSettings) -> EvaluateSettings:
    """The settings that a policy is asked with: the packaged agent knows its own words and tools alone."""
    if policy != PACKAGED:
        return settings
    return settings.model_copy(
        update={"agent_recipe": PACKAGED_RECIPE, "tools": ("all",), "max_tokens": PACKAGED_TOKENS}
    )


def policies(inputs: Inputs, settings: EvaluateSettings) -> list[str]:
    """The policies to evaluate; a trained one is `trained:` and its model id."""
    models = inputs.frame("models")
    recipe = settings.agent_recipe
    names = [policy_role(name, models, recipe) for name in settings.policies]
    newest = newest_model(models, recipe, "grpo") or newest_model(models, recipe)
    if settings.trained and newest is not None:
        names.append(f"{TRAINED}{newest}")
    return list(dict.fromkeys(names))


def evaluation_id(policy: str, settings: EvaluateSettings) -> str:
    """The name of one policy's evaluation. It stays while the benchmark grows, so that only new ones are answered."""
    return digest("evaluation", policy, answer_identity(asked_as(policy, settings)))


def single_evaluations(inputs: Inputs, settings: EvaluateSettings) -> list[tuple[str, str]]:
    """(policy, evaluation_id) of every policy that is queried once."""
    return [(name, evaluation_id(name, settings)) for name in policies(inputs, settings)]


def benchmark_pictures(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """The pictures to answer with their truth, of the whole split or of one ingested source."""
    wanted = RECIPES[settings.agent_recipe].pictures
    pictures = labelled_pictures(inputs, settings.split, None if settings.source else settings.max_images, wanted)
    if settings.source:
        own = inputs.frame("images").filter(pl.col("source") == settings.source).select("image_id")
        pictures = pictures.join(own, on="image_id", how="semi")
        pictures = pictures.head(settings.max_images) if settings.max_images else pictures
    levels = inputs.frame("labels").select("image_id", "country", "region", "city")
    return pictures.join(levels, on="image_id", how="left", maintain_order="left")


def on_validation(settings: EvaluateSettings) -> EvaluateSettings:
    """The same evaluations on the validation split, by which radii are calibrated."""
    return settings.model_copy(update={"split": "validation"})


def splits_asked(settings: EvaluateSettings) -> list[EvaluateSettings]:
    """The settings, and where radii are to be calibrated those for the validation split."""
    also = settings.radius.calibrate and settings.split != "validation"
    return [settings, on_validation(settings)] if also else [settings]


def asked_items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """Every answer to ask for, those that radii are calibrated on included."""
    return pl.concat([items(inputs, split_settings) for split_settings in splits_asked(settings)])


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each policy and picture of the split."""
    pictures = benchmark_pictures(inputs, settings)
    evaluations = pl.DataFrame(
        single_evaluations(inputs, settings), schema={"policy": pl.String, "evaluation_id": pl.String}, orient="row"
    )
    return evaluations.join(pictures, how="cross").select(
        pl.format("{}|{}", "evaluation_id", "image_id").alias("id"),
        *evaluations.columns,
        *pictures.columns,
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    )


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: EvaluateSettings
    images: ImageStore
    chat: Chat
    has_trained: bool
    tools: Toolbox
    geocoder: AddressSearch
    reward_services: RewardServices
    trained: dict[str, tuple[int, int]]  # most and least pixels that trained policies are shown


def roles(settings: EvaluateSettings) -> tuple[str, ...]:
    named = tuple(name for name in settings.policies if name not in PHASES and not name.startswith(TRAINED))
    return (*named, settings.verifier) if settings.verifier else named


def services(settings: EvaluateSettings) -> tuple[str, ...]:
    """The services that policies, their tools and the reading of answers ask."""
    tools = [
        service
        for policy in ("", *settings.policies)
        for service in tool_services(_prompt(asked_as(policy, settings)).tools)
    ]
    geocodes = ("answer_geocoder",) if settings.geocode or reads_addresses(settings.agent_recipe) else ()
    return tuple(dict.fromkeys(("chat", *geocodes, *tools)))


def open_context(settings: EvaluateSettings, setup: WorkerSetup) -> WorkerContext:
    connections = setup.connections
    return WorkerContext(
        settings,
        setup.lake.images,
        Chat(connections.chat),
        connections.trained is not None,
        open_toolbox(connections, setup.lake.state),
        open_recalling(connections.answer_geocoder, setup.responses()),
        RewardServices(connections, RewardSettings(verifier=settings.verifier)),
        trained_pixels(setup.lake.read("models", columns=["model_id", "config_json"])),
    )


async def work(item: Row, context: WorkerContext) -> Kept:
    """One policy's answer to one picture. A reply that cannot be read is a miss; a service that fails raises."""
    policy = item["policy"]
    require_server(policy, context)
    settings = asked_as(policy, context.settings)
    context = replace(context, settings=settings)
    picture = await picture_of(item, context)
    tried = await run_attempt(
        context.chat,
        policy,
        picture,
        _prompt(settings),
        context.tools,
        temperature=settings.temperature,
        seed=stable_seed("evaluate", item["sha256"], policy),
        max_tokens=settings.max_tokens,
    )
    row, files = await prediction_row(item, policy, item["evaluation_id"], tried, picture, context)
    return Kept({"derived": files, "predictions": [row]}, tried.trajectory.usage)


def _prompt(settings: EvaluateSettings) -> Prompt:
    return prompt_with(settings.agent_recipe, settings.tools, settings.prompt)


def require_server(policy: str, context: WorkerContext) -> None:
    """Refuse a trained model where none is served."""
    if policy.startswith(TRAINED) and not context.has_trained:
        raise StageRefused(f"policy {policy} is a trained model, but services.trained names no server of it")


async def picture_of(item: Row, context: WorkerContext) -> Picture:
    """The picture in the size its policy is shown."""
    settings = context.settings
    most, least = shown_pixels(item["policy"], context.trained, settings.view_max_pixels, settings.view_min_pixels)
    return await stored_picture(context.images, item, most, least)


async def prediction_row(
    item: Row, policy: str, evaluation: str, tried: Attempt, picture: Picture, context: WorkerContext
) -> tuple[Row, list[Row]]:
    """The row of one answer: its words, at what cost, and what it is worth; and rows of `derived` for crops."""
    truth = Address(item["country"], item["region"], item["city"])
    messages = await asyncio.to_thread(_stored, item, tried, picture, context.images)
    row = {
        "evaluation_id": evaluation,
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "policy": policy,
        "tools": ", ".join(context.settings.tools) or "none",
        **tried.columns(),
        "messages_json": json.dumps(messages, ensure_ascii=False),
        "view_width": picture.width,
        "view_height": picture.height,
        "levels_json": await asyncio.to_thread(_levels, tried.text, truth, (item["lat"], item["lon"]), context),
        "address_km": await _address_km(tried.text, item["lat"], item["lon"], context),
        **await judge_point(tried.text, item["lat"], item["lon"], context),
    }
    made = derived_rows(f"{evaluation}|{item['image_id']}", item["image_id"], messages)
    # The view can be made again, unless it is another than the original gives, as with a part of it masked.
    stored = [crop for crop in made if crop["kind"] == "crop" or crop["sha256"] != item["sha256"]]
    return row, [{**crop, "trajectory_id": None} for crop in stored]


def _stored(item: Row, tried: Attempt, picture: Picture, images: ImageStore) -> list[Message]:
    """The conversation with the pictures of its tools stored, and the original named for the view.

    A view can be made again from the original, so a benchmark's views are not stored beside it.
    """
    view = f"sha256:{hashlib.sha256(picture.view).hexdigest()}.jpg"
    written = json.dumps(tried.trajectory.messages, ensure_ascii=False)
    messages: list[Message] = json.loads(written.replace(view, f"sha256:{item['sha256']}.{item['extension']}"))
    for sha256, extension in image_references(messages):
        if sha256 in tried.trajectory.pictures:
            images.put(tried.trajectory.pictures[sha256], extension)
    return messages


async def judge_point(answer_text: str, true_lat: float, true_lon: float, context: WorkerContext) -> Row:
    """An answer's point as its recipe reads it, the distance from the truth and the GeoScore, or why there is none."""
    point = await located(context.settings.agent_recipe, answer_text, true_lat, true_lon, context.geocoder)
    return {**vars(point), "geoscore": 0.0 if point.error_km is None else float(geoscore(point.error_km))}


def _levels(text: str, truth: Address, point: tuple[float, float], context: WorkerContext) -> str:
    """Both verdicts a level, rule and model, as JSON; the model's is null where none was queried."""
    verifier = context.reward_services.verify if context.settings.verifier else None
    levels = verdicts(parse_answer(text), truth, verifier, point=point)
    return json.dumps(
        {
            level: None if verdict is None else {"rule": verdict.rule, "model": verdict.model}
            for level, verdict in levels.items()
        }
    )


async def _address_km(text: str, lat: float, lon: float, context: WorkerContext) -> float | None:
    """The distance of the geocoded address the answer names (GeoVista's nuanced evaluation); null without one."""
    if not context.settings.geocode:
        return None
    for line in address_lines(parse_answer(text).address):
        for place in await context.geocoder.search(line, limit=1):
            return distance_km(place.lat, place.lon, lat, lon)
    return None


STAGE = Stage(
    name="evaluate.answers",
    reads=("labels", "images", "models"),
    writes=("derived", "predictions"),
    items=asked_items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=services,
    roles=roles,
    identity=answer_identity,
    snapshot=True,
    keeps_history=True,  # answers of other policies, settings and snapshots stand beside the new ones
    unhashed=("snapshot_id",),
)
