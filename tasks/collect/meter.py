"""Counting what goes over the line: requests and bytes by kind, for whoever is at work when they go."""

import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from schemas.settings.services import MapillaryEndpoint, StacEndpoint, is_loopback

# Addresses and what is asked there, the most special first; what no address covers is a file on some host.
Kinds = Sequence[tuple[str, str]]
FILE_KINDS = {"mapillary": "picture", "stac": "asset"}


@dataclass
class Tally:
    """Requests and bytes by kind."""

    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, requests: int = 1, size: int = 0) -> None:
        self.requests[kind] += requests
        self.bytes[kind] += size

    def __iadd__(self, other: "Tally") -> "Tally":
        self.requests.update(other.requests)
        self.bytes.update(other.bytes)
        return self

    @property
    def total_requests(self) -> int:
        return sum(self.requests.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


# What the work that is going on costs; tasks that it starts count for it too.
tally: ContextVar[Tally | None] = ContextVar("tally", default=None)


class Meter:
    """A way to a service's hosts that counts what is asked and what comes."""

    def __init__(self, kinds: Kinds, otherwise: str, base_url: str) -> None:
        self._kinds, self._otherwise, self._base_url = kinds, otherwise, base_url
        self.asked = Tally()  # all that really went over the line

    def transport(self) -> httpx.AsyncBaseTransport:
        """For `Http(transport=...)`."""
        return _Counting(self, proxy=None if is_loopback(self._base_url) else _proxy(self._base_url))

    def kind_of(self, url: str) -> str:
        plain = url.partition("?")[0]
        for address, kind in self._kinds:
            if plain == address or plain.startswith(f"{address}/"):
                return kind
        return self._otherwise

    def count(self, method: str, kind: str, requests: int, size: int) -> None:
        """A HEAD asks on our own account: the work itself would not send it."""
        self.asked.add(kind, requests, size)
        running = tally.get()
        if running is not None and method != "HEAD":
            running.add(kind, requests, size)


def mapillary_meter(endpoint: MapillaryEndpoint) -> Meter:
    base = endpoint.base_url
    kinds = ((endpoint.tiles_url, "tiles"), (f"{base}/images", "search"), (base, "entity"))
    return Meter(kinds, FILE_KINDS["mapillary"], base)


def stac_meter(endpoint: StacEndpoint) -> Meter:
    signing = ((endpoint.sas_url, "signing"),) if endpoint.sas_url else ()
    return Meter((*signing, (endpoint.base_url, "stac")), FILE_KINDS["stac"], endpoint.base_url)


class _Counting(httpx.AsyncHTTPTransport):
    def __init__(self, meter: Meter, proxy: str | None) -> None:
        super().__init__(proxy=proxy, limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0))
        self._meter = meter

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        kind = self._meter.kind_of(str(request.url))
        self._meter.count(request.method, kind, 1, 0)
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _CountedStream(response.stream, self._meter, request.method, kind)
        return response


class _CountedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, meter: Meter, method: str, kind: str) -> None:
        self._stream, self._meter, self._method, self._kind = stream, meter, method, kind

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._meter.count(self._method, self._kind, 0, len(piece))
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _proxy(url: str) -> str | None:
    """The proxy the environment names for an address: a transport of our own does not look there by itself."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
