"""One request to a model, made at most once: found among earlier replies, or sent, written down and then used.

What the calls of an item cost is summed up beside the work: an item that fails has spent it as well.
"""

import asyncio
import contextlib
import functools
import hashlib
import json
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import orjson

from schemas.errors import StageRefused
from schemas.messages import ChatReply, ToolCall, Usage
from schemas.settings.services import is_loopback
from tasks.services.call_store import Begin, Begun, End, Row, process_owner
from tasks.services.chat_reply import REFUSAL
from tasks.services.errors import ServiceError
from tasks.services.response_store import Responses, writer_of

FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5


class BudgetExhausted(StageRefused):
    """The next call could pass the money budget."""


@dataclass
class Spending:
    """What the calls of one item cost."""

    item_id: str = ""
    paid: Usage = field(default_factory=Usage)
    replayed: Usage = field(default_factory=Usage)  # answered from the store, paid for by an earlier request
    seconds: float = 0.0  # that calls took
    by_role: dict[str, Usage] = field(default_factory=dict)  # both, as a first run would pay it
    calls: int = 0

    def count_call(self, role: str, usage: Usage, seconds: float, is_replayed: bool) -> None:
        """A call was answered, or failed."""
        self.calls += 1
        self.seconds += seconds
        self.by_role[role] = self.by_role.get(role, Usage()) + usage
        if is_replayed:
            self.replayed += usage
        else:
            self.paid += usage


# Of the running asyncio task and of those it starts; None: nothing is summed up.
_spending: ContextVar[Spending | None] = ContextVar("spending", default=None)


@contextlib.contextmanager
def spending_of(item_id: str) -> Iterator[Spending]:
    """Sum up what the calls of a block cost."""
    gathered = Spending(item_id)
    token = _spending.set(gathered)
    try:
        yield gathered
    finally:
        _spending.reset(token)


def current_item_id() -> str | None:
    """The item whose calls are being summed up."""
    current = _spending.get()
    return current.item_id if current else None


@dataclass(frozen=True)
class Request:
    """What identifies a request, and what is written down of it."""

    role: str
    endpoint: str
    model: str
    request_hash: str
    sampling_json: str
    is_repeatable: bool  # the same request, sent again, is to have the same answer


def identify(
    role: str,
    endpoint: str,
    base_url: str,
    model: str,
    messages_json: bytes,
    fields: Mapping[str, Any],
    trial: int | None,
    seed: int | None,
) -> Request:
    """The request's identity: server, model, messages, tools and parameters; seed and trial number included.

    Of a server on loopback the port does not count: the offline world has another one in every run. A seed counts also
    where the server takes none. A sampled answer without seed and trial is meant to differ each time.
    """
    sampling = {name: value for name, value in fields.items() if name != "tools"}
    sampled = {"seed": seed, "trial": trial}
    sampling |= {name: value for name, value in sampled.items() if value is not None}
    sampling_json, tools_json = _sorted_json(sampling), _sorted_text(orjson.dumps(fields.get("tools")))
    hashed = hashlib.sha256(f"{_asked_of(base_url, endpoint, model)},{tools_json},{sampling_json}]\n".encode())
    hashed.update(messages_json)
    repeatable = not fields.get("temperature", 1) or seed is not None or trial is not None
    return Request(role, endpoint, model, hashed.hexdigest(), sampling_json, repeatable)


_sorted_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


@functools.lru_cache(maxsize=64)
def _asked_of(base_url: str, endpoint: str, model: str) -> str:
    """A list of questions, as JSON without its end."""
    server = server_of(base_url)
    return _sorted_json([server, endpoint if server == "loopback" else "", model])[:-1]


@functools.lru_cache(maxsize=64)
def _sorted_text(written: bytes) -> str:
    """JSON with its keys sorted; requests of a stage offer the same few lists of tools."""
    return _sorted_json(orjson.loads(written))


@functools.lru_cache(maxsize=64)
def server_of(base_url: str) -> str:
    """A server's part of a key, the same in every run: on loopback the port does not count."""
    address = urlsplit(base_url)
    return "loopback" if is_loopback(base_url) else f"{address.scheme}://{address.netloc}{address.path}"


