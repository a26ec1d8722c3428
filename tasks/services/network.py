"""The network as the environment and the SSRF guard allow it: public addresses, proxies, certificates, sessions.

Every client of an event loop shares one aiohttp session. A second session serves addresses that others name: its
resolver is the SSRF guard. Proxies and certificates are those of the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY,
NO_PROXY, SSL_CERT_FILE), read when a loop sends its first request.
"""

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
import ssl
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
import certifi
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from schemas.errors import StageRefused
from schemas.settings.services import is_loopback, is_private
from tasks.services.errors import ServiceError, safe_url

KEEP_IDLE_S = 4.0  # many servers close an idle connection after 5 s; to send on one they are closing is an outage
MAX_ADDRESSES = 4  # of one name that are tried
MAX_HEADER = 65_536  # bytes of one header line
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: how IPv4 hosts look in a network of IPv6 only
_UNICAST = ipaddress.ip_network("2000::/3")  # the only part of IPv6 that is given out for the open net


class NotPublic(ServiceError):
    """The address leads into a private network, or to this machine."""

    def __init__(self, where: str, service: str = "web") -> None:
        super().__init__(service, "rejected", f"{where}: its host is not on the open net")

    def __reduce__(self) -> tuple[object, ...]:
        return (ServiceError, (self.service, self.kind, self.message))


def is_public(address: str) -> bool:
    """Whether an IP address is on the open net: not private, local, reserved, multicast, nor such a one in disguise."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:
            return ip in _UNICAST and ip.is_global
        ip = inner
    return ip.is_global and not ip.is_multicast


@functools.lru_cache(maxsize=256)
def host_of(url: str) -> str | None:
    """The host of a web address, in lower case and without a final dot; None for anything else."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port out of range
        host = url_as_sent(url).host  # the one that will be connected to
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in host):
        return None
    return host.lower().removesuffix(".")


def is_public_host(host: str) -> bool:
    """Whether a host can be on the open net, as far as its spelling tells; the resolver checks where names lead."""
    with contextlib.suppress(ValueError):
        return is_public(host)
    try:
        socket.inet_aton(host)  # 127.1, 0x7f.0.0.1, 2130706433: not how a public address is spelled
    except OSError:
        return not is_private(f"https://{host}/")
    return False


def may_fetch(url: str, base_url: str) -> bool:
    """Whether an address from a response may be read: it must not lead into our own network.

    A service on the open net names addresses there, by https. A service in a private network names its own host.
    """
    host = host_of(url)
    if host is None:
        return False
    if is_private(base_url):
        return host == host_of(base_url) or (is_loopback(url) and is_loopback(base_url))
    return urlsplit(url).scheme == "https" and is_public_host(host)


def url_as_sent(url: str) -> URL:
    """An address that goes out byte for byte: a signature holds for its exact spelling."""
    return URL(url, encoded=url.isascii() and url.isprintable() and " " not in url)


class LeadsInside(Exception):
    """A name leads to an address that is not public."""


class _GuardedResolver(AbstractResolver):
    """Looks a name up, refuses it if one of its addresses is not public, and hands out the addresses it checked.

    aiohttp connects to these, so between the check and the connection nothing is looked up again.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        addresses = {str(entry[4][0]): int(entry[0]) for entry in entries}
        if not addresses or not all(map(is_public, addresses)):
            raise LeadsInside(host)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for address, kind in list(addresses.items())[:MAX_ADDRESSES]
        ]

    async def close(self) -> None: ...


class AttemptFailed(Exception):
    """Carries an error of a connection past aiohttp's own retry, of which budgets and breakers would not know."""

    def __init__(self, error: aiohttp.ClientError) -> None:
        super().__init__()
        self.error = error


async def _one_attempt(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AttemptFailed(error) from None


class Network:
    """The sessions of one event loop, and the environment's proxies as they were at its first request."""

    def __init__(self) -> None:
        self.clients: WeakSet[object] = WeakSet()
        self._open: dict[bool, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]]] = {}
        self._proxies = urllib.request.getproxies()
        self._proxy_of: dict[tuple[str, str], URL | None] = {}

    async def session(self, guarded: bool) -> aiohttp.ClientSession:
        if guarded not in self._open:
            holding = _open_session(guarded)
            self._open[guarded] = await anext(holding), holding
        return self._open[guarded][0]

    def proxy_of(self, url: URL) -> URL | None:
        """The proxy that an address is queried through."""
        key = url.scheme, url.host or ""
        if key not in self._proxy_of:
            self._proxy_of[key] = self._find_proxy(*key)
        return self._proxy_of[key]

    def _find_proxy(self, scheme: str, host: str) -> URL | None:
        proxy = self._proxies.get(scheme) or self._proxies.get("all")
        # A proxy cannot reach the servers of this machine's own loopback.
        if not proxy or is_loopback(f"{scheme}://{host}/") or _bypasses_proxy(host, self._proxies):
            return None
        url = URL(proxy if "://" in proxy else f"http://{proxy}")
        if url.scheme not in ("http", "https") or not url.host:
            raise StageRefused(
                f"the proxy {safe_url(proxy)} cannot be used: {scheme.upper()}_PROXY and ALL_PROXY take http:// and "
                "https:// addresses"
            )
        return url

    async def close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        for _, holding in opened:
            await holding.aclose()


def _bypasses_proxy(host: str, proxies: Mapping[str, str]) -> bool:
    """Whether NO_PROXY names a host: by name, by suffix, or by a network such as 10.0.0.0/8."""
    if urllib.request.proxy_bypass(host):
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for part in proxies.get("no", "").split(","):
            with contextlib.suppress(ValueError):
                if "/" in part and address in ipaddress.ip_network(part.strip(), strict=False):
                    return True
    return False


async def _open_session(guarded: bool) -> AsyncGenerator[aiohttp.ClientSession]:
    """A session that is closed with the loop at the latest, as every open async generator is."""
    connector = aiohttp.TCPConnector(
        limit=0,  # how many requests run at once is the concurrency limiter's decision
        keepalive_timeout=KEEP_IDLE_S,
        ssl=_certificates(os.environ.get("SSL_CERT_FILE")),
        resolver=_GuardedResolver() if guarded else aiohttp.ThreadedResolver(),
    )
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # aiohttp accepts a gzip body that breaks off
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
        middlewares=(_one_attempt,),
    ) as session:
        yield session


@functools.lru_cache(maxsize=4)  # it takes 20 ms
def _certificates(file: str | None) -> ssl.SSLContext:
    """The authorities that are trusted: those of SSL_CERT_FILE, else the system's and certifi's."""
    try:
        if file:
            return ssl.create_default_context(cafile=file)
        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())
        return context
    except OSError as error:  # ssl.SSLError among them
        why = "there is no such file" if isinstance(error, FileNotFoundError) else "it holds no certificates"
        raise StageRefused(f"SSL_CERT_FILE={file} cannot be read: {why}") from None


_networks: WeakKeyDictionary[asyncio.AbstractEventLoop, Network] = WeakKeyDictionary()


def current_network(client: object) -> Network:
    """The running loop's network, with this client among those that use it.

    Connections belong to the loop they were made in; a worker may run each batch in a loop of its own.
    """
    loop = asyncio.get_running_loop()
    network = _networks.get(loop) or _networks.setdefault(loop, Network())
    network.clients.add(client)
    return network


async def leave_network(client: object) -> None:
    """Close the running loop's connections, unless other clients use them."""
    network = _networks.get(asyncio.get_running_loop())
    if network is not None and client in network.clients:
        network.clients.discard(client)
        if not network.clients:
            await network.close()
