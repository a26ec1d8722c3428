"""The step that asks whether a benchmark picture shows a private home: such a place is not to be told.

Curation keeps nothing of the kind: its scene categories know buildings, not whose they are.
"""

from typing import Any

import polars as pl

from schemas.messages import Usage, json_object, text_part
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.picture import Picture
from tasks.evaluate.answers import WorkerContext, benchmark_pictures, open_context, picture_of
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage
from tasks.services import Chat

ASK = """\
Is the subject of this picture a private home: the house, garden, door or rooms of somebody, rather than a street, a \
sight or a landscape that has houses in it? Answer with JSON alone: {"home": true} or {"home": false}"""
_SCHEMA = {
    "type": "object",
    "properties": {"home": {"type": "boolean"}},
    "required": ["home"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "home", "strict": True, "schema": _SCHEMA}}


async def shows_home(picture: Picture, chat: Chat, role: str) -> tuple[bool, Usage]:
    """Whether a model says so; a reply that cannot be read counts as yes, for a home's place cannot be taken back."""
    image = {"type": "image_url", "image_url": {"url": picture.view_uri}}
    asked = [{"role": "user", "content": [image, text_part(ASK)]}]
    reply = await chat.complete(role, asked, response_format=_FORMAT, temperature=0, max_tokens=64)
    return (json_object(reply.text) or {}).get("home") is not False, reply.usage


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each picture, where a role is named."""
    pictures = benchmark_pictures(inputs, settings).select("image_id", "sha256", "extension")
    pictures = pictures if settings.radius.home_role else pictures.clear()
    return pictures.select(pl.col("image_id").alias("id"), pl.all())


async def work(item: Row, context: WorkerContext) -> Kept:
    role = str(context.settings.radius.home_role)
    home, usage = await shows_home(await picture_of(item, context), context.chat, role)
    row = {"image_id": item["image_id"], "sha256": item["sha256"], "model": role, "home": home}
    return Kept({"homes": [row]}, usage)


def identity(settings: EvaluateSettings) -> dict[str, Any]:
    sizes = {"view_max_pixels": settings.view_max_pixels, "view_min_pixels": settings.view_min_pixels}
    return {"home_role": settings.radius.home_role, **sizes}


HOMES = Stage(
    name="evaluate.homes",
    reads=("labels", "images"),
    writes=("homes",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=4),
    services=lambda settings: ("chat",) if settings.radius.home_role else (),
    roles=lambda settings: (settings.radius.home_role,) if settings.radius.home_role else (),
    identity=identity,
    snapshot=True,
    keeps_history=True,
)
