"""The layer around the services that makes faults happen: outermost, for it must reach the connection itself."""

import asyncio
import hashlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from functools import partial
from typing import Any

from infra.offline.faults import SERVICES, Fault, Faults, change_json, error_answer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_HELD = ("duplicate_ids", "drift", "truncate", "invalid_json", "content_type", "slow_drip")
# Keys, and the parts of a signed address that differ from one signature to the next.
_SECRETS = ("access_token=", "key=", "sig=", "se=", "st=")
_DRIP_PIECES = 20
_HARMLESS = ("latency", "slow_drip", "clock_skew")  # the answer still comes


def clock(scope: Scope) -> float:
    """The time as the service that answers has it: a skewed clock is ahead or behind."""
    rule = scope.get("faults", {}).get("clock_skew")
    return time.time() + (rule.seconds if rule is not None else 0.0)


def is_deleted(scope: Scope, image_id: str) -> bool:
    """Whether the service that answers has lost an image."""
    check = scope.get("is_deleted")
    return bool(check and check(image_id))


def change_count(scope: Scope, image_id: str) -> int:
    """How often the service that answers has replaced an image's bytes."""
    count = scope.get("changes")
    return count(image_id) if count else 0


class FaultyWorld:
    """The services behind their faults."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], faults: Faults) -> None:
        self.app, self.faults = app, faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service = scope["path"].split("/")[1]
        if service not in SERVICES:
            await self.app(scope, receive, partial(_dated, send, scope))
            return
        self.faults.requests[service] += 1
        statuses = self.faults.statuses.setdefault(service, Counter())
        connection = receive
        request = _request_text(scope)
        if self.faults.rules:
            if scope["method"] == "POST":
                # The question is in the body: without it, all questions to a model would be one request.
                body, receive = await _read_ahead(receive)
                request += " " + hashlib.blake2b(body, digest_size=16).hexdigest()
            scope["is_deleted"] = partial(self.faults.is_deleted, service)
            scope["changes"] = partial(self.faults.changes, service)
        struck = self.faults.strike(service, request)
        kinds = {rule.kind: rule for rule in struck}  # of two rules of a kind the later one counts, but for drifts
        drifts = [rule for rule in struck if rule.kind == "drift"]
        scope["faults"] = kinds

        harm = next((kind for kind in kinds if kind not in _HARMLESS), "")
        answered = 0

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
                statuses[str(answered)] += 1
            elif scope["method"] != "HEAD":
                self.faults.sent_bytes[service] += len(message.get("body", b""))
            await _dated(send, scope, message)

        if "latency" in kinds:
            await asyncio.sleep(kinds["latency"].seconds)
        if "reset" in kinds:
            _reset(connection)
        elif "status" in kinds:
            status, answer, kind, headers = error_answer(service, kinds["status"].status)
            if kinds["status"].retry_after is not None:
                headers = {**headers, "retry-after": str(kinds["status"].retry_after)}
            await _answer(counted, status, answer, kind, headers)
        elif any(kind in kinds for kind in _HELD):
            await self._break(kinds, drifts, request, scope, receive, counted, connection)
        else:
            await self.app(scope, receive, counted)
        gone = _transport(connection).is_closing()  # the client had closed the connection
        fine = "gone" if gone else "ok"
        self.faults.note(service, request, harm or (fine if answered in (200, 206) else str(answered)))

    async def _break(
        self, kinds: dict[str, Fault], drifts: list[Fault], request: str, scope: Scope, receive: Receive, send: Send,
        connection: Receive,
    ) -> None:  # fmt: skip
        start: MutableMapping[str, Any] = {}
        body = bytearray()

        async def hold(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.extend(message.get("body", b""))

        await self.app(scope, receive, hold)
        headers = [(k, v) for k, v in start["headers"] if k.lower() not in (b"content-length", b"transfer-encoding")]
        sent = bytes(body)
        if start["status"] == 200:
            sent = change_json(sent, kinds.get("duplicate_ids"), drifts, request)
        if "invalid_json" in kinds:
            sent = sent[: max(1, len(sent) * 2 // 3)]
        if "content_type" in kinds:
            headers = [(k, b"text/html; charset=utf-8" if k.lower() == b"content-type" else v) for k, v in headers]
        headers.append((b"content-length", str(len(sent)).encode()))
        await send({**start, "headers": headers})
        if "truncate" in kinds:
            await send({"type": "http.response.body", "body": sent[: len(sent) // 2], "more_body": True})
            await asyncio.sleep(0.01)  # let the half go out before the line is cut
            _transport(connection).abort()
        elif "slow_drip" in kinds:
            step = max(1, len(sent) // _DRIP_PIECES)
            for i in range(0, len(sent), step):
                await send({"type": "http.response.body", "body": sent[i : i + step], "more_body": True})
                await asyncio.sleep(kinds["slow_drip"].seconds / _DRIP_PIECES)
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "http.response.body", "body": sent})


def _request_text(scope: Scope) -> str:
    """The request as one line, without keys and signatures: faults do not depend on the client."""
    parts = scope["query_string"].decode("latin-1").split("&")
    request_line = (
        f"{scope['method']} {scope['path']}?{'&'.join(part for part in parts if not part.startswith(_SECRETS))}"
    )
    if scope["path"].startswith("/blob/"):  # a scene is read in many pieces: each is a request of its own
        request_line += " " + dict(scope["headers"]).get(b"range", b"").decode("latin-1")
    return request_line.rstrip()


async def _read_ahead(receive: Receive) -> tuple[bytes, Receive]:
    """The whole body, and a stream that gives it once more."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body.extend(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    is_sent = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return bytes(body), again


async def _dated(send: Send, scope: Scope, message: MutableMapping[str, Any]) -> None:
    # The server's own Date header is switched off: only here is it known how wrong the clock goes.
    if message["type"] == "http.response.start":
        date = (b"date", formatdate(clock(scope), usegmt=True).encode())
        message = {**message, "headers": [*message.get("headers", ()), date]}
    await send(message)


async def _answer(send: Send, status: int, body: bytes, content_type: str, extra: dict[str, str]) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in extra.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _transport(receive: Receive) -> asyncio.Transport:
    # uvicorn hands each request the bound method of an object that holds the connection.
    transport: asyncio.Transport = receive.__self__.transport  # type: ignore[attr-defined]
    return transport


def _reset(receive: Receive) -> None:
    """Ends the connection with RST: a lingering time of zero drops what is unsent."""
    transport = _transport(receive)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
