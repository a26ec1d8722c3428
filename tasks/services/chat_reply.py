"""What a chat server sends, read into a `ChatReply`, and how many tokens a question may have.

Servers differ, and none is believed. Servers without a parser for a model's format pass its tool calls on as text:
`<tool_call>{"name": .., "arguments": {..}}</tool_call>`. Read are the forms of Hermes and Qwen, with any white space,
several calls, text before and between them, and a last call whose closing tag is missing.
"""

import base64
import binascii
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.messages import ChatReply, Message, ToolCall, Usage
from schemas.settings.services import Price

MOST_CALLS = 128  # in one reply; a model that repeats itself writes them without end
MOST_WRITTEN_CALLS = 64  # in one text
MOST_NAME, MOST_ID = 200, 200
REFUSAL, CONTENT_FILTER = "refusal", "content_filter"  # reasons to finish
OPEN, CLOSE = "<tool_call>", "</tool_call>"
BYTES_PER_TOKEN = 2.0  # at least: English has four, Chinese and Japanese about three bytes to a token
PER_MESSAGE = 8
# A model sees a picture in patches: 28 x 28 pixels (Qwen2.5-VL), 750 pixels (Claude), tiles (OpenAI: at most 1,445
# tokens); with room for a border.
PIXELS_PER_TOKEN = 600.0
PER_PICTURE = 100
UNREAD_PICTURE = 4_000  # one whose size cannot be read
LONGEST_ANSWER = 4_096  # where no limit is given
_decoder = json.JSONDecoder()


class BadReply(ValueError):
    """A completion that breaks the protocol."""


def part(value: Any, name: str) -> Any:
    """A field of an object as it came, whatever its type; None where there is no object, or no such field."""
    return value.get(name) if isinstance(value, dict) else None


def read_reply(completion: Any, model: str, usage: Usage, with_tools: bool, call_id: str = "") -> ChatReply:
    """The reply, further choices included, or BadReply. `with_tools`: tools were offered, so text may call them."""
    choices = part(completion, "choices")
    if not isinstance(choices, list) or not choices:
        raise BadReply("no message under 'choices'")
    served = part(completion, "model")
    name = served if isinstance(served, str) and served else model
    first, *others = [_choice(choice, name, with_tools) for choice in choices[:MOST_CALLS]]
    return ChatReply(
        first.text, first.tool_calls, first.finish_reason, usage, name, first.reasoning, call_id, tuple(others)
    )


def read_usage(completion: Any, price: Price | None, requests: int) -> Usage:
    """Tokens as the server counted them, and their price."""
    value = part(completion, "usage")

    def count(name: str) -> int:
        number = part(value, name)
        return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**40 else 0

    prompt, answer = count("prompt_tokens"), count("completion_tokens")
    return Usage(prompt, answer, None if price is None else price.of(prompt, answer), requests)


def _choice(choice: Any, model: str, with_tools: bool) -> ChatReply:
    message = part(choice, "message")
    finish = _whole(str(part(choice, "finish_reason") or "stop")[:100])
    if message is None:
        if finish != CONTENT_FILTER:
            raise BadReply("no message under 'choices'")
        return ChatReply(_filtered(choice), (), finish, Usage(0, 0, 0.0, 0), model)
    raw_calls = part(message, "tool_calls") or []
    if not isinstance(raw_calls, list):
        raise BadReply("'tool_calls' is not a list")
    if len(raw_calls) > MOST_CALLS:
        raise BadReply(f"{len(raw_calls):,} tool calls in one reply")
    text = _text(part(message, "content"))
    calls = [_tool_call(position, call) for position, call in enumerate(raw_calls)]
    if not calls and with_tools and finish != "length":
        text, written = split_tool_calls(text)
        calls = [ToolCall(f"call_{n}", name[:MOST_NAME], arguments) for n, (name, arguments) in enumerate(written)]
        finish = "tool_calls" if calls else finish
    refusal = part(message, "refusal")
    if not text and not calls and isinstance(refusal, str) and refusal:
        text, finish = refusal, REFUSAL
    return ChatReply(text, tuple(_with_own_ids(calls)), finish, Usage(0, 0, 0.0, 0), model, _reasoning(message))


def _filtered(choice: Any) -> str:
    """What Azure's content filter kept back, which sends no message then."""
    results = part(choice, "content_filter_results")
    names = [str(name) for name in results if part(results[name], "filtered")] if isinstance(results, dict) else []
    return f"kept back by the server's content filter{': ' if names else ''}{', '.join(names)[:200]}"


def _tool_call(position: int, call: Any) -> ToolCall:
    function = part(call, "function")
    name, arguments = part(function, "name"), part(function, "arguments")
    if not isinstance(name, str):
        raise BadReply("a tool call without a function name")
    raw_id = part(call, "id")
    call_id = raw_id[:MOST_ID] if isinstance(raw_id, str) and raw_id else f"call_{position}"
    return ToolCall(id=call_id, name=_whole(name[:MOST_NAME]), arguments=_whole(as_text(arguments)))


