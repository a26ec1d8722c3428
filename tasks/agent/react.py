"""The multi-agent ReAct loop (SpotAgent 3.2.1): an Observer that sees, a Tool-Call agent that reasons and acts.

The Observer describes the picture, d_vis = obs(image, prompt, zoom box or none). The Tool-Call agent reads d_vis and
the history and writes thought and action, at most T_max tool calls. What comes out is one conversation as a single
agent would have had it: it sees the picture, thinks d_vis and the thought, calls a tool, reads the response.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.messages import ChatReply, Message, ToolCall, Usage, image_part, text_part
from tasks.agent.prompts import spotagent as prompts
from tasks.agent.thought import split_thought, without_tags
from tasks.agent.tools import Finds, Geocodes, Picture, SpotTools, ToolMistake, ToolOutput, as_text
from tasks.agent.toolspec import BadArguments, ToolSpec, tool_spec
from tasks.imaging.images import to_data_uri

_SPECS = [tool_spec(m) for m in (SpotTools.image_zoom_in_tool, SpotTools.search_web, SpotTools.maps_geocode)]
TOOLS: dict[str, ToolSpec] = {spec.name: spec for spec in _SPECS}


class Completes(Protocol):
    """A chat client."""

    async def complete(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
        temperature: float = 0,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> ChatReply: ...


@dataclass(frozen=True)
class AgentOptions:
    """How the loop is run."""

    observer: str
    planner: str
    temperature: float = 0.0
    seed: int | None = None
    max_tool_calls: int = 6  # T_max
    max_tokens: int | None = None
    result_chars: int = 6000
    max_pixels: int = 2_000_000
    min_pixels: int = 40_000
    tools: tuple[str, ...] = tuple(TOOLS)


@dataclass(frozen=True)
class CallRecord:
    """What became of one tool call."""

    name: str
    well_formed: bool
    succeeded: bool
    error: str = ""


@dataclass(frozen=True)
class Trajectory:
    """A finished conversation: its messages as stored, its calls, and the agent's last words."""

    messages: tuple[Message, ...]
    calls: tuple[CallRecord, ...]
    final_text: str  # empty if the agent never came to an end
    over_budget: bool = False  # it asked for more calls than it may
    usage: Usage = field(default_factory=Usage)


@dataclass
class _Run:
    """One conversation on its way: what the Tool-Call agent reads, and what is stored."""

    told: list[Message]
    stored: list[Message]
    calls: list[CallRecord] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    over_budget: bool = False


async def locate(
    picture: Picture,
    chat: Completes,
    search: Finds,
    geocoder: Geocodes,
    options: AgentOptions,
    keep_picture: Callable[[bytes], str],
) -> Trajectory:
    """The agent's attempt to find out where a picture was taken.

    `keep_picture` stores a JPEG and returns its sha256, by which the stored messages name it. The agent is given the
    picture's view and nothing else: no name, no id, no metadata. A service that is down raises ServiceError; what the
    agent does wrong is answered as data and recorded.
    """
    run = _Run([], [])

    async def observe(view: bytes, words: str) -> str:
        seen = {"type": "image_url", "image_url": {"url": to_data_uri(view)}}
        messages: list[Message] = [
            {"role": "system", "content": prompts.OBSERVER},
            {"role": "user", "content": [seen, text_part(words)]},
        ]
        reply = await chat.complete(options.observer, messages, max_tokens=options.max_tokens)
        run.usage += reply.usage
        return reply.text.strip()

    description = await observe(picture.view, prompts.OBSERVE_WHOLE)
    rules = {"max_tool_calls": options.max_tool_calls}
    question = prompts.planner_question(description, picture.width, picture.height)
    run.told = [
        {"role": "system", "content": prompts.PLANNER.format(**rules)},
        {"role": "user", "content": question},
    ]
    run.stored = [
        {"role": "system", "content": prompts.SYSTEM.format(**rules)},
        prompts.picture_question(image_part(keep_picture(picture.view))),
    ]
    tools = SpotTools(
        picture,
        lambda region: observe(region, prompts.OBSERVE_REGION),
        search,
        geocoder,
        max_pixels=options.max_pixels,
        min_pixels=options.min_pixels,
    )
    final_text = await _converse(run, chat, tools, options, description, keep_picture)
    return Trajectory(tuple(run.stored), tuple(run.calls), final_text, run.over_budget, run.usage)


async def _converse(
    run: _Run,
    chat: Completes,
    tools: SpotTools,
    options: AgentOptions,
    description: str,
    keep_picture: Callable[[bytes], str],
) -> str:
    """Thought and action in turn until the agent answers or has used its calls; returns the answer's text."""
    offered = [TOOLS[name].openai() for name in options.tools]
    seen = without_tags(description)
    while True:
        budget = options.max_tool_calls - len(run.calls)
        reply = await chat.complete(
            options.planner,
            run.told,
            tools=offered if budget > 0 else None,
            temperature=options.temperature,
            seed=options.seed,
            max_tokens=options.max_tokens,
        )
        run.usage += reply.usage
        run.stored.append(_as_single_agent(reply, seen))
        seen = ""
        if not reply.tool_calls:
            return reply.text
        if len(reply.tool_calls) > budget:
            # Its last message stays as evidence; there is nothing left to answer it with.
            run.over_budget = True
            return ""
        run.told.append(_as_history(reply))
        for call in reply.tool_calls:
            record, text, region = await _call(tools, call, options)
            run.calls.append(record)
            answer: Message = {"role": "tool", "tool_call_id": call.id, "content": text}
            run.told.append(answer)
            content = [text_part(text), image_part(keep_picture(region))] if region else text
            run.stored.append({**answer, "content": content})


async def _call(tools: SpotTools, call: ToolCall, options: AgentOptions) -> tuple[CallRecord, str, bytes | None]:
    """What became of a call, what the agent reads of it, and the region it sees."""
    spec = TOOLS.get(call.name) if call.name in options.tools else None
    try:
        if spec is None:
            raise BadArguments(f"there is no tool of this name; there are {', '.join(options.tools)}")
        arguments = spec.arguments(call.arguments)
    except BadArguments as error:
        text = as_text({"error": str(error)}, options.result_chars)
        return CallRecord(call.name, False, False, str(error)), text, None
    try:
        output: ToolOutput = await getattr(tools, spec.name)(**arguments)
    except ToolMistake as error:
        text = as_text({"error": str(error)}, options.result_chars)
        return CallRecord(call.name, True, False, str(error)), text, None
    return CallRecord(call.name, True, True), as_text(output.value, options.result_chars), output.picture


def _as_single_agent(reply: ChatReply, description: str) -> Message:
    """The reply as stored: the thought inside <think> tags, led by what the Observer saw if that is new."""
    thought, said = split_thought(reply.text)
    if not thought and reply.tool_calls:
        thought, said = said, ""  # words beside a call are its reason, with or without tags
    whole = "\n\n".join(part for part in (description, thought) if part)
    message = reply.message()
    message["content"] = (f"<think>{whole}</think>" if whole else "") + said
    return message


def _as_history(reply: ChatReply) -> Message:
    """The reply as the model is shown it again. Arguments that are no JSON object would make servers refuse it all."""
    message = reply.message()
    for part in message["tool_calls"]:
        function = part["function"]
        if not _is_object(function["arguments"]):
            function["arguments"] = "{}"
    return message


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def stable_seed(*parts: object) -> int:
    """A seed that follows from the parts: the same on every machine and in every run, within 31 bits."""
    text = json.dumps([str(part) for part in parts]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
