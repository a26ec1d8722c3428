"""Hosts that a service names, over real sockets: none of our own network, however it is spelled or looked up."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.services import Endpoint, MapillaryEndpoint, StacEndpoint
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.services import ServiceError
from tasks.services import network as opening
from tasks.services.http import Expected, HttpClient
from tasks.services.network import NotPublic, is_public, may_fetch
from tasks.services.stac import Stac
from tasks.services.transport import Connection

REAL = "https://graph.mapillary.com"
PICTURE = b"\xff\xd8\xff\xe0 as good as a picture"


def guarded(**settings: Any) -> HttpClient:
    """A client of a service on the open net: other addresses than its own are checked."""
    endpoint = Endpoint(**{"base_url": "https://service.example.net", "max_attempts": 1, "timeout_s": 5, **settings})
    return HttpClient(Connection("web", endpoint))


async def body_at(client: HttpClient, url: str) -> bytes:
    return (await client.fetch(url, expected=Expected("*/*"))).body


def mapillary(**settings: Any) -> Mapillary:
    endpoint = MapillaryEndpoint(**{"base_url": REAL, "max_attempts": 2, "backoff_s": 0, "timeout_s": 5, **settings})
    return Mapillary(Connection("mapillary", endpoint))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("::7f00:1", False),  # IPv4-compatible, long given up
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("2002:7f00:1::", False),  # 6to4 of 127.0.0.1
        ("2002:808:808::", True),
        ("64:ff9b::7f00:1", False),  # NAT64 of 127.0.0.1
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),  # NAT64 of 8.8.8.8: what names lead to in a network of IPv6 only
        ("64:ff9b:1::7f00:1", False),  # NAT64 of a network's own
        ("0.0.0.0", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        "https://127.1/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://127.0.0.1./",
        "https://100.64.0.1/",
        "https://224.0.0.1/",
        "https://0.0.0.0/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://metadata.google.internal./",
        "https://METADATA.google.internal/",
        "https://localhost./",
        "https://a.localhost/",
        "https://user@localhost/",
        "http://scontent.fbcdn.net/x",  # in the clear
        "https://[::1/x",
        "https://host:99999/x",
        "https://host:abc/x",
        "https://\u2100.com/x",
        "https://exa mple/x",
        "https:///x",
        "",
    ],
)
async def test_what_is_not_fetched_for_a_service_on_the_open_net(url: str) -> None:
    assert may_fetch(url, REAL) is False
    with pytest.raises(ServiceError) as caught:
        await mapillary().fetch(url)
    assert (caught.value.kind, caught.value.retryable) == ("rejected", False)
    stac = Stac(Connection("stac", StacEndpoint(base_url="https://stac.example.org/v1")))
    with pytest.raises(ServiceError) as caught:
        await stac.read(url, 0, 10)
    assert caught.value.kind == "blocked"


@pytest.mark.parametrize(
    "url", ["https://scontent.xx.fbcdn.net./m1/v?oe=1", "https://8.8.8.8/x", "https://a.b.example"]
)
def test_what_is_fetched(url: str) -> None:
    assert may_fetch(url, REAL) is True


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("93.184.215.14", "127.0.0.1"), ("10.0.0.1",), ("::1",)])
async def test_a_name_that_leads_inside_is_refused_by_both_clients(
    server: Any, names: Any, addresses: tuple[str, ...]
) -> None:
    asked = names(addresses)
    with pytest.raises(NotPublic) as caught:
        await mapillary().fetch(f"https://cdn.example.org:{server.port}/a.jpg?oh=secret")
    assert (caught.value.service, caught.value.retryable) == ("mapillary", False)
    assert "cdn.example.org" in str(caught.value) and "secret" not in str(caught.value)
    stac = Stac(Connection("stac", StacEndpoint(base_url="https://stac.example.org/v1")))
    with pytest.raises(NotPublic) as caught:
        await stac.read(f"https://files.example.org:{server.port}/a.tif", 0, 10)
    assert caught.value.service == "stac"
    assert server.asked == [] and asked == ["cdn.example.org", "files.example.org"]  # and not tried again


async def test_the_configured_service_itself_may_be_a_mirror_inside(server: Any, reply: Any, names: Any) -> None:
    names("127.0.0.1")
    server.says_json({"id": "1"})
    mirror = mapillary(base_url=f"http://mirror.example.org:{server.port}", key_env=None)
    assert (await mirror.image("1"))["id"] == "1"
    with pytest.raises(NotPublic):  # what it names is somebody else's word
        await mirror.fetch(f"https://cdn.example.org:{server.port}/a.jpg")
    with pytest.raises(NotPublic):  # and so is another port of its own
        await mirror.fetch("https://mirror.example.org:22/")


async def test_the_address_that_was_checked_is_the_one_connected_to(
    server: Any, reply: Any, names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads outside when it is looked up first and inside ever after."""
    server.says(reply(body=PICTURE, content_type="image/jpeg"))
    asked = names("127.0.0.1", "127.0.0.9")  # the first stands for an address on the open net
    monkeypatch.setattr(opening, "is_public", lambda address: address != "127.0.0.9")
    assert await body_at(guarded(), f"http://photos.example.org:{server.port}/a.jpg") == PICTURE
    assert asked == ["photos.example.org"]
    assert server.asked[0].headers["host"] == f"photos.example.org:{server.port}"