def _with_own_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """Calls whose ids differ: the answer to a call names it by its id."""
    taken: set[str] = set()
    result = []
    for position, call in enumerate(calls):
        name = call.id if call.id not in taken else f"{call.id}_{position}"
        while name in taken:
            name += "_"
        taken.add(name)
        result.append(call if name == call.id else ToolCall(name, call.name, call.arguments))
    return result


def _reasoning(message: Any) -> str:
    """What a server splits from the text: `reasoning_content` (DeepSeek, older vLLM) or `reasoning` (OpenRouter)."""
    for field in ("reasoning_content", "reasoning"):
        reasoning = part(message, field)
        if isinstance(reasoning, str) and reasoning:
            return _whole(reasoning)
    return ""


def _text(content: Any) -> str:
    """The text of a reply's content, which is text, null or (with some servers) a list of parts."""
    if isinstance(content, list):
        return _whole("".join(str(part.get("text") or "") for part in content if isinstance(part, dict)))
    return _whole(content) if isinstance(content, str) else ""


def _whole(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON may hold and UTF-8, and so a table, may not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def split_tool_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(the text without its calls, (name, raw arguments) of each).

    A text with a call that cannot be read, or inside its thought, is returned as it is: what a model meant is not
    guessed.
    """
    start = text.find(OPEN, max(0, text.rfind("</think>")))
    if start < 0 or text.count(OPEN) > MOST_WRITTEN_CALLS:
        return text, []
    texts, calls = [text[:start]], list[tuple[str, str]]()
    while start >= 0:
        parsed = _call(text, start + len(OPEN))
        if parsed is None:
            return text, []
        name, arguments, end = parsed
        calls.append((name, arguments))
        start = text.find(OPEN, end)
        texts.append(text[end : start if start >= 0 else len(text)])
    return "".join(texts).strip(), calls


def _call(text: str, position: int) -> tuple[str, str, int] | None:
    """Name, arguments and where the call ends."""
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        value, end = _decoder.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        return None
    key = "arguments" if "arguments" in value else "parameters"
    arguments = value.get(key, {})
    rest = text[end:].lstrip()
    if rest and not rest.startswith(CLOSE):
        return None
    closed = text.find(CLOSE, end)
    written = arguments if isinstance(arguments, str) else _as_written(text[position:end], key, arguments)
    return name, written, closed + len(CLOSE) if closed >= 0 else len(text)


def _as_written(call: str, key: str, arguments: object) -> str:
    """The arguments character for character as the model wrote them: a stored conversation repeats them."""
    _, separator, rest = call.partition(f'"{key}"')
    rest = rest.lstrip().removeprefix(":").lstrip()
    try:
        value, end = _decoder.raw_decode(rest) if separator else (None, 0)
    except (ValueError, RecursionError):
        return as_text(arguments)
    return rest[:end] if end and value == arguments else as_text(arguments)


def as_text(arguments: object) -> str:
    """Arguments as the protocol has them: text. Some servers and models send an object."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return ""  # no JSON: the caller refuses the call as malformed


def question_tokens(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> int:
    """An upper estimate of a question's tokens."""
    total = _text_tokens(tools) if tools else 0.0
    for message in messages:
        total += PER_MESSAGE + _text_tokens(message.get("tool_calls")) + _content_tokens(message.get("content"))
    return int(total) + 1


def answer_tokens(fields: Mapping[str, Any]) -> int:
    """The most tokens an answer can have."""
    longest = fields.get("max_tokens") or fields.get("max_completion_tokens") or LONGEST_ANSWER
    return int(longest) * int(fields.get("n") or 1)


def _content_tokens(content: Any) -> float:
    if not isinstance(content, list):
        return _text_tokens(content)
    return sum(
        _picture_tokens(part) if isinstance(part, dict) and "image_url" in part else _text_tokens(part)
        for part in content
    )


def _text_tokens(value: Any) -> float:
    if not value:
        return 0.0
    return len((value if isinstance(value, str) else str(value)).encode("utf-8", "replace")) / BYTES_PER_TOKEN


def _picture_tokens(part: Mapping[str, Any]) -> float:
    inner = part["image_url"]
    url = inner.get("url") if isinstance(inner, dict) else inner
    _, separator, data = str(url).partition(";base64,")
    if not separator:
        return UNREAD_PICTURE
    from PIL import Image  # most workers look at no picture here

    try:
        # A JPEG's size stands before its pixels, but metadata may come first.
        with Image.open(io.BytesIO(base64.b64decode(data[: 4 * 65536], validate=False))) as picture:
            width, height = picture.size
    except (OSError, ValueError, binascii.Error):
        return UNREAD_PICTURE
    return PER_PICTURE + width * height / PIXELS_PER_TOKEN
