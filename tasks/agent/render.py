"""The one rendering of a conversation: what a sample trains, what a rollout is prompted with, what a server is shown.

The template is Qwen3-VL's as TRL ships it: Qwen2.5-VL's own has no tools, and TRL knows this one's assistant masks.
`render_text` fills it in. `training_messages` is the same conversation for trainers that take no tools and no tool
role: the `<tools>` block stands in the system message, calls and responses are tagged text. Both give the same bytes.
"""

import importlib.util
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.extras import MissingExtra, install_command
from schemas.messages import Message, texts_of
from tasks.agent.tagged import NotTaggable, render_tagged, tagged_turns

TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
# Tokens that steer a model; a conversation that holds one as text is not rendered.
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


@cache
def chat_template() -> str:
    """The Jinja text of the template."""
    spec = importlib.util.find_spec("trl")  # finds the package without importing it, which takes seconds
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(f"the chat template comes with trl, which is not installed: {install_command('train')}")
    path = Path(spec.submodule_search_locations[0]) / "chat_templates" / "qwen3_vl.jinja"
    return path.read_text(encoding="utf-8")


def render_text(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, add_generation_prompt: bool = False
) -> str:
    """The conversation as one text, with the marks of its pictures, as a model reads it."""
    text = _compiled().render(
        messages=list(messages), tools=list(tools) if tools else None, add_generation_prompt=add_generation_prompt
    )
    return str(text)


def training_messages(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> list[Message]:
    """The conversation in system, user and assistant turns alone, with the tools in the system message.

    Refuses (NotTaggable) one that could not be read back, or that holds a control token as text.
    """
    for message in messages:
        if any(token in text for text in _texts(message) for token in CONTROL):
            raise NotTaggable("the conversation holds a control token as text")
    first = messages[0]
    if tools and first["role"] != "system":
        raise NotTaggable("a conversation with tools has to begin with a system message")
    return _with_tools(render_tagged(messages), tools)


def turns_with_tools(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> list[Message]:
    """`training_messages` for a model whose own template knows no tools, while a conversation is under way."""
    return _with_tools(tagged_turns(messages), tools)


def _with_tools(tagged: list[Message], tools: Sequence[dict[str, Any]] | None) -> list[Message]:
    if not tools:
        return tagged
    is_told = tagged[0]["role"] == "system"
    first, rest = (tagged[0]["content"] + "\n\n", tagged[1:]) if is_told else ("", tagged)
    return [{"role": "system", "content": first + tools_block(tools)}, *rest]


def tools_block(tools: Sequence[dict[str, Any]]) -> str:
    """The part of the system message that describes the tools."""
    return TOOLS_HEAD + "".join("\n" + _tojson(tool) for tool in tools) + TOOLS_TAIL


def _texts(message: Message) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return [*texts_of(message), *(text for call in calls for text in (call["name"], call["arguments"]))]


def _tojson(value: Any, **options: Any) -> str:
    # As transformers has it: Jinja's own filter would escape HTML.
    return json.dumps(value, ensure_ascii=False, **options)


@cache
def _compiled() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    return environment.from_string(chat_template())
