"""The one environment: a picture, tools and a prompt, in which any model is asked to locate the picture.

Synthesis, Pass@K, agentic RL, evaluation and `geofix locate` all use it; they differ in who replies. A reply goes in
with `step`, tools are run, and what they return stands in `messages` when the next reply is asked for. Every end has
a reason. The environment knows neither the truth nor a name of the picture, so it can leak none.
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.messages import (
    ChatReply,
    Message,
    ToolCall,
    Usage,
    image_part,
    image_reference,
    json_object,
    text_part,
)
from tasks.agent.picture import Picture
from tasks.agent.prompt import Budgets, Prompt
from tasks.agent.tagged import split_thought
from tasks.agent.toolbox import CallRecord, Toolbox
from tasks.imaging.images import to_data_uri

# Why a trajectory ended.
ANSWERED = "answered"  # the model wrote a reply without a call
CALL_BUDGET = "call_budget"  # it asked for more calls than it may make
TURN_BUDGET = "turn_budget"
TOKEN_BUDGET = "token_budget"
TIME_BUDGET = "time_budget"
MONEY_BUDGET = "money_budget"
REPLY_CUT = "reply_cut"  # the server ended the reply at its length limit
EMPTY_REPLY = "empty_reply"
TOOL_OUTAGE = "tool_outage"  # a service failed, in a run that is to be repeated then

MAX_REPLY_CHARS = 200_000
MAX_NAME_CHARS = 100

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")

Ask = Callable[[list[Message], list[dict[str, Any]] | None], Awaitable[ChatReply]]


@dataclass(frozen=True)
class Step:
    """What a reply led to."""

    done: bool
    end_reason: str = ""
    calls: tuple[CallRecord, ...] = ()


@dataclass(frozen=True)
class Trajectory:
    """A finished conversation: its messages as stored, what was offered and called, and why it ended."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    calls: tuple[CallRecord, ...] = ()
    final_text: str = ""  # the answer's message; empty if there is none
    end_reason: str = ANSWERED
    usage: Usage = Usage()
    observations: tuple[str, ...] = ()  # what an Observer said of each picture, where one was asked
    pictures: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)  # shown, by digest

    @property
    def outage(self) -> str:
        """The kind of the first failure of a service, or an empty text."""
        return next((call.outage for call in self.calls if call.outage), "")

    @property
    def turns(self) -> int:
        return sum(message["role"] == "assistant" for message in self.messages)


