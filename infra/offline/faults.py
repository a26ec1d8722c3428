"""Faults on demand: what goes wrong, at which service, how often; the same requests meet the same faults every time."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from infra.offline.chance import fraction

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SERVICES = (
    "mapillary", "mapillary-cdn", "mapillary-tiles", "nominatim", "google", "opencage", "tavily", "you", "maps",
    "openai",
)  # fmt: skip
STATUSES = (403, 429, 500, 502, 504)
KINDS = ("latency", "status", "reset", "truncate", "content_type", "invalid_json", "expired_url", "slow_drip")
_DRIP_PIECES = 20


@dataclass(frozen=True)
class Fault:
    """One rule. It strikes by `rate`, a share of requests, or by `at`, numbers of requests of a service (from 0)."""

    service: str  # one of SERVICES, or "*"
    kind: str
    rate: float = 0.0
    at: tuple[int, ...] = ()
    status: int = 500  # for kind "status"
    seconds: float = 0.2  # for "latency" and "slow_drip": how much longer the answer takes

    def __post_init__(self) -> None:
        if self.service not in (*SERVICES, "*"):
            raise ValueError(f"service: {self.service!r}; one of {', '.join(SERVICES)} or * is needed")
        if self.kind not in KINDS:
            raise ValueError(f"kind: {self.kind!r}; one of {', '.join(KINDS)} is needed")
        if self.kind == "status" and self.status not in STATUSES:
            raise ValueError(f"status: {self.status}; one of {STATUSES} is needed")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"rate: {self.rate}; a share between 0 and 1 is needed")
        if self.seconds < 0:
            raise ValueError(f"seconds: {self.seconds}; must not be negative")


class Faults:
    """The faults in force and a tally of what was asked and struck."""

    def __init__(self, rules: list[Fault] | None = None, seed: int = 0) -> None:
        self.replace(rules or [], seed)
        self.requests: Counter[str] = Counter()
        self.statuses: dict[str, Counter[str]] = {}
        self.struck: Counter[str] = Counter()

    @classmethod
    def from_json(cls, text: str) -> Faults:
        """Faults from `{"seed": 0, "rules": [{"service": "tavily", "kind": "status", "status": 429, "rate": 0.1}]}`."""
        faults = cls()
        faults.replace(*parse(json.loads(text)))
        return faults

    def replace(self, rules: list[Fault], seed: int = 0) -> None:
        """Puts other rules in force; counting of requests for `at` and of repeats for `rate` starts anew."""
        self.rules, self.seed = list(rules), seed
        self._count: Counter[str] = Counter()
        self._repeat: Counter[str] = Counter()

    def to_json(self) -> dict[str, Any]:
        """The rules in force."""
        return {"seed": self.seed, "rules": [asdict(rule) for rule in self.rules]}

    def strike(self, service: str, request: str) -> list[Fault]:
        """The faults this request meets.

        A rate is drawn from the request's own text and how often it was sent before, not from the order of arrival:
        any number of concurrent clients meets the same faults, and a retry may pass.
        """
        number, self._count[service] = self._count[service], self._count[service] + 1
        repeat, self._repeat[request] = self._repeat[request], self._repeat[request] + 1
        struck = []
        for i, rule in enumerate(self.rules):
            if rule.service not in ("*", service):
                continue
            if number in rule.at or (rule.rate and fraction(self.seed, "fault", i, request, repeat) < rule.rate):
                struck.append(rule)
                self.struck[f"{service}:{rule.kind}"] += 1
        return struck

    def log(self) -> dict[str, Any]:
        """Counts of requests, statuses and faults per service since the start or the last clearing."""
        return {
            "requests": dict(self.requests),
            "statuses": {service: dict(counts) for service, counts in self.statuses.items()},
            "faults": dict(self.struck),
        }

    def clear_log(self) -> None:
        """Sets all counts of the log to zero."""
        self.requests.clear()
        self.statuses.clear()
        self.struck.clear()


def parse(value: Any) -> tuple[list[Fault], int]:
    """(rules, seed) from JSON; ValueError says which field is wrong."""
    if not isinstance(value, dict) or not isinstance(value.get("rules", []), list):
        raise ValueError('an object like {"seed": 0, "rules": [...]} is needed')
    allowed = {field.name for field in fields(Fault)}
    rules = []
    for i, row in enumerate(value.get("rules", [])):
        if not isinstance(row, dict) or not {"service", "kind"} <= row.keys() <= allowed:
            raise ValueError(f"rules[{i}]: service and kind are needed; allowed are {', '.join(sorted(allowed))}")
        try:
            rules.append(Fault(**{**row, "at": tuple(row.get("at", ()))}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"rules[{i}].{error}") from error
    return rules, int(value.get("seed", 0))


class FaultyWorld:
    """The services behind their faults: the outermost layer, for it must reach the connection itself."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], faults: Faults) -> None:
        self.app, self.faults = app, faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = scope["path"].split("/")[1] if scope["type"] == "http" else ""
        if service not in SERVICES:
            await self.app(scope, receive, send)
            return
        self.faults.requests[service] += 1
        statuses = self.faults.statuses.setdefault(service, Counter())
        # The body is left out: it is not read yet. A token is no part of what is asked.
        query = "&".join(
            p for p in scope["query_string"].decode("latin-1").split("&") if not p.startswith("access_token=")
        )
        struck = self.faults.strike(service, f"{scope['method']} {scope['path']}?{query}")
        scope["faults"] = {rule.kind for rule in struck}

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses[str(message["status"])] += 1
            await send(message)

        kinds = {rule.kind: rule for rule in struck}
        if "latency" in kinds:
            await asyncio.sleep(kinds["latency"].seconds)
        if "reset" in kinds:
            _reset(receive)
            return
        if "status" in kinds:
            await _answer(counted, kinds["status"].status, *error_body(service, kinds["status"].status))
            return
        broken = next(
            (kinds[kind] for kind in ("truncate", "invalid_json", "content_type", "slow_drip") if kind in kinds), None
        )
        if broken is None:
            await self.app(scope, receive, counted)
            return
        await self._break(broken, scope, receive, counted)

    async def _break(self, rule: Fault, scope: Scope, receive: Receive, send: Send) -> None:
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
        if rule.kind == "invalid_json":
            sent = sent[: max(1, len(sent) * 2 // 3)]
        if rule.kind == "content_type":
            headers = [(k, b"text/html; charset=utf-8" if k.lower() == b"content-type" else v) for k, v in headers]
        headers.append((b"content-length", str(len(sent)).encode()))
        await send({**start, "headers": headers})
        if rule.kind == "truncate":
            await send({"type": "http.response.body", "body": sent[: len(sent) // 2], "more_body": True})
            await asyncio.sleep(0.01)  # let the half go out before the line is cut
            _cut(receive)
        elif rule.kind == "slow_drip":
            step = max(1, len(sent) // _DRIP_PIECES)
            for i in range(0, len(sent), step):
                await send({"type": "http.response.body", "body": sent[i : i + step], "more_body": True})
                await asyncio.sleep(rule.seconds / _DRIP_PIECES)
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "http.response.body", "body": sent})


def error_body(service: str, status: int) -> tuple[bytes, str, dict[str, str]]:
    """(body, content type, headers) of a service's own error answer."""
    if service in ("mapillary", "mapillary-tiles"):
        if status in (403, 429):
            error = {
                "message": "Application request limit reached",
                "type": "MLYApiException",
                "code": 4,
                "is_transient": True,
            }
        else:
            error = {
                "message": "Service temporarily unavailable",
                "type": "MLYApiException",
                "code": 2,
                "is_transient": True,
            }
        return (
            json.dumps({"error": {**error, "fbtrace_id": "AoFFl1neW0r1dFau1tAAAAA"}}).encode(),
            "application/json",
            {},
        )
    if service == "openai":
        if status == 429:
            error = {
                "message": "Rate limit reached for requests",
                "type": "requests",
                "param": None,
                "code": "rate_limit_exceeded",
            }
            return json.dumps({"error": error}).encode(), "application/json", {"retry-after": "1"}
        error = {
            "message": "The server had an error while processing your request.",
            "type": "server_error",
            "param": None,
            "code": None,
        }
        return json.dumps({"error": error}).encode(), "application/json", {}
    if service == "tavily":
        text = "Your request has been blocked due to excessive requests." if status == 429 else "Internal Server Error"
        return (
            json.dumps({"detail": {"error": text}}).encode(),
            "application/json",
            {"retry-after": "1"} if status == 429 else {},
        )
    reason = {403: "Forbidden", 429: "Too Many Requests", 502: "Bad Gateway", 504: "Gateway Time-out"}.get(
        status, "Internal Server Error"
    )
    return f"<html><head><title>{status} {reason}</title></head></html>".encode(), "text/html", {}


async def _answer(send: Send, status: int, body: bytes, content_type: str, extra: dict[str, str]) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in extra.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _transport(receive: Receive) -> asyncio.Transport:
    # uvicorn hands each request the bound method of an object that holds the connection.
    return receive.__self__.transport  # type: ignore[attr-defined]


def _reset(receive: Receive) -> None:
    """Ends the connection with RST: a lingering time of zero drops what is unsent."""
    transport = _transport(receive)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _cut(receive: Receive) -> None:
    _transport(receive).abort()
