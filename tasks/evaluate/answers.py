"""The stage that asks every policy where every benchmark picture was taken."""

import asyncio
from dataclasses import dataclass

from schemas.errors import StageRefused
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.prompts.spotagent import direct_messages
from tasks.agent.react import stable_seed
from tasks.evaluate.benchmark import TRAINED, answering, items
from tasks.geo.distance import distance_km
from tasks.imaging.images import model_view, to_data_uri
from tasks.lake.image_store import ImageStore
from tasks.reward.answer import ParseFailure, parse_point
from tasks.reward.metrics import geoscore
from tasks.runtime.runner import Kept, Resources, Row, Stage, WorkerSetup
from tasks.services import Chat


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: EvaluateSettings
    images: ImageStore
    chat: Chat
    trained: Chat | None


def open_context(settings: EvaluateSettings, setup: WorkerSetup) -> WorkerContext:
    connections = setup.connections
    trained = Chat(connections.trained) if connections.trained is not None else None
    return WorkerContext(settings, setup.lake.images, Chat(connections.chat), trained)


async def work(item: Row, context: WorkerContext) -> Kept:
    """One policy's answer to one picture. A reply that cannot be read is a miss; a service that fails raises."""
    settings, policy = context.settings, item["policy"]
    chat, model = context.chat, policy
    if policy.startswith(TRAINED):
        if context.trained is None:
            raise StageRefused("evaluate.trained is set, but services.trained names no server of the trained model")
        chat, model = context.trained, policy.removeprefix(TRAINED)
    original = await asyncio.to_thread(context.images.read, item["sha256"], item["extension"])
    view, _ = await asyncio.to_thread(model_view, original, settings.view_max_pixels, settings.view_min_pixels)
    picture = {"type": "image_url", "image_url": {"url": to_data_uri(view)}}
    reply = await chat.complete(
        model,
        direct_messages(picture),
        temperature=settings.temperature,
        seed=stable_seed("evaluate", item["sha256"], policy),
        max_tokens=settings.max_tokens,
    )
    row = {
        "evaluation_id": item["evaluation_id"],
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "policy": policy,
        "answer": reply.text,
        "prompt_tokens": reply.usage.prompt_tokens,
        "completion_tokens": reply.usage.completion_tokens,
        "cost_usd": reply.usage.cost_usd,
        **judge(reply.text, item["lat"], item["lon"]),
    }
    return Kept({"predictions": [row]}, reply.usage)


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


STAGE = Stage(
    name="evaluate.answers",
    reads=("labels", "images", "models"),
    writes=("predictions",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat",),
    identity=answering,
    snapshot=True,
    keeps_history=True,  # answers of other policies, settings and snapshots stand beside the new ones
    unhashed=("snapshot_id",),
)
