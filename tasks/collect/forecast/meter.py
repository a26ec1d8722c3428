"""Counting what goes over the line: requests and bytes by kind, for whoever is at work when they go."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx

from schemas.settings.services import MapillaryEndpoint, StacEndpoint
from tasks.services.ssrf_guard import guarded_transport

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

    def __init__(self, kinds: Kinds, otherwise: str, way: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._kinds, self._otherwise, self._way = kinds, otherwise, way
        self.asked = Tally()  # all that really went over the line

    def transport(self) -> httpx.AsyncBaseTransport:
        """For `Http(transport=...)`."""
        return _Counting(self, self._way())

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
    return Meter(kinds, FILE_KINDS["mapillary"], guarded_transport("mapillary", endpoint, endpoint.tiles_url))


def stac_meter(endpoint: StacEndpoint) -> Meter:
    signing = ((endpoint.sas_url, "signing"),) if endpoint.sas_url else ()
    way = guarded_transport("stac", endpoint, endpoint.sas_url, endpoint.asset_url)
    return Meter((*signing, (endpoint.base_url, "stac")), FILE_KINDS["stac"], way)


class _Counting(httpx.AsyncBaseTransport):
    def __init__(self, meter: Meter, way: httpx.AsyncBaseTransport) -> None:
        self._meter, self._way = meter, way

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        kind = self._meter.kind_of(str(request.url))
        self._meter.count(request.method, kind, 1, 0)
        response = await self._way.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _CountedStream(response.stream, self._meter, request.method, kind)
        return response

    async def aclose(self) -> None:
        await self._way.aclose()


class _CountedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, meter: Meter, method: str, kind: str) -> None:
        self._stream, self._meter, self._method, self._kind = stream, meter, method, kind

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._meter.count(self._method, self._kind, 0, len(piece))
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