class Environment:
    """One picture under one prompt. `reset` begins, `step` goes on."""

    def __init__(
        self,
        picture: Picture,
        tools: Toolbox,
        prompt: Prompt,
        budgets: Budgets | None = None,
        keep_picture: Callable[[bytes], str] | None = None,
        *,
        stop_at_outage: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_picture` stores a JPEG and returns its sha256, by which the stored messages name it."""
        self.picture, self.prompt = picture, prompt
        self.budgets = budgets or prompt.budgets
        shown = tools if self.budgets.results is None else tools.showing(self.budgets.results)
        self.tools = shown.limited(prompt.search_results, prompt.result_chars)
        self._keep, self._clock, self._stop_at_outage = keep_picture or _digest, clock, stop_at_outage
        self._offered = prompt.tool_schemas() or None
        self._view_sha256 = keep_picture(picture.view) if keep_picture else picture.view_sha256
        self.reset()

    def reset(self) -> list[Message]:
        """Begin again; returns the opening messages in stored form."""
        self.pictures: dict[str, bytes] = {self._view_sha256: self.picture.view}
        self._uris: dict[str, str] = {}
        self._sent: list[tuple[Message, Message]] = []  # messages as stored, and as sent
        self.calls: list[CallRecord] = []
        self.usage = Usage()
        self.end_reason, self.final_text, self._turns = "", "", 0
        self._context_tokens = 0
        self._began_s = self._clock()
        self.messages: list[Message] = self.prompt.opening(image_part(self._view_sha256), self.budgets)
        return self.messages

    @property
    def done(self) -> bool:
        return bool(self.end_reason)

    @property
    def seconds_left(self) -> float | None:
        """Wall time left of the budget; None without one."""
        spent = self._clock() - self._began_s
        return None if self.budgets.seconds is None else max(0.0, self.budgets.seconds - spent)

    def offered(self) -> list[dict[str, Any]] | None:
        """The tools of the next request. The same in every turn: a prompt that changes is another prompt."""
        return self._offered

    def request(self) -> list[Message]:
        """The messages as a chat server takes them: pictures as data URIs, arguments always a JSON object."""
        for sha256 in self.pictures.keys() - self._uris.keys():
            is_view = sha256 == self._view_sha256
            self._uris[sha256] = self.picture.view_uri if is_view else to_data_uri(self.pictures[sha256])
        sent = self._sent
        for position, message in enumerate(self.messages):
            # A conversation grows at its end: only what is new is written.
            if position == len(sent):
                sent.append((message, _sent(message, self._uris)))
            elif sent[position][0] is not message:
                sent[position] = (message, _sent(message, self._uris))
        return [written for _, written in sent[: len(self.messages)]]

    async def step(self, reply: ChatReply) -> Step:
        """Take a reply: run its calls, or end with its answer. Whatever it holds, this returns."""
        if self.done:
            raise ValueError(f"the trajectory has ended ({self.end_reason}): reset it first")
        self.usage += reply.usage
        self._context_tokens = reply.usage.prompt_tokens + reply.usage.completion_tokens or self._context_tokens
        self._turns += 1
        calls = tuple(
            ToolCall(f"call_{len(self.calls) + number}", call.name[:MAX_NAME_CHARS], _plain(call.arguments))
            for number, call in enumerate(reply.tool_calls, start=1)
        )
        message = as_message(reply, calls)
        self.messages.append(message)
        if reply.finish_reason == "length":
            return self._end(REPLY_CUT)
        if not calls:
            if not message["content"].strip():
                return self._end(EMPTY_REPLY)
            self.final_text = message["content"]
            return self._end(ANSWERED)
        if len(self.calls) + len(calls) > self.budgets.calls:
            # The message stays as evidence; there is nothing left to answer it with.
            return self._end(CALL_BUDGET)
        made: list[CallRecord] = []
        for call in calls:
            result = await self.tools.call(call, self.picture, self.prompt.tools)
            made.append(result.record)
            self.calls.append(result.record)
            content: Any = result.text
            if result.picture is not None:
                content = [text_part(result.text), self._stored(result.picture)]
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            if result.record.outage and self._stop_at_outage:
                return self._end(TOOL_OUTAGE, made)
        return self._end(self._used_up(), made)

    def end(self, reason: str) -> None:
        """End from outside, such as when the time for a reply is over."""
        self.end_reason = self.end_reason or reason

    def trajectory(self, observations: Sequence[str] = ()) -> Trajectory:
        """What has happened so far."""
        return Trajectory(
            tuple(self.messages),
            tuple(self.offered() or ()),
            tuple(self.calls),
            self.final_text,
            self.end_reason,
            self.usage,
            tuple(observations),
            dict(self.pictures),
        )

    def _used_up(self) -> str:
        """The first budget that leaves no room for another reply, or an empty text."""
        budgets, used = self.budgets, self.usage
        if self._turns >= budgets.turns:
            return TURN_BUDGET
        if budgets.tokens is not None and used.prompt_tokens + used.completion_tokens >= budgets.tokens:
            return TOKEN_BUDGET
        if budgets.context is not None and self._context_tokens >= budgets.context:
            return TOKEN_BUDGET
        if budgets.cost_usd is not None and (used.cost_usd or 0.0) >= budgets.cost_usd:
            return MONEY_BUDGET
        return TIME_BUDGET if self.seconds_left == 0.0 else ""

    def _end(self, reason: str, calls: Sequence[CallRecord] = ()) -> Step:
        self.end_reason = reason
        return Step(bool(reason), reason, tuple(calls))

    def _stored(self, jpeg: bytes) -> dict[str, Any]:
        sha256 = self._keep(jpeg)
        self.pictures[sha256] = jpeg
        return image_part(sha256)


async def run_agent(
    environment: Environment, ask: Ask, watch: Callable[[Message], None] = lambda message: None
) -> Trajectory:
    """The whole conversation: `ask` is given the messages and the tools and replies; `watch` sees each new message.

    A model server that fails raises; a reply that takes longer than the time budget ends the trajectory.
    """
    environment.reset()
    seen = 0
    while not environment.done:
        for message in environment.messages[seen:]:
            watch(message)
        seen = len(environment.messages)
        try:
            reply = await asyncio.wait_for(ask(environment.request(), environment.offered()), environment.seconds_left)
        except TimeoutError:
            if environment.seconds_left != 0.0:
                raise  # the server's own
            environment.end(TIME_BUDGET)
            break
        await environment.step(reply)
    for message in environment.messages[seen:]:
        watch(message)
    return environment.trajectory(getattr(ask, "observations", ()))


def as_message(reply: ChatReply, calls: Sequence[ToolCall]) -> Message:
    """The reply as stored: the thought inside <think> tags, then the answer; the calls beside it.

    Reasoning that a server sends apart from the text is the thought, and so are words beside a call, tags or none.
    """
    thought, reply_text = split_thought(reply.text[:MAX_REPLY_CHARS])
    if not thought:
        thought = reply.reasoning[:MAX_REPLY_CHARS].strip()
    if not thought and calls:
        thought, reply_text = reply_text, ""
    message: Message = {"role": "assistant", "content": (f"<think>{thought}</think>" if thought else "") + reply_text}
    if calls:
        message["tool_calls"] = [call.message_part() for call in calls]
    return message


def _plain(arguments: str) -> str:
    """Arguments as the chat template writes an object; what is none stays as it is, cut to a length."""
    value = json_object(arguments) if len(arguments) <= MAX_REPLY_CHARS else None
    if value is None:
        return arguments[:MAX_REPLY_CHARS]
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return arguments


def _sent(message: Message, uris: dict[str, str]) -> Message:
    content = message["content"]
    if isinstance(content, list):
        content = [_sent_part(part, uris) for part in content]
    sent = {**message, "content": content}
    if "tool_calls" in message:
        sent["tool_calls"] = [_sent_call(call) for call in message["tool_calls"]]
    return sent


def _sent_part(part: dict[str, Any], uris: dict[str, str]) -> dict[str, Any]:
    reference = image_reference(part)
    if reference is None:
        return part
    return {"type": "image_url", "image_url": {"url": uris[reference[0]]}}


def _sent_call(call: dict[str, Any]) -> dict[str, Any]:
    """The call as it is shown again. Servers refuse a request for a name or arguments that cannot be a call's."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    is_object = json_object(arguments) is not None
    function = {"name": _NOT_A_NAME.sub("_", name)[:64] or "_", "arguments": arguments if is_object else "{}"}
    return {**call, "function": function}


def _digest(jpeg: bytes) -> str:
    return hashlib.sha256(jpeg).hexdigest()
