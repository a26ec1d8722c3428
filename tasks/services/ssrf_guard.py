"""SSRF guard: a transport that connects to public addresses only, where others name the host.

A name is looked up, its addresses are checked, and one of these addresses is connected to: between the check and the
connection nothing is looked up again. Connections are kept by name, as certificates are.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from schemas.settings.services import Endpoint, is_loopback, is_private
from tasks.services.connections import KEEP_IDLE_S, certificates
from tasks.services.errors import ServiceError

MOST_ADDRESSES = 4  # of one name that are tried
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: how IPv4 hosts look in a network of IPv6 only
_UNICAST = ipaddress.ip_network("2000::/3")  # the only part of IPv6 that is given out for the open net
_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, int]  # host and port


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


def guarded_transport(
    service: str, endpoint: Endpoint, *configured: str | None
) -> Callable[[], httpx.AsyncBaseTransport]:
    """Makes the way to a service and to the hosts it names.

    What the configuration names itself, `base_url` and `configured`, is asked wherever it is; a service in a private
    network is one, and `may_fetch` keeps it to its own host.
    """
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=endpoint.max_concurrency, keepalive_expiry=KEEP_IDLE_S
    )
    if is_loopback(endpoint.base_url):  # where a proxy from the environment does not reach
        return lambda: httpx.AsyncHTTPTransport(verify=certificates(), limits=limits)
    if is_private(endpoint.base_url):
        return lambda: ByEnvironment(limits, httpx.AsyncHTTPTransport(verify=certificates(), limits=limits))
    trusted = {_origin(url) for url in (endpoint.base_url, *configured) if url is not None}
    return lambda: ByEnvironment(limits, OnlyPublic(service, limits, trusted))


class OnlyPublic(httpx.AsyncHTTPTransport):
    """Connects to public addresses; `NotPublic` for others, except for the origins that are trusted."""

    def __init__(
        self, service: str = "web", limits: httpx.Limits | None = None, trusted: Collection[Origin] = ()
    ) -> None:
        limits = limits or httpx.Limits()
        super().__init__(verify=certificates(), limits=limits)
        # httpx hands no network backend on. The pool is its only state; this one differs in nothing else.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=certificates(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Checked(service, trusted),
        )


class ByEnvironment(httpx.AsyncBaseTransport):
    """Through the proxy that the environment names for an address: who looks names up decides where they may lead."""

    def __init__(self, limits: httpx.Limits, direct: httpx.AsyncBaseTransport) -> None:
        self._limits, self._direct = limits, direct
        self._proxied: dict[str, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = _proxy(request.url.scheme, request.url.host)
        if proxy is None:
            return await self._direct.handle_async_request(request)
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx.AsyncHTTPTransport(verify=certificates(), limits=self._limits, proxy=proxy)
        return await self._proxied[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        for way in (self._direct, *self._proxied.values()):
            await way.aclose()


class _Checked(httpcore.AsyncNetworkBackend):
    def __init__(self, service: str, trusted: Collection[Origin]) -> None:
        self._service, self._trusted = service, frozenset(trusted)
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        if (host, port) in self._trusted:
            return await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        addresses = await self._addresses(host, port, timeout)
        for k, address in enumerate(addresses):
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout and timeout / len(addresses), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if k == len(addresses) - 1:
                    raise
        raise AssertionError("unreachable: the last address returns or raises")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int, timeout: float | None) -> list[str]:
        try:
            async with asyncio.timeout(timeout):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host} was not looked up in time") from None
        except (OSError, UnicodeError) as error:
            # No such name, or no name server: who is offline would lose every row if this were final.
            raise httpcore.ConnectError(f"{host} has no address ({type(error).__name__})") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not addresses or not all(is_public(address) for address in addresses):
            raise NotPublic(host, self._service)
        return addresses[:MOST_ADDRESSES]


def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # a pattern, of which nothing can be trusted as it stands
        port = 0
    return parts.hostname or "", port if port is not None else _PORTS.get(parts.scheme, 0)


def _proxy(scheme: str, host: str) -> str | None:
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy is None or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
