"""Robustness with masked cues (GeoAgent D.3): is a place still found without its poles, text, shops or foreground?

A model says where a cue is; these boxes are filled with grey in the original, so that no zoom shows what is below.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

from schemas.messages import Usage, json_object, text_part
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import Attempt, run_attempt, stable_seed
from tasks.agent.picture import Picture, open_picture
from tasks.imaging.images import covered
from tasks.recipes.evaluation import Deliberated, EvaluationContext, EvaluationMethod

WHOLE = "whole"
NAMES = {
    "poles": "utility pole, lamp post and power line",
    "text": "piece of writing: signs, plates, posters, letters on walls and vehicles",
    "shops": "shop, its front, sign and window",
    "plates": "name plate of a street and licence plate of a vehicle",
    "plants": "tree, bush, hedge, field and patch of grass",
    "sky": "part of the sky",
    "foreground": "thing in the foreground: vehicles, people, fences, plants near the camera",
}
ASK = """\
Where in this picture is {what}? Give every one as a box [x1, y1, x2, y2], top left and bottom right corner in pixels; \
the picture is {width} x {height} pixels. Where there is none, give an empty list. Answer with JSON alone: \
{{"boxes": [[x1, y1, x2, y2]]}}"""
_BOX = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}
_SCHEMA = {
    "type": "object",
    "properties": {"boxes": {"type": "array", "items": _BOX}},
    "required": ["boxes"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "boxes", "strict": True, "schema": _SCHEMA}}
Box = tuple[float, float, float, float]


class MaskedCues(EvaluationMethod):
    """A policy on the whole pictures, and on the same ones without each cue."""

    name = "masking"

    def policies(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return settings.masking.policies

    def evaluations(self, policy: str, settings: EvaluateSettings) -> tuple[str, ...]:
        return f"{policy} {WHOLE}", *(f"{policy} without {cue}" for cue in settings.masking.cues)

    def identity(self, settings: EvaluateSettings) -> dict[str, Any]:
        return {"locator": settings.masking.locator}

    def roles(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return (*settings.masking.policies, settings.masking.locator) if settings.masking.policies else ()

    def words(self, settings: EvaluateSettings) -> Any:
        return [ASK, [NAMES[cue] for cue in settings.masking.cues], _FORMAT]

    async def answer(self, context: EvaluationContext) -> tuple[list[Deliberated], Usage]:
        """The policy's answer to the picture, and to what is left of it without each cue."""
        names = self.evaluations(context.policy, context.settings)
        whole = await self._attempt(context, context.picture)
        deliberations, usage = [Deliberated(names[0], whole, {"method": WHOLE})], whole.trajectory.usage
        for name, cue in zip(names[1:], context.settings.masking.cues, strict=True):
            boxes, locating = await locate(context, cue)
            picture = await asyncio.to_thread(masked, context.picture, boxes) if boxes else context.picture
            tried = await self._attempt(context, picture)
            details = {"method": f"without {cue}", "answers_json": json.dumps({"boxes": boxes})}
            deliberations.append(Deliberated(name, tried, details))
            usage = usage + locating + tried.trajectory.usage
        return deliberations, usage

    async def _attempt(self, context: EvaluationContext, picture: Picture) -> Attempt:
        settings = context.settings
        return await run_attempt(
            context.chat,
            context.policy,
            picture,
            context.prompt,
            context.tools,
            temperature=settings.temperature,
            seed=stable_seed("masking", context.seed, context.policy),
            max_tokens=settings.max_tokens,
        )


async def locate(context: EvaluationContext, cue: str) -> tuple[list[Box], Usage]:
    """The boxes of a cue in pixels of the view, as a model gives them; those that lie outside are left out."""
    picture = context.picture
    words = ASK.format(what=NAMES[cue], width=picture.width, height=picture.height)
    image = {"type": "image_url", "image_url": {"url": picture.view_uri}}
    messages = [{"role": "user", "content": [image, text_part(words)]}]
    reply = await context.chat.complete(
        context.settings.masking.locator, messages, response_format=_FORMAT, temperature=0, max_tokens=2048
    )
    rows = (json_object(reply.text) or {}).get("boxes")
    boxes = [box for row in (rows if isinstance(rows, list) else ()) if (box := _box(row, picture)) is not None]
    return boxes, reply.usage


def _box(row: Any, picture: Picture) -> Box | None:
    if not isinstance(row, list) or len(row) != 4 or not all(type(side) in (int, float) for side in row):
        return None
    x1, y1, x2, y2 = row
    x1, x2 = max(0.0, x1), min(float(picture.width), x2)
    y1, y2 = max(0.0, y1), min(float(picture.height), y2)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def masked(picture: Picture, boxes: list[Box]) -> Picture:
    """The picture with the boxes of its view filled, in the original too."""
    on_original = [tuple(side / picture.scale for side in box) for box in boxes]
    original = covered(picture.original, on_original)
    made = open_picture(original, picture.max_pixels, picture.min_pixels)
    return replace(made, scale=picture.scale) if (made.width, made.height) == (picture.width, picture.height) else made


EVALUATION = MaskedCues()
