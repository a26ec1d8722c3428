"""A scripted HTTP server on a real socket: it answers exactly the bytes a test writes, broken ones included."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr

from schemas.settings.services import ChatEndpoint, Endpoint
from tasks.services.transport import Connection

SECRET = "MLY|4242424242|deadbeefdeadbeefdeadbeefdeadbeef"


@dataclass
class Reply:
    """What to send back for one request; raw bytes, so that lengths and types can lie."""

    status: int = 200
    body: bytes = b"{}"
    content_type: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # Content-Length, where it shall not be the true one
    delay_s: float = 0
    hang_up: bool = False  # close without a word
    stall_s: float = 0  # after what is sent, before the connection closes

    def raw(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Something"]
        lines += [f"Content-Type: {self.content_type}"] if self.content_type is not None else []
        lines += [f"Content-Length: {len(self.body) if self.length is None else self.length}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Script:
    """The replies still to give (the last one repeats) and the requests that came."""

    port: int = 0
    replies: list[Reply] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    slept_s: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    # instead of replies: status and JSON for a request, or the whole reply
    answers: Callable[["Asked"], tuple[int, Any] | Reply] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def says(self, *replies: Reply) -> "Script":
        self.replies = list(replies)
        return self

    def says_json(self, value: Any, status: int = 200, **options: Any) -> "Script":
        return self.says(Reply(status, json.dumps(value).encode(), **options))

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)

    def connection(self, service: str = "mapillary", **settings: Any) -> Connection:
        kind = ChatEndpoint if service == "chat" else Endpoint
        endpoint = kind(**{"base_url": self.url, "timeout_s": 2, "total_timeout_s": 2, **settings})
        return Connection(service, endpoint, SecretStr(SECRET))

    def client(self, make: Callable[..., Any], service: str = "mapillary", **settings: Any) -> Any:
        """A client of this server that does not really sleep and whose jitter is always at its ceiling."""
        return make(self.connection(service, **settings), sleep=self.sleep, uniform=lambda _, high: high)

    def _next(self, asked: Asked) -> Reply:
        if self.answers is not None:
            answer = self.answers(asked)
            return answer if isinstance(answer, Reply) else Reply(answer[0], json.dumps(answer[1]).encode())
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in rest)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append(Asked(method, target, headers, body))
        reply = self._next(self.asked[-1])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(reply.delay_s)
        self.at_once -= 1  # before it is sent: the client may ask again as soon as it has the answer
        if not reply.hang_up:
            writer.write(reply.raw())
            await writer.drain()
        await asyncio.sleep(reply.stall_s)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    script = Script()
    listener = await asyncio.start_server(script._serve, "127.0.0.1", 0)
    script.port = listener.sockets[0].getsockname()[1]
    yield script
    listener.close()


@pytest.fixture
def reply() -> type[Reply]:
    return Reply


@pytest.fixture
def secret() -> str:
    return SECRET


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Makes every name of the running loop lead to the given addresses, without proxies; returns who was looked up.

    Several tuples are the answers one after the other, of which the last one stays.
    """

    def lead_to(*addresses: str | tuple[str, ...]) -> list[str]:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        answers = [one if isinstance(one, tuple) else (one,) for one in addresses]
        asked: list[str] = []

        async def lookup(host: Any, port: Any, **_: Any) -> list[Any]:
            text = host.decode() if isinstance(host, bytes) else str(host)
            asked.append(text)
            found = answers[min(len(asked), len(answers)) - 1] if answers else ()
            if not found:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return [
                (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
                for one in found
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        return asked

    return lead_to
