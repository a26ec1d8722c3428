"""Stored conversations: their boxes moved to another size of the picture, and the files that were made of the picture.

A box is in pixels of the picture a model is shown. A trainer that shows a smaller picture has to train smaller boxes.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from schemas.messages import Message, image_references, json_object
from tasks.agent.tools import TOOLS
from tasks.imaging.images import view_scale
from tasks.runtime.runner import Row, digest

_NUMBER = r"(-?\d{1,6}(?:\.\d{1,6})?)"
_BOX = re.compile(rf"\[\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\]")
_NAME = "bbox_2d"

Size = tuple[int, int]


def shown_size(size: Size, max_pixels: int, min_pixels: int) -> Size:
    """The size in which a picture of this size is shown within a pixel budget, as `model_view` makes it."""
    scale = view_scale(*size, max_pixels, min_pixels)
    if scale == 1.0:
        return size
    width, height = (side * scale for side in size)
    return (int(width), int(height)) if scale < 1 else (-int(-width // 1), -int(-height // 1))


def with_size(messages: Sequence[Message], old: Size, new: Size) -> list[Message]:
    """The conversation as it would stand had the picture been shown in the new size: calls, texts and sizes."""
    calls = (call["function"]["name"] for message in messages for call in message.get("tool_calls") or ())
    if old == new or any(name in TOOLS and TOOLS[name].thousandths for name in calls):
        return list(messages)
    scale = (new[0] / old[0], new[1] / old[1])
    return [_message(message, scale, old, new) for message in messages]


def _message(message: Message, scale: tuple[float, float], old: Size, new: Size) -> Message:
    def text(words: str) -> str:
        moved = _BOX.sub(lambda match: json.dumps(_moved([float(side) for side in match.groups()], scale)), words)
        return moved.replace(f"{old[0]} x {old[1]} pixels", f"{new[0]} x {new[1]} pixels")

    if message["role"] in ("system", "user"):
        return message
    content = message["content"]
    if isinstance(content, str):
        content = text(content)
    else:
        content = [{**part, "text": text(part["text"])} if part["type"] == "text" else part for part in content]
    changed = {**message, "content": content}
    if "tool_calls" in message:
        changed["tool_calls"] = [_call(call, scale) for call in message["tool_calls"]]
    return changed


def _call(call: dict[str, Any], scale: tuple[float, float]) -> dict[str, Any]:
    arguments = json_object(call["function"]["arguments"]) or {}
    box = arguments.get(_NAME)
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(side, int | float) for side in box):
        return call
    moved = json.dumps({**arguments, _NAME: _moved(box, scale)}, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": moved}}


def _moved(box: Sequence[float], scale: tuple[float, float]) -> list[int]:
    """The box in whole pixels: all that was looked at stays inside, and it never is without area."""
    left, top, right, bottom = (round(side * scale[axis % 2], 6) for axis, side in enumerate(box))
    x, y = math.floor(left), math.floor(top)
    return [x, y, max(math.ceil(right), x + 1), max(math.ceil(bottom), y + 1)]


ZOOMS = (
    "image_zoom_in_tool",
    "image_zoom_tool",
    "image_zoom",
)  # pictures of other tools, such as maps, are not made of the picture


def derived_rows(trajectory_id: str, image_id: str, messages: Sequence[Message]) -> list[Row]:
    """A row for each stored file that was made of the picture: the view the model is shown, and what zooms showed."""
    zooms = {
        call["id"]
        for message in messages
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] in ZOOMS
    }
    kinds: dict[tuple[str, str], str] = {}
    for message in messages:
        if message["role"] == "tool" and message.get("tool_call_id") not in zooms:
            continue
        for reference in image_references([message]):
            kinds.setdefault(reference, "crop" if message["role"] == "tool" else "view")
    return [
        {
            "derived_id": digest(trajectory_id, sha256),
            "sha256": sha256,
            "extension": extension,
            "image_id": image_id,
            "trajectory_id": trajectory_id,
            "kind": kind,
        }
        for (sha256, extension), kind in kinds.items()
    ]
