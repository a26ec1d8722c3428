"""Conversations in tagged form, as a single model writes and reads them, and back again without loss.

An OpenAI conversation keeps tool calls and tool results beside the text. A model sees one text:
`<think>..</think>`, `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, `<tool_response>..</tool_response>`,
`<answer>..</answer>`. The tagged text is character for character what Qwen's chat template makes of the same
conversation, so what is trained is what an inference server with that template will show the model.
"""

import re
from collections.abc import Sequence
from typing import Any

from schemas.messages import Message, parts_of, text_part

_THINK = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<(/?)(think|answer|tool_call|tool_response)>", re.IGNORECASE)


def split_thought(text: str) -> tuple[str, str]:
    """(what stands inside <think> tags, the rest); a text without tags is all rest."""
    thoughts = [match.group(1).strip() for match in _THINK.finditer(text)]
    return "\n".join(t for t in thoughts if t), _THINK.sub("", text).strip()


def without_tags(text: str) -> str:
    """The text with our own tags made harmless, for words that are quoted inside a thought."""
    return _TAG.sub(r"(\1\2)", text)


Part = dict[str, Any]

_OPEN_RESPONSE, _CLOSE_RESPONSE = "<tool_response>\n", "\n</tool_response>"
_OPEN_CALL, _ARGUMENTS, _CLOSE_CALL = '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"


class NotTaggable(ValueError):
    """A conversation whose tagged text would not read back as the same conversation."""


def render_tagged(messages: Sequence[Message]) -> list[Message]:
    """The conversation with system, user and assistant turns alone, calls and responses as tagged text.

    Refuses (NotTaggable) what `parse_tagged` would read differently, such as a text that holds our tags.
    """
    tagged = tagged_turns(messages)
    if parse_tagged(tagged) != canonical_messages(messages):
        raise NotTaggable("the conversation holds text that looks like our own tags")
    return tagged


def tagged_turns(messages: Sequence[Message]) -> list[Message]:
    """`render_tagged` for a model that is only to read it: nothing is refused for its texts."""
    tagged: list[Message] = []
    responses: list[Part] = []
    for message in messages:
        if message["role"] == "tool":
            before = "\n" + _OPEN_RESPONSE if responses else _OPEN_RESPONSE
            responses += [text_part(before), *parts_of(message["content"]), text_part(_CLOSE_RESPONSE)]
            continue
        if responses:
            tagged.append({"role": "user", "content": _joined(responses)})
            responses = []
        content = _joined(parts_of(message.get("content")))
        if message["role"] == "assistant":
            content = _assistant_text(content, message.get("tool_calls") or [])
        tagged.append({"role": message["role"], "content": content})
    if responses:
        tagged.append({"role": "user", "content": _joined(responses)})
    return tagged


def parse_tagged(tagged: Sequence[Message]) -> list[Message]:
    """The OpenAI conversation that `render_tagged` made the tagged one from, call ids numbered in order."""
    messages: list[Message] = []
    calls_made = calls_answered = 0
    for turn in tagged:
        content = turn["content"]
        if turn["role"] == "assistant":
            text, calls = split_calls(content)
            message: Message = {"role": "assistant", "content": text}
            if calls:
                message["tool_calls"] = [_call(calls_made + n, *call) for n, call in enumerate(calls, start=1)]
                calls_made += len(calls)
            messages.append(message)
            continue
        responses = _split_responses(parts_of(content)) if turn["role"] == "user" else None
        if responses is None:
            messages.append({"role": turn["role"], "content": content})
            continue
        for response in responses:
            calls_answered += 1
            messages.append({"role": "tool", "tool_call_id": f"call_{calls_answered}", "content": response})
    return messages


def canonical_messages(messages: Sequence[Message]) -> list[Message]:
    """The conversation as `parse_tagged` writes it: calls numbered in order, neighbouring texts joined."""
    numbers: dict[str, int] = {}
    result: list[Message] = []
    calls_made = 0
    for message in messages:
        plain: Message = {"role": message["role"], "content": _joined(parts_of(message.get("content")))}
        if message["role"] == "tool":
            plain["tool_call_id"] = f"call_{numbers.get(message['tool_call_id'], 0)}"
        calls = message.get("tool_calls") or []
        if calls:
            plain["tool_calls"] = []
            for call in calls:
                calls_made += 1
                numbers[call["id"]] = calls_made
                plain["tool_calls"].append(_call(calls_made, call["function"]["name"], call["function"]["arguments"]))
        result.append(plain)
    return result


def split_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(what an assistant's text says, the (name, raw arguments) of the tool calls at its end)."""
    calls: list[tuple[str, str]] = []
    # From the end, one call at a time: linear even in a text that is all opening tags.
    while text.endswith(_CLOSE_CALL):
        start = text.rfind(_OPEN_CALL)
        name, separator, arguments = text[start + len(_OPEN_CALL) : -len(_CLOSE_CALL)].partition(_ARGUMENTS)
        if start < 0 or not separator or (start > 0 and text[start - 1] != "\n"):
            break
        calls.insert(0, (name, arguments))
        text = text[: max(0, start - 1)]
    return text, calls


def _assistant_text(content: str | list[Part], calls: list[dict[str, Any]]) -> str:
    if not isinstance(content, str):
        raise NotTaggable("an assistant's turn holds a picture")
    written = [
        _OPEN_CALL + call["function"]["name"] + _ARGUMENTS + call["function"]["arguments"] + _CLOSE_CALL
        for call in calls
    ]
    return "\n".join([content, *written] if content else written)


def _call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _joined(parts: list[Part]) -> str | list[Part]:
    """Neighbouring texts as one; a plain string when there is nothing but text."""
    joined: list[Part] = []
    for part in parts:
        if part["type"] != "text":
            joined.append(part)
        elif joined and joined[-1]["type"] == "text":
            joined[-1] = text_part(joined[-1]["text"] + part["text"])
        elif part["text"]:
            joined.append(text_part(part["text"]))
    if any(part["type"] != "text" for part in joined):
        return joined
    return joined[0]["text"] if joined else ""


def _split_responses(parts: list[Part]) -> list[str | list[Part]] | None:
    """The contents of a turn that is tool responses from its first character to its last; None for any other."""
    if not parts or parts[0]["type"] != "text" or parts[-1]["type"] != "text":
        return None
    if not parts[0]["text"].startswith(_OPEN_RESPONSE) or not parts[-1]["text"].endswith(_CLOSE_RESPONSE):
        return None
    between = _CLOSE_RESPONSE + "\n" + _OPEN_RESPONSE
    responses: list[list[Part]] = [[]]
    for index, part in enumerate(parts):
        if part["type"] != "text":
            responses[-1].append(part)
            continue
        text = part["text"]
        if index == 0:
            text = text.removeprefix(_OPEN_RESPONSE)
        if index == len(parts) - 1:
            if not text.endswith(_CLOSE_RESPONSE):
                return None  # one closing tag cannot also be the opening one's line end
            text = text.removesuffix(_CLOSE_RESPONSE)
        first, *rest = text.split(between)
        responses[-1].append(text_part(first))
        responses += [[text_part(piece)] for piece in rest]
    return [_joined(response) for response in responses]