async def test_an_address_out_of_reach_leaves_the_next(
    server: Any, reply: Any, names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says(reply(body=PICTURE, content_type="image/jpeg"))
    names(("127.0.0.3", "127.0.0.1"))  # nothing listens at the first
    monkeypatch.setattr(opening, "is_public", lambda address: True)
    assert await body_at(guarded(), f"http://photos.example.org:{server.port}/a.jpg") == PICTURE


async def test_connections_are_kept_by_name(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One made for a name is not used for another at the same address: its certificate was checked for the first."""
    heads: list[list[str]] = []  # the hosts asked, by connection

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[str] = []
        heads.append(mine)
        while head := await _head(reader):
            mine.append(next(line for line in head.splitlines() if line.lower().startswith("host:"))[6:])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    asked = names("127.0.0.1")
    monkeypatch.setattr(opening, "is_public", lambda address: True)
    client = guarded()
    for host in ("a.example.org", "b.example.org", "a.example.org"):
        assert await body_at(client, f"http://{host}:{port}/") == b"ok"
    await client.close()
    assert heads == [[f"a.example.org:{port}"] * 2, [f"b.example.org:{port}"]]
    assert asked == ["a.example.org", "b.example.org"]  # looked up for connections, not for requests
    listener.close()


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return ""


async def test_behind_a_proxy_it_is_the_proxy_that_looks_names_up(
    server: Any, reply: Any, names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says(reply(body=PICTURE, content_type="image/jpeg"))
    asked = names("10.0.0.1")
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "inside.example.org")
    client = guarded()
    assert await body_at(client, "http://photos.example.org/a.jpg") == PICTURE
    assert server.asked[0].target == "http://photos.example.org/a.jpg" and asked == []
    with pytest.raises(NotPublic):  # no proxy for this one: it is ours to check
        await body_at(client, "http://inside.example.org/a.jpg")


@pytest.mark.parametrize("host", ["169.254.169.254", "127.0.0.1", "[::1]", "2130706433"])
async def test_a_literal_address_inside_is_refused_before_it_is_connected_to(server: Any, host: str) -> None:
    with pytest.raises(NotPublic, match="its host is not on the open net"):
        await body_at(guarded(), f"http://{host}:{server.port}/latest/meta-data")
    assert server.asked == []


async def test_a_redirect_into_our_network_is_one_clear_line(server: Any, reply: Any, names: Any) -> None:
    """Neither by the configured service nor by a host that it names."""
    names("127.0.0.1")
    target = "http://169.254.169.254/latest/meta-data/iam"
    server.says(reply(302, headers={"Location": f"{target}?token=hidden"}))
    for client in (guarded(base_url=f"http://mirror.example.org:{server.port}"), guarded(base_url=server.url)):
        with pytest.raises(ServiceError) as caught:
            await client.get("/a.jpg")
        assert (caught.value.kind, caught.value.retryable) == ("blocked", False)
        said = str(caught.value)
        assert f"redirects are not followed, here to {target}" in said and "hidden" not in said and "\n" not in said
    assert len(server.asked) == 2


def _certificate(folder: Path, name: str) -> Path:
    """A key and a certificate for a name, signed by itself, in one file."""
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
    plain = serialization.NoEncryption()
    file = folder / "certificate.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


async def test_certificates_are_checked_for_the_name_and_not_for_the_address(
    names: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = _certificate(tmp_path, "photos.example.org")
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(file)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await _head(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ours)
    port = listener.sockets[0].getsockname()[1]
    names("127.0.0.1")
    monkeypatch.setattr(opening, "is_public", lambda address: True)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    client = guarded()
    assert await body_at(client, f"https://photos.example.org:{port}/") == b"ok"
    for stranger in ("other.example.org", "127.0.0.1"):
        with pytest.raises(ServiceError, match=r"the certificate is not trusted .*mismatch"):
            await body_at(client, f"https://{stranger}:{port}/")
    listener.close()
