"""A chat request read and checked: for which model, with which pictures."""

import base64
import binascii
import io
import re
import threading
from typing import Any, Literal

from cachetools import LRUCache, cached
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.imaging.decode import Encoded
from tasks.imaging.images import BadImage, model_view, view_scale

_DATA_URI = re.compile(r"data:image/(?:jpeg|jpg|png);base64,", re.IGNORECASE)
MAX_IMAGES = 16
PICTURE_BYTES = 64 * 1024 * 1024  # of pictures that are kept opened


class Refused(Exception):
    """A request that is answered with an error, in OpenAI's shape."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param


class ChatMessage(BaseModel):
    """One message; unknown fields of newer protocols are let through and ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatRequest(BaseModel):
    """What a client may ask. Strict where a silent default would give another answer than the one requested."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=1)
    stream: Literal[False] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_ids: bool = False  # as vLLM does

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def read_request(body: bytes) -> ChatRequest:
    """The request, or Refused in words its sender can act on."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise Refused(400, f"{where or 'body'}: {first['msg']}", "invalid_request", where or None) from None


def conversation(request: ChatRequest, min_pixels: int, max_pixels: int) -> list[dict[str, Any]]:
    """The messages as the chat template takes them: lists of parts, pictures decoded and within the budget."""
    images = 0
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(request.messages):
        content: list[dict[str, Any]] = []
        parts = message.content if isinstance(message.content, list) else [{"type": "text", "text": message.content}]
        for place, part in enumerate(parts):
            where = f"messages.{number}.content.{place}"
            if part.get("type") == "image_url":
                images += 1
                if images > MAX_IMAGES:
                    raise Refused(400, f"more than {MAX_IMAGES} pictures", "too_many_images", where)
                content.append({"type": "image", "image": _picture(part, where, min_pixels, max_pixels)})
            elif part.get("type") == "text" and isinstance(part.get("text") or "", str):
                content.append({"type": "text", "text": part.get("text") or ""})
            else:
                raise Refused(400, f"{where}: a part is text or image_url", "invalid_request", where)
        plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
        if message.tool_calls:
            plain["tool_calls"] = message.tool_calls
        messages.append(plain)
    return messages


def _picture(part: dict[str, Any], where: str, min_pixels: int, max_pixels: int) -> Image.Image:
    url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else None
    header = _DATA_URI.match(url) if isinstance(url, str) else None
    if header is None or not isinstance(url, str):
        # Fetching an address a client names would let it reach into our network.
        raise Refused(400, f"{where}: pictures come as data:image/jpeg or png;base64", "invalid_image_url", where)
    try:
        return _opened(url[header.end() :], max_pixels, min_pixels)
    except (binascii.Error, BadImage) as error:
        raise Refused(400, f"{where}: not a usable picture ({error})", "invalid_image", where) from None


def _weight(picture: Image.Image) -> int:
    return 4 * picture.width * picture.height  # its colours, and what was sent of it


@cached(LRUCache(PICTURE_BYTES, _weight), lock=threading.Lock())
def _opened(sent: str, max_pixels: int, min_pixels: int) -> Image.Image:
    """The picture within the budget; kept, because it comes again with each turn of its conversation."""
    data = base64.b64decode(sent, validate=True)
    encoded = Encoded.open(data)
    width, height = encoded.facts.width, encoded.facts.height
    if encoded.orientation == 1 and encoded.mode == "RGB" and view_scale(width, height, max_pixels, min_pixels) == 1.0:
        encoded.check()  # as it was sent, and as other servers see it: a JPEG of a JPEG is another picture
    else:
        data, _ = model_view(data, max_pixels, min_pixels)
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture.load()
    return picture
