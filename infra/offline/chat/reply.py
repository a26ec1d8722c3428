"""What a model says, and how servers write it down: completion object, stream chunks, usage, and manners of real
servers asked for by a suffix on the model's name.

| suffix | what the server does |
|---|---|
| `text` | writes tool calls as `<tool_call>` text, as a server without a tool parser does |
| `parallel` | makes up to three tool calls in one message, where the request allows it |
| `reasoning` | gives the thought as `reasoning_content`, as a server with a reasoning parser does |
| `refusal` | refuses, with `refusal` set and no content |
| `truncated` | ends in the middle of a tool call's arguments, `finish_reason` `length` |
| `length` | ends in the middle of its text, `finish_reason` `length` |
| `filtered` | gives nothing, `finish_reason` `content_filter` |
"""

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from infra.offline.chat.notes import call_text
from infra.offline.chat.protocol import ChatRequest

PATCH_PX = 28  # one image token stands for a 28 x 28 patch, as in Qwen2.5-VL
CHUNK_CHARS = 24
SYSTEM_FINGERPRINT = "fp_geofix_offline"
VARIANTS = ("text", "parallel", "reasoning", "refusal", "truncated", "length", "filtered")
MOST_PARALLEL = 3
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


@dataclass(frozen=True)
class Reply:
    """One choice: text, function calls as (name, arguments text), or a refusal."""

    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    refusal: str | None = None
    reasoning: str | None = None  # thoughts a server parsed out of the text
    finish: str | None = None  # a finish reason other than the reply's own


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
    text = (reply.content or "") + (reply.refusal or "") + (reply.reasoning or "")
    return text_tokens(text) + sum(text_tokens(name + arguments) + 8 for name, arguments in reply.calls)


def _usage(request: ChatRequest, replies: list[Reply]) -> dict[str, Any]:
    prompt, completion = prompt_tokens(request), sum(_reply_tokens(reply) for reply in replies)
    thoughts = sum(text_tokens(reply.reasoning or "") for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
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
    reason = reply.finish or ("tool_calls" if reply.calls else "stop")
    return replace(reply, content=content), reason


def _message(reply: Reply, completion_id: str, index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": reply.refusal}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
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


def stream(request: ChatRequest, replies: list[Reply]) -> Iterator[bytes]:
    """The same completion as server-sent events, closed by `[DONE]`."""
    name = completion_id(request)
    head = {
        "id": name,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": SYSTEM_FINGERPRINT,
    }

    def event(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {**head, "choices": choices}
        if request.stream_usage:
            body["usage"] = usage
        return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"

    limited = [limit(reply, request) for reply in replies]
    for i, (reply, finish) in enumerate(limited):
        for delta in _deltas(reply, name, i):
            yield event([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}])
        yield event([{"index": i, "delta": {}, "logprobs": None, "finish_reason": finish}])
    if request.stream_usage:
        yield event([], _usage(request, [reply for reply, _ in limited]))
    yield b"data: [DONE]\n\n"


def _deltas(reply: Reply, name: str, index: int) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if reply.content is not None else None, "refusal": None}
    for at in range(0, len(reply.reasoning or ""), CHUNK_CHARS):
        yield {"reasoning_content": (reply.reasoning or "")[at : at + CHUNK_CHARS]}
    if reply.refusal is not None:
        yield {"refusal": reply.refusal}
    for at in range(0, len(reply.content or ""), CHUNK_CHARS):
        yield {"content": (reply.content or "")[at : at + CHUNK_CHARS]}
    for k, (function, arguments) in enumerate(reply.calls):
        opened = {"name": function, "arguments": ""}
        yield {"tool_calls": [{"index": k, "id": _call_id(name, index, k), "type": "function", "function": opened}]}
        for at in range(0, len(arguments), CHUNK_CHARS):
            part = arguments[at : at + CHUNK_CHARS]
            yield {"tool_calls": [{"index": k, "function": {"arguments": part}}]}


Speak = Callable[[ChatRequest, random.Random], Reply]


def base_name(name: str) -> tuple[str, str]:
    """(the model, its variant or "") of a model name."""
    base, _, variant = name.partition(":")
    return (base, variant) if variant in VARIANTS else (name, "")


def speak_as(variant: str, speak: Speak, request: ChatRequest, dice: random.Random) -> Reply:
    """What the model says, in the manner of the variant."""
    if variant == "refusal":
        return Reply(None, refusal="I'm sorry, but I can't help with finding out where this picture was taken.")
    if variant == "filtered":
        return Reply(None, finish="content_filter")
    reply = speak(request, dice)
    if variant == "parallel" and reply.calls and request.parallel:
        return _parallel(speak, request, dice, reply)
    if variant == "text" and reply.calls:
        written = "\n".join(call_text(name, arguments) for name, arguments in reply.calls)
        return Reply(f"{reply.content or ''}\n{written}")
    if variant == "reasoning" and reply.content is not None:
        thoughts = "\n".join(thought.strip() for thought in _THINK.findall(reply.content))
        return replace(reply, content=_THINK.sub("", reply.content).strip() or None, reasoning=thoughts)
    if variant == "truncated" and reply.calls:
        name, arguments = reply.calls[-1]
        cut = (name, arguments[: max(1, len(arguments) // 2)])
        return replace(reply, calls=(*reply.calls[:-1], cut), finish="length")
    if variant in ("truncated", "length") and reply.content:
        return Reply(reply.content[: max(1, len(reply.content) // 2)], finish="length")
    return reply


def _parallel(speak: Speak, request: ChatRequest, dice: random.Random, first: Reply) -> Reply:
    """The calls of several draws of the same model, each once."""
    warm = replace(request, temperature=max(0.8, request.temperature))
    calls = dict.fromkeys(first.calls)
    for _ in range(3 * MOST_PARALLEL):
        if len(calls) >= MOST_PARALLEL:
            break
        calls |= dict.fromkeys(speak(warm, dice).calls)
    return replace(first, calls=tuple(calls)[:MOST_PARALLEL])
