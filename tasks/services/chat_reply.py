"""A completion as a server sent it, read into a `ChatReply`. Servers differ, and none is believed."""

from typing import Any

from schemas.messages import ChatReply, ToolCall, Usage
from schemas.settings.services import Price
from tasks.services.tool_call_text import as_text, split_tool_calls

MOST_CALLS = 128  # in one reply; a model that repeats itself writes them without end
MOST_NAME, MOST_ID = 200, 200
REFUSAL = "refusal"


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
    if message is None:
        raise BadReply("no message under 'choices'")
    given = part(message, "tool_calls") or []
    if not isinstance(given, list):
        raise BadReply("'tool_calls' is not a list")
    if len(given) > MOST_CALLS:
        raise BadReply(f"{len(given):,} tool calls in one reply")
    text = _text(part(message, "content"))
    finish = _whole(str(part(choice, "finish_reason") or "stop")[:100])
    calls = [_tool_call(position, call) for position, call in enumerate(given)]
    if not calls and with_tools and finish != "length":
        text, written = split_tool_calls(text)
        calls = [ToolCall(f"call_{n}", name[:MOST_NAME], arguments) for n, (name, arguments) in enumerate(written)]
        finish = "tool_calls" if calls else finish
    refusal = part(message, "refusal")
    if not text and not calls and isinstance(refusal, str) and refusal:
        text, finish = refusal, REFUSAL
    return ChatReply(text, tuple(_with_own_ids(calls)), finish, Usage(0, 0, 0.0, 0), model, _reasoning(message))


def _tool_call(position: int, call: Any) -> ToolCall:
    function = part(call, "function")
    name, arguments = part(function, "name"), part(function, "arguments")
    if not isinstance(name, str):
        raise BadReply("a tool call without a function name")
    given = part(call, "id")
    call_id = given[:MOST_ID] if isinstance(given, str) and given else f"call_{position}"
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
        found = part(message, field)
        if isinstance(found, str) and found:
            return _whole(found)
    return ""


def _text(content: Any) -> str:
    """The text of a reply's content, which is text, null or (with some servers) a list of parts."""
    if isinstance(content, list):
        return _whole("".join(str(part.get("text") or "") for part in content if isinstance(part, dict)))
    return _whole(content) if isinstance(content, str) else ""


def _whole(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON may hold and UTF-8, and so a table, may not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
