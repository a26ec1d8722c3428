"""The stage that asks every policy where every benchmark picture was taken, with or without tools."""

import asyncio
import hashlib
import json
from dataclasses import dataclass

from schemas.errors import StageRefused
from schemas.messages import Message, image_references
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.reward import RewardSettings
from tasks.agent.attempt import Attempt, attempt, recipe_with
from tasks.agent.derived import derived_rows
from tasks.agent.picture import Picture, open_picture
from tasks.agent.policies import STAGES
from tasks.agent.seeds import stable_seed
from tasks.agent.service_tools import open_toolbox
from tasks.agent.toolbox import Toolbox
from tasks.evaluate.benchmark import TRAINED, answering, items
from tasks.geo.distance import distance_km
from tasks.lake.image_store import ImageStore
from tasks.reward.answer import Address, ParseFailure, parse_answer, parse_point
from tasks.reward.asked import AskedServices
from tasks.reward.geovista import verdicts
from tasks.reward.levels import level_names
from tasks.reward.metrics import geoscore
from tasks.runtime.runner import Kept, Resources, Row, Stage, WorkerSetup
from tasks.services import Chat, Geocoder
from tasks.services.geocoder import RecallingGeocoder


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: EvaluateSettings
    images: ImageStore
    chat: Chat
    has_trained: bool
    tools: Toolbox
    geocoder: Geocoder
    asked: AskedServices


def roles(settings: EvaluateSettings) -> tuple[str, ...]:
    named = tuple(name for name in settings.policies if name not in STAGES and not name.startswith(TRAINED))
    return (*named, settings.verifier) if settings.verifier else named


def open_context(settings: EvaluateSettings, setup: WorkerSetup) -> WorkerContext:
    services = setup.connections
    return WorkerContext(
        settings,
        setup.lake.images,
        Chat(services.chat),
        services.trained is not None,
        open_toolbox(services, setup.lake.state),
        RecallingGeocoder(services.geocoder, setup.responses()),
        AskedServices(services, RewardSettings(verifier=settings.verifier)),
    )


async def work(item: Row, context: WorkerContext) -> Kept:
    """One policy's answer to one picture. A reply that cannot be read is a miss; a service that fails raises."""
    settings, policy = context.settings, item["policy"]
    require_server(policy, context)
    picture = await picture_of(item, context)
    tried = await attempt(
        context.chat,
        policy,
        picture,
        recipe_with(settings.agent_recipe, settings.tools),
        context.tools,
        temperature=settings.temperature,
        seed=stable_seed("evaluate", item["sha256"], policy),
        max_tokens=settings.max_tokens,
    )
    row, files = await prediction(item, policy, item["evaluation_id"], tried, picture, context)
    return Kept({"derived": files, "predictions": [row]}, tried.trajectory.usage)


def require_server(policy: str, context: WorkerContext) -> None:
    """Refuse a trained model where none is served."""
    if policy.startswith(TRAINED) and not context.has_trained:
        raise StageRefused(f"policy {policy} is a trained model, but services.trained names no server of it")


async def picture_of(item: Row, context: WorkerContext) -> Picture:
    """The picture in the size policies are shown."""
    settings = context.settings
    original = await asyncio.to_thread(context.images.read, item["sha256"], item["extension"])
    return await asyncio.to_thread(open_picture, original, settings.view_max_pixels, settings.view_min_pixels)


async def prediction(
    item: Row, policy: str, evaluation: str, tried: Attempt, picture: Picture, context: WorkerContext
) -> tuple[Row, list[Row]]:
    """The row of one answer: what was said, at what cost, and what it is worth; and rows of `derived` for crops."""
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
        "levels_json": await asyncio.to_thread(_levels, tried.text, truth, context),
        "address_km": await _address_km(tried.text, item["lat"], item["lon"], context),
        **judge(tried.text, item["lat"], item["lon"]),
    }
    made = derived_rows(f"{evaluation}|{item['image_id']}", item["image_id"], messages)
    return row, [{**one, "trajectory_id": None} for one in made if one["kind"] == "crop"]


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


def judge(answer_text: str, true_lat: float, true_lon: float) -> Row:
    """The point an answer names, its distance from the truth and its GeoScore, or why there is no point."""
    answer = parse_point(answer_text)
    if isinstance(answer, ParseFailure) or answer.lat is None or answer.lon is None:
        reason = answer.reason if isinstance(answer, ParseFailure) else "no_coordinates"
        return {"lat": None, "lon": None, "parse_error": reason, "error_km": None, "geoscore": 0.0}
    error_km = distance_km(answer.lat, answer.lon, true_lat, true_lon)
    return {
        "lat": answer.lat,
        "lon": answer.lon,
        "parse_error": None,
        "error_km": error_km,
        "geoscore": float(geoscore(error_km)),
    }


def _levels(text: str, truth: Address, context: WorkerContext) -> str:
    """Both verdicts a level, rule and model, as JSON; the model's is null where none was asked."""
    verifier = context.asked.verify if context.settings.verifier else None
    found = verdicts(parse_answer(text), truth, verifier)
    return json.dumps(
        {level: None if one is None else {"rule": one.rule, "model": one.model} for level, one in found.items()}
    )


async def _address_km(text: str, lat: float, lon: float, context: WorkerContext) -> float | None:
    """The distance of the geocoded address the answer names (GeoVista's nuanced evaluation); null without one."""
    if not context.settings.geocode:
        return None
    names = [name for name in reversed(level_names(parse_answer(text).address).values()) if name]
    found = await context.geocoder.search(", ".join(names), limit=1) if names else []
    return distance_km(found[0].lat, found[0].lon, lat, lon) if found else None


STAGE = Stage(
    name="evaluate.answers",
    reads=("labels", "images", "models"),
    writes=("derived", "predictions"),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat",),
    roles=roles,
    identity=answering,
    snapshot=True,
    keeps_history=True,  # answers of other policies, settings and snapshots stand beside the new ones
    unhashed=("snapshot_id",),
)
