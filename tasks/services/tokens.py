"""How many tokens a question may have, before a server has counted them."""

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.messages import Message

BYTES_PER_TOKEN = 2.0  # at least: English has four, Chinese and Japanese about three bytes to a token
PER_MESSAGE = 8
# A model sees a picture in patches: 28 x 28 pixels (Qwen2.5-VL), 750 pixels (Claude), tiles (OpenAI: at most 1,445
# tokens); with room for a border.
PIXELS_PER_TOKEN = 600.0
PER_PICTURE = 100
UNREAD_PICTURE = 4_000  # one whose size cannot be read
LONGEST_ANSWER = 4_096  # where no limit is given


def question_tokens(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> int:
    """An upper estimate of a question's tokens."""
    total = _text(tools) if tools else 0.0
    for message in messages:
        total += PER_MESSAGE + _text(message.get("tool_calls")) + _content(message.get("content"))
    return int(total) + 1


def answer_tokens(fields: Mapping[str, Any]) -> int:
    """The most tokens an answer can have."""
    longest = fields.get("max_tokens") or fields.get("max_completion_tokens") or LONGEST_ANSWER
    return int(longest) * int(fields.get("n") or 1)


def _content(content: Any) -> float:
    if not isinstance(content, list):
        return _text(content)
    return sum(_picture(part) if isinstance(part, dict) and "image_url" in part else _text(part) for part in content)


def _text(value: Any) -> float:
    if not value:
        return 0.0
    return len((value if isinstance(value, str) else str(value)).encode("utf-8", "replace")) / BYTES_PER_TOKEN


def _picture(part: Mapping[str, Any]) -> float:
    inner = part["image_url"]
    url = inner.get("url") if isinstance(inner, dict) else inner
    _, found, data = str(url).partition(";base64,")
    if not found:
        return UNREAD_PICTURE
    from PIL import Image  # most workers look at no picture here

    try:
        # A JPEG's size stands before its pixels, but metadata may come first.
        with Image.open(io.BytesIO(base64.b64decode(data[: 4 * 65536], validate=False))) as picture:
            width, height = picture.size
    except (OSError, ValueError, binascii.Error):
        return UNREAD_PICTURE
    return PER_PICTURE + width * height / PIXELS_PER_TOKEN