@dataclass(frozen=True)
class CallLog:
    """Where the calls of a stage's run are written down; goes to workers as it is."""

    store: Responses  # a `CallStore`, or a way to one
    stage: str = ""
    run_id: str = ""
    replay: bool = True
    budget_usd: float | None = None
    run_owner: str = ""  # the process of the command that runs the stage

    async def once(
        self, request: Request, most_usd: float, ask: Callable[[str], Awaitable[ChatReply]], unpaid: Usage
    ) -> ChatReply:
        """The reply: an earlier one, or that of `ask`, which is in the file when this returns.

        `ask` is given the id of the call, which its reply names.
        `most_usd` is what the call may cost at most; `unpaid` is what a failed one counts as.
        """
        repeatable = self.replay and request.is_repeatable
        call_id = request.request_hash if repeatable else f"{request.request_hash}-{uuid.uuid4().hex[:12]}"
        token, writer = secrets.token_hex(16), writer_of(self.store)
        reserved = most_usd, self.budget_usd
        begin = Begin(call_id, request.role, process_owner(), token, *reserved, repeatable, self.run_owner)
        try:
            stored = await self._begin(begin)
        except asyncio.CancelledError:
            writer.write_later(End(call_id, token, was_sent=False))  # it may have begun in the same moment
            raise
        if stored is not None:
            reply = _stored_reply(stored)
            _spend(request.role, reply.usage, 0.0, is_replayed=True)
            return reply
        began_s, asked_at = time.monotonic(), time.time()
        try:
            reply = await ask(call_id)
        except ServiceError as error:
            usage = replace(error.usage or unpaid, requests=error.attempts)
            seconds = time.monotonic() - began_s
            row = self._row(request, f"{call_id}-{uuid.uuid4().hex[:12]}", usage, seconds, asked_at)
            await writer.write(End(call_id, token, row | {"verdict": f"failed_{error.kind}"}))
            _spend(request.role, usage, seconds, is_replayed=False)
            raise
        except BaseException:
            writer.write_later(End(call_id, token))  # given up, such as by an interrupt: nothing is known of it
            raise
        seconds = time.monotonic() - began_s
        row = self._row(request, call_id, reply.usage, seconds, asked_at) | _told(reply)
        await writer.write(End(call_id, token, row))
        _spend(request.role, reply.usage, seconds, is_replayed=False)
        return reply

    async def _begin(self, step: Begin) -> Row | None:
        """The row of an earlier reply, or None when the request may be sent."""
        wait_s = FIRST_WAIT_S
        while True:
            begun: Begun = await writer_of(self.store).write(step)
            if begun.what == "go":
                return None
            if begun.what == "found":
                return begun.row
            if begun.what == "exhausted":
                raise BudgetExhausted(
                    f"the money budget is used up: ${begun.spent_usd:,.4f} of ${step.budget_usd or 0:,.2f} are spent "
                    f"on this lake, and the next call of role '{step.role}' may cost ${step.most_usd:,.4f}; "
                    "to go on, raise models.budget_usd (--budget) and run the same command again"
                )
            await asyncio.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, 1.5 * wait_s)

    def _row(self, request: Request, call_id: str, usage: Usage, seconds: float, asked_at: float) -> Row:
        return {
            "call_id": call_id,
            "request_hash": request.request_hash,
            "stage": self.stage,
            "item_id": current_item_id() or "",
            "run_id": self.run_id,
            "role": request.role,
            "endpoint": request.endpoint,
            "model": request.model,
            "served_model": None,
            "sampling_json": request.sampling_json,
            "verdict": "answered",
            "finish_reason": None,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "requests": usage.requests,
            "seconds": seconds,
            "cost_usd": usage.cost_usd,
            "reply_json": None,
            "asked_at": asked_at,
        }


def _told(reply: ChatReply) -> Row:
    refused = reply.finish_reason in (REFUSAL, "content_filter")
    return {
        "served_model": reply.model,
        "finish_reason": reply.finish_reason,
        "verdict": "refused" if refused else "cut_by_length" if reply.is_cut else "answered",
        "reply_json": orjson.dumps(_plain(reply)).decode(),
    }


def _plain(reply: ChatReply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "tool_calls": [vars(call) for call in reply.tool_calls],
        "finish_reason": reply.finish_reason,
        "reasoning": reply.reasoning,
        "alternatives": [_plain(alternative) for alternative in reply.alternatives],
    }


def _stored_reply(row: Row) -> ChatReply:
    """A reply as it was, but for the requests it took now: none."""
    usage = Usage(row["prompt_tokens"], row["completion_tokens"], row["cost_usd"], 0)

    def read(value: dict[str, Any], used: Usage) -> ChatReply:
        return ChatReply(
            value["text"],
            tuple(ToolCall(**call) for call in value["tool_calls"]),
            value["finish_reason"],
            used,
            row["served_model"] or row["model"],
            value["reasoning"],
            row["call_id"],
            tuple(read(alternative, Usage()) for alternative in value["alternatives"]),
        )

    return read(json.loads(row["reply_json"]), usage)


def _spend(role: str, usage: Usage, seconds: float, is_replayed: bool) -> None:
    current = _spending.get()
    if current is not None:
        current.count_call(role, usage, seconds, is_replayed)
