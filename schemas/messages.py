"""What goes to models and comes back: chat messages, tool calls, and what they cost.

Stored messages are OpenAI chat messages, so nothing is lost between a model's reply and a training row, with one
difference: a picture is named by the digest of its bytes (`sha256:<64 hex>.jpg`) in the place where the protocol has a
data URL. The bytes lie once, in the lake's image store.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]  # an OpenAI chat message: role, content, tool_calls, tool_call_id

_REFERENCE = re.compile(r"sha256:([0-9a-f]{64})\.(jpg|png)")


@dataclass(frozen=True)
class Usage:
    """What model calls used; add two to get their sum. A sum with a part of unknown price has no known price."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0  # None: the price is not known
    requests: int = 0  # HTTP requests sent, failed ones included; 0: answered from the table `calls`

    @property
    def tokens(self) -> int:
        """Of questions and answers."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            None if self.cost_usd is None or other.cost_usd is None else self.cost_usd + other.cost_usd,
            self.requests + other.requests,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return self + Usage(
            -other.prompt_tokens,
            -other.completion_tokens,
            None if other.cost_usd is None else -other.cost_usd,
            -other.requests,
        )

    def __radd__(self, other: object) -> "Usage":
        # sum() starts at the integer 0
        return self if other == 0 else NotImplemented


def money(usd: float | None) -> str:
    """An amount as people read it; one that is not known says so."""
    return "price unknown" if usd is None else f"${usd:,.4f}"


@dataclass(frozen=True)
class ToolCall:
    """One tool call as a model wrote it; `arguments` is its raw text, which need not be JSON."""

    id: str
    name: str
    arguments: str

    def message_part(self) -> dict[str, Any]:
        """The entry of an assistant message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class ChatReply:
    """What a chat model answered."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"  # stop, tool_calls, length (cut by max_tokens), content_filter, refusal …
    usage: Usage = Usage()
    model: str = ""  # as the server names it
    reasoning: str = ""  # `reasoning_content` of servers that split it from the text; <think> in a text stays there
    call_id: str = ""  # of its row in the table `calls`
    alternatives: tuple["ChatReply", ...] = ()  # the further choices of a request with n > 1

    @property
    def cost_usd(self) -> float | None:
        """What the request cost; None: the price is not known."""
        return self.usage.cost_usd

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended at the limit of tokens, not at its end."""
        return self.finish_reason == "length"

    def message(self) -> Message:
        """The reply as an assistant message, to be appended to the conversation."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [call.message_part() for call in self.tool_calls]
        return message


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None for any other text, however deep or broken."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def text_part(text: str) -> dict[str, Any]:
    """A text part of a message's content."""
    return {"type": "text", "text": text}


def parts_of(content: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """A message's content as parts, whichever of the protocol's forms it has."""
    return [text_part(content)] if isinstance(content, str) else list(content or ())


def texts_of(message: Message) -> list[str]:
    """The texts of a message's content."""
    return [part["text"] for part in parts_of(message.get("content")) if part.get("type") == "text"]


def image_part(sha256: str, extension: str = "jpg") -> dict[str, Any]:
    """A picture part of a stored message's content, naming the picture by its digest."""
    reference = f"sha256:{sha256}.{extension}"
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(f"not a digest and an extension: {reference!r}")
    return {"type": "image_url", "image_url": {"url": reference}}


def image_reference(part: object) -> tuple[str, str] | None:
    """(sha256, extension) of a picture part made by `image_part`, or None for any other part."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    inner = part.get("image_url")
    match = _REFERENCE.fullmatch(str(inner.get("url"))) if isinstance(inner, dict) else None
    return (match.group(1), match.group(2)) if match else None


def image_references(messages: list[Message]) -> list[tuple[str, str]]:
    """All pictures of a stored conversation, in the order in which they are seen."""
    parts = (part for message in messages for part in parts_of(message.get("content")))
    return [reference for part in parts if (reference := image_reference(part)) is not None]
