"""Proxies, private authorities, stalled servers and other event loops, over real sockets: one clear line each."""

import asyncio
import json
import logging
import socket
import ssl
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from schemas.errors import StageRefused
from schemas.settings.services import ChatEndpoint, Endpoint
from tasks.services import Chat, Geocoder, ServiceError, transport
from tasks.services.http import HttpClient
from tasks.services.transport import Connection, NotPublic

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
COMPLETION = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}}
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *map(str.upper, PROXIES), "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def client(base_url: str, key: str | None = None, **settings: Any) -> HttpClient:
    endpoint = Endpoint(**{"base_url": base_url, "max_attempts": 1, "timeout_s": 5, "total_timeout_s": 5, **settings})
    return HttpClient(Connection("service", endpoint, SecretStr(key) if key else None))


async def failure(awaitable: Awaitable[Any]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    assert "\n" not in str(caught.value)
    return caught.value


class TestProxies:
    @pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
    async def test_a_service_is_asked_through_it(self, server: Any, monkeypatch: Any, name: str) -> None:
        server.says_json({"a": 1})
        monkeypatch.setenv(name, server.url.replace("://", "://user:canary-password@"))
        value, _ = await client("http://service.example.org/v1").request_json("GET", "/x", params={"q": 1})
        assert value == {"a": 1}
        (asked,) = server.asked
        assert asked.target == "http://service.example.org/v1/x?q=1" and asked.headers["host"] == "service.example.org"
        assert asked.headers["proxy-authorization"].startswith("Basic ")

    async def test_https_goes_through_a_tunnel(self, server: Any, reply: Any, monkeypatch: Any) -> None:
        server.says(reply(502, b"no way"))
        monkeypatch.setenv("HTTPS_PROXY", server.url)
        error = await failure(client("https://service.example.org").get("/x"))
        assert (server.asked[0].method, server.asked[0].target) == ("CONNECT", "service.example.org:443")
        assert error.kind == "outage" and error.retryable and f"the proxy {server.url}" in error.message

    async def test_a_chat_server_is_asked_through_it(self, server: Any, monkeypatch: Any) -> None:
        server.says_json(COMPLETION)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        endpoint = ChatEndpoint(base_url="http://models.example.org/v1", key_env=None)
        reply = await Chat(Connection("chat", endpoint)).complete("m", HELLO)
        assert reply.text == "hello"
        assert server.asked[0].target == "http://models.example.org/v1/chat/completions"
        assert "authorization" not in server.asked[0].headers, "there is no key"

    @pytest.mark.parametrize(
        ("host", "excepted"),
        [
            ("10.1.2.3", "10.0.0.0/8"),
            ("a.internal.example.org", ".internal.example.org"),
            ("a.internal.example.org", "other.org, internal.example.org"),
            ("inside.example.org", "*"),
        ],
    )
    async def test_no_proxy_names_hosts_suffixes_and_networks(
        self, server: Any, monkeypatch: Any, host: str, excepted: str
    ) -> None:
        server.says_json({})
        monkeypatch.setenv("HTTP_PROXY", server.url)
        monkeypatch.setenv("NO_PROXY", excepted)
        await failure(client(f"http://{host}:9", connect_timeout_s=0.2).get("/x"))
        assert server.asked == []
        await client("http://192.168.7.7:9").get("/x") if excepted != "*" else None
        assert len(server.asked) == (excepted != "*")

    async def test_our_own_machine_is_never_asked_through_it(self, server: Any, monkeypatch: Any) -> None:
        server.says_json({"a": 1})
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            assert (await client(url).request_json("GET", "/x"))[0] == {"a": 1}

    async def test_a_dead_one_is_named(self, monkeypatch: Any) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://user:canary-password@127.0.0.1:9")
        error = await failure(client("http://service.example.org").get("/x"))
        assert error.kind == "outage" and error.retryable
        assert "the proxy http://127.0.0.1:9 does not connect us" in error.message and "canary" not in str(error)

    async def test_one_that_speaks_something_else_is_refused(self, monkeypatch: Any) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://user:canary@127.0.0.1:1080")
        with pytest.raises(StageRefused, match=r"the proxy socks5://127.0.0.1:1080 cannot be used") as caught:
            await client("http://service.example.org").get("/x")
        assert "canary" not in str(caught.value)


def certificate(folder: Path, name: str) -> Path:
    """A key and a certificate for localhost, signed by itself, in one file."""
    from datetime import UTC, datetime, timedelta

    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "authority.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


async def answer_json(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, value: Any = None) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        writer.close()
        return
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    await reader.readexactly(length)
    body = json.dumps(COMPLETION if b"/chat/" in head else {"a": 1} if value is None else value).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()


class TestCertificates:
    async def test_a_private_authority_is_trusted_by_its_file_only(self, monkeypatch: Any, tmp_path: Path) -> None:
        file = certificate(tmp_path, "localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        async with listening(answer_json, context) as port:
            asking = client(f"https://localhost:{port}")
            error = await failure(asking.get("/x"))
            assert error.kind == "outage" and error.retryable
            assert "the certificate is not trusted (self" in error.message and "SSL_CERT_FILE" in error.message
            await asking.close()
            monkeypatch.setenv("SSL_CERT_FILE", str(file))
            assert (await asking.request_json("GET", "/x"))[0] == {"a": 1}
            chat = Chat(Connection("chat", ChatEndpoint(base_url=f"https://localhost:{port}/v1", key_env=None)))
            assert (await chat.complete("m", HELLO)).text == "hello"

    async def test_a_file_that_is_missing_or_holds_none_stops_the_stage(self, monkeypatch: Any, tmp_path: Path) -> None:
        (tmp_path / "empty.pem").write_text("nothing")
        for name, why in (("gone.pem", "there is no such file"), ("empty.pem", "it holds no certificates")):
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
            with pytest.raises(StageRefused, match=why) as caught:
                await client("http://127.0.0.1:9").get("/x")
            assert f"SSL_CERT_FILE={tmp_path / name}" in str(caught.value) and "\n" not in str(caught.value)


class TestStalls:
    async def test_a_server_that_does_not_take_the_connection(self) -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            error = await failure(client(f"http://127.0.0.1:{port}", connect_timeout_s=0.3).get("/x"))
            for one in waiting:
                one.close()
        assert error.kind == "timeout" and error.retryable
        assert "no connection within 0.3 s (connect_timeout_s)" in error.message

    async def test_a_server_that_sends_nothing(self, server: Any, reply: Any) -> None:
        server.says(reply(delay_s=3))
        error = await failure(client(server.url, timeout_s=0.2).get("/x"))
        assert error.kind == "timeout" and "no answer within 0.2 s (timeout_s)" in error.message

    async def test_a_server_that_stops_in_the_middle(self, server: Any, reply: Any) -> None:
        server.says(reply(body=b'{"a": ', length=100, stall_s=3))
        error = await failure(client(server.url, timeout_s=0.2).get("/x"))
        assert error.kind == "timeout" and "stalled: nothing came within 0.2 s (timeout_s)" in error.message

    async def test_a_server_that_drips_is_ended_by_the_total(self) -> None:
        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(100):
                writer.write(b" ")
                await asyncio.sleep(0.05)
            writer.close()

        async with listening(drip) as port:
            slow = client(f"http://127.0.0.1:{port}", timeout_s=1, total_timeout_s=0.4)
            error = await failure(slow.get("/x"))
        assert error.kind == "timeout" and "no whole answer within 0.4 s (total_timeout_s)" in error.message


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://service.example.org:99999", "a port between 1 and 65535"),
        ("http://service.example.org/v1\r\nX-Injected: 1", "without spaces, line ends"),
        ("http://service.example.org/v 1", "without spaces"),
    ],
)
def test_a_base_url_that_cannot_be_asked_is_refused_in_the_settings(url: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Endpoint(base_url=url)


@pytest.mark.parametrize("url", ["http://host.example.org:99999/x", "http://exa mple.org/", "ftp://x.example.org/"])
async def test_an_address_that_cannot_be_asked_is_one_line(url: str) -> None:
    error = await failure(client("http://127.0.0.1:9").fetch(url))
    assert (error.kind, error.retryable) == ("rejected", False) and "not a valid address" in error.message


async def test_a_header_with_a_line_end_is_never_sent(server: Any, reply: Any) -> None:
    server.says(reply())
    error = await failure(client(server.url).fetch(f"{server.url}/x", headers={"X-A": "b\r\nX-Injected: canary"}))
    assert error.kind == "rejected" and server.asked == [] and "canary" not in str(error)


async def test_no_key_is_in_a_log_or_an_error_of_a_chat_server(server: Any, reply: Any, caplog: Any) -> None:
    """The official client and what is below it log at DEBUG; their errors hold requests with headers."""
    caplog.set_level(logging.DEBUG)
    key = "sk-canary-4242"
    endpoint = ChatEndpoint(base_url=server.url, timeout_s=0.5, total_timeout_s=0.5, max_attempts=2, backoff_s=0)
    echo = json.dumps({"error": {"message": f"wrong key {key}", "code": "invalid_api_key"}}).encode()
    for status in (200, 400, 401, 429, 500):
        server.says(reply(status, echo))
        chat = Chat(Connection("chat", endpoint, SecretStr(key)), sleep=server.sleep)
        error = await failure(chat.complete("m", HELLO))
        shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
        assert key not in shown and ("wrong key ***" in shown or status > 401)
    for broken in (
        reply(hang_up=True),
        reply(length=9999),
        reply(body=b"<", content_type="text/html"),
        reply(delay_s=2),
    ):
        server.says(broken)
        chat = Chat(Connection("chat", endpoint, SecretStr(key)), sleep=server.sleep)
        assert key not in "".join(traceback.format_exception(await failure(chat.complete("m", HELLO))))
    assert server.asked[0].headers["authorization"] == f"Bearer {key}" and key not in caplog.text


class TestErrorsUnderStatus200:
    @pytest.mark.parametrize(
        ("error", "kind", "asked"),
        [
            ({"message": "Provider is overloaded", "type": "overloaded_error"}, "outage", 2),
            ({"message": "slow down", "code": "rate_limit_exceeded"}, "rate_limit", 2),
            ({"message": "slow down", "code": 429}, "rate_limit", 2),
            ({"message": "upstream is gone", "code": 502}, "outage", 2),
            ("Model is overloaded", "outage", 2),
            ({"message": "no more credit", "code": "insufficient_quota"}, "quota", 1),
            ({"message": "the picture is too large", "code": "invalid_image"}, "bad_response", 1),
        ],
    )
    async def test_the_vendors_words_are_in_ours(self, server: Any, error: Any, kind: str, asked: int) -> None:
        server.says_json({"error": error})
        endpoint = ChatEndpoint(base_url=server.url, max_attempts=2, backoff_s=0, limit_patience_s=0, key_env=None)
        chat = Chat(Connection("chat", endpoint), sleep=server.sleep)
        failed = await failure(chat.complete("m", HELLO))
        assert (failed.kind, len(server.asked)) == (kind, asked)
        assert (error if isinstance(error, str) else error["message"]) in str(failed)

    async def test_one_that_passes_is_no_error(self, server: Any, reply: Any) -> None:
        busy = {"error": {"message": "overloaded", "code": 503}}
        server.says(reply(body=json.dumps(busy).encode()), reply(body=json.dumps(COMPLETION).encode()))
        chat = Chat(Connection("chat", ChatEndpoint(base_url=server.url, key_env=None)), sleep=server.sleep)
        assert (await chat.complete("m", HELLO)).usage.requests == 2


def test_chat_services_and_the_guard_run_in_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes uvloop where it is installed."""
    uvloop = pytest.importorskip("uvloop")

    async def go() -> None:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        async with listening(lambda reader, writer: answer_json(reader, writer, [])) as port:
            url = f"http://localhost:{port}"
            chat = Chat(Connection("chat", ChatEndpoint(base_url=url, key_env=None, max_attempts=1)))
            assert (await chat.complete("m", HELLO)).text == "hello"
            geocoder = Geocoder(Connection("geocoder", Endpoint(base_url=url, max_attempts=1)))
            assert await geocoder.search("Paris") == []
            guarded = client("https://service.example.net")
            with pytest.raises(NotPublic):
                await guarded.fetch(f"http://169.254.169.254:{port}/")
            monkeypatch.setattr(transport, "is_public_host", lambda host: True)
            with pytest.raises(NotPublic):  # a name that only the resolver knows to lead inside
                await guarded.fetch(f"{url}/")
            error = await failure(client("http://127.0.0.1:9").get("/x"))
            assert error.kind == "outage"
            await chat.close()

    uvloop.run(go())
