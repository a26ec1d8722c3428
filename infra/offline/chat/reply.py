"""What a model says, and how servers write it down: the completion object and its usage."""

import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import Any

from infra.offline.chat.protocol import ChatRequest

PATCH_PX = 28  # one image token stands for a 28 x 28 patch, as in Qwen2.5-VL
SYSTEM_FINGERPRINT = "fp_geofix_offline"


@dataclass(frozen=True)
class Reply:
    """One choice: text, and function calls as (name, arguments text)."""

    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    is_cut: bool = False  # ends in the middle of its text


def text_tokens(text: str) -> int:
    """About how many tokens a text is: a token is four bytes of UTF-8."""
    return -(-len(text.encode()) // 4)


def prompt_tokens(request: ChatRequest) -> int:
    total = 3
    for message in request.messages:
        total += 4 + text_tokens(message.text)
        total += sum(text_tokens(call.name + call.arguments) + 8 for call in message.tool_calls)
        total += sum(-(-p.width // PATCH_PX) * -(-p.height // PATCH_PX) for p in message.pictures)
    return total + sum(text_tokens(name + json.dumps(schema)) for name, schema in request.tools.items())


def _reply_tokens(reply: Reply) -> int:
    return text_tokens(reply.content or "") + sum(text_tokens(name + arguments) + 8 for name, arguments in reply.calls)


def _usage(request: ChatRequest, replies: list[Reply]) -> dict[str, Any]:
    prompt, completion = prompt_tokens(request), sum(_reply_tokens(reply) for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def limit(reply: Reply, request: ChatRequest) -> tuple[Reply, str]:
    """The reply cut at a stop word or at max_tokens, with its finish reason."""
    content = reply.content
    if content is not None:
        for word in request.stop:
            content = content.split(word, 1)[0] if word else content
        if request.max_tokens is not None and text_tokens(content) > request.max_tokens:
            cut = content.encode()[: request.max_tokens * 4].decode(errors="ignore")
            return replace(reply, content=cut, calls=()), "length"
    return replace(reply, content=content), "length" if reply.is_cut else "tool_calls" if reply.calls else "stop"


def _message(reply: Reply, completion_id: str, index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": _call_id(completion_id, index, k), "type": "function", "function": {"name": name, "arguments": text}}
            for k, (name, text) in enumerate(reply.calls)
        ]
    return message


def _call_id(completion_id: str, index: int, k: int) -> str:
    return "call_" + hashlib.sha256(f"{completion_id}/{index}/{k}".encode()).hexdigest()[:24]


def completion_id(request: ChatRequest) -> str:
    """An id that is the same for the same question, so that a repeated run writes the same rows."""
    text = f"{request.fingerprint}/{request.seed}/{request.temperature}/{request.choices}"
    return "chatcmpl-" + hashlib.sha256(text.encode()).hexdigest()[:29]


def completion(request: ChatRequest, replies: list[Reply]) -> dict[str, Any]:
    """The `chat.completion` object."""
    name = completion_id(request)
    limited = [limit(reply, request) for reply in replies]
    choices = [
        {"index": i, "message": _message(reply, name, i), "logprobs": None, "finish_reason": finish}
        for i, (reply, finish) in enumerate(limited)
    ]
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": choices,
        "usage": _usage(request, [reply for reply, _ in limited]),
        "system_fingerprint": SYSTEM_FINGERPRINT,
    }
