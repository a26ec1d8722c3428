"""Manners of real servers, asked for by a model name with a suffix: `agent:text`, `planner:parallel`.

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

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.toolbelt import call_text

VARIANTS = ("text", "parallel", "reasoning", "refusal", "truncated", "length", "filtered")
MOST_PARALLEL = 3
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
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
