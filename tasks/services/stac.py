"""Scenes from a STAC API, and byte ranges of their files.

Files lie on another host and may need a signature, which is had from a signing service, one for a whole container, and
renewed before it is over and whenever the host calls it so.
"""

import asyncio
import contextvars
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from schemas.errors import StageRefused
from schemas.settings.services import StacEndpoint
from tasks.services.errors import HttpResponse, ServiceError, safe_url
from tasks.services.http import Expected, ServiceClient, key_header
from tasks.services.network import may_fetch
from tasks.services.transport import Connection

RENEW_S = 300.0  # a signature is renewed this long before its end: a read that begins with it must end with it
SHORTEST_USE_S = 1.0  # whatever is said of its end: the host's refusal brings a new one anyway
RENEWALS = 3  # signatures tried for one read
READS = 16  # ranges in flight
SEARCHES = 32  # threads of searches; the number of requests at once is the concurrency limiter's decision
NO_SIGNATURE = 409  # how the host says that it saw none
KEY_HEADER = "Ocp-Apim-Subscription-Key"
_FILE_TYPES = ("image/tiff", "application/octet-stream", "binary/octet-stream", "image/")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_SIGNATURE = re.compile(r"[A-Za-z0-9%&=._:+/~-]+")

_threads = ThreadPoolExecutor(SEARCHES, "stac-search")

Box = tuple[float, float, float, float]  # west, south, east, north, as the protocol has it


@dataclass(frozen=True)
class _Signature:
    query: str
    renew_at_s: float  # of the monotonic clock


class Stac(ServiceClient):
    """Items of a collection, as the API words them, and bytes of the files they name."""

    def __init__(self, connection: Connection, *, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        endpoint = connection.endpoint
        if not isinstance(endpoint, StacEndpoint):
            raise TypeError("services.stac needs a StacEndpoint")
        self._key = key_header(connection, KEY_HEADER, "")
        configured = endpoint.sas_url, endpoint.asset_url
        super().__init__(connection, self._key, configured=configured, **options)
        self._endpoint, self._clock = endpoint, clock
        self._container = _container_pattern(endpoint.asset_url)
        self._signatures: dict[tuple[str, str], _Signature] = {}
        self._signing = asyncio.Lock()
        self._known: set[str] = set()  # collections that are there
        self._reading = asyncio.Semaphore(READS)
        self.bytes_read = 0  # of files

    async def search(
        self, collection: str, box: Box, start: datetime, end: datetime, max_cloud_percent: float = 100.0
    ) -> list[dict[str, Any]]:
        """Every item of a collection that touches a box between two times, each once. The box has west <= east.

        Items are as they came: one without an id is among them.
        """
        loop = asyncio.get_running_loop()
        from tasks.services.stac_pages import SearchPages  # its library takes half a second to import

        pages = SearchPages(self._http, loop)
        question = {
            "collections": [collection],
            "bbox": [round(edge, 7) for edge in box],
            "datetime": f"{_stamp(start)}/{_stamp(end)}",
            "query": {"eo:cloud_cover": {"lte": max_cloud_percent}},
        }
        try:
            # With this task's context, by which requests are counted.
            run, url = contextvars.copy_context().run, self._endpoint.base_url
            rows = await loop.run_in_executor(_threads, run, pages.all_items, url, question)
        except asyncio.CancelledError:
            pages.cancel()
            raise
        if not rows:
            await self._refuse_unknown(collection)
        items: dict[str, dict[str, Any]] = {}
        for row in rows:
            name = row.get("id")
            items.setdefault(name if isinstance(name, str) and name else f"{len(items)} without an id", row)
        return list(items.values())

    async def _refuse_unknown(self, collection: str) -> None:
        """StageRefused if there is no such collection: archives answer a search in it with no items."""
        if collection in self._known:
            return
        try:
            await self._http.request_json("GET", f"/collections/{quote(collection, safe='')}", kind="search")
        except ServiceError as error:
            if error.kind != "not_found":
                return  # it does not tell; the search was answered
            raise StageRefused(
                f"the archive at {safe_url(self._endpoint.base_url)} has no collection '{collection}': set "
                "collect.satellite.collection to one that it has"
            ) from error
        self._known.add(collection)

    async def read(self, href: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file, fewer where it ends before.

        ServiceError of kind not_found: there is no such file; expired: there is no signature, or none was accepted;
        rejected: the range lies past the end; blocked: the address is not one that may be read, or its host gives no
        ranges.
        """
        if not may_fetch(href, self._endpoint.base_url):
            raise ServiceError("stac", "blocked", f"will not read from {safe_url(href)}")
        if not 0 <= start < end:
            raise ServiceError("stac", "rejected", f"not a range: {start} to {end}")
        match = self._container.match(href) if self._endpoint.sas_url is not None else None
        where = (match["account"], match["container"]) if match else None
        for renewal in range(RENEWALS):
            signature = await self._signature(where) if where else None
            try:
                async with self._reading:
                    return await self._read(href, signature, start, end)
            except ServiceError as error:
                if error.kind != "expired" or error.status == NO_SIGNATURE or not where or renewal == RENEWALS - 1:
                    raise
                if signature is not None and self._signatures.get(where) == signature:
                    del self._signatures[where]
        raise AssertionError("unreachable: the last renewal returns or raises")

    async def _read(self, href: str, signature: _Signature | None, start: int, end: int) -> bytes:
        def check(_: Any, response: HttpResponse) -> None:
            content_range = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if response.status != 206 or content_range is None:
                raise ServiceError(
                    "stac",
                    "blocked",
                    f"the host, or a proxy before it, gives no byte ranges: {response.url}",
                    status=200,
                )
            total = int(content_range[3]) if content_range[3] != "*" else end
            if int(content_range[1]) != start or len(response.body) != min(end, total) - start:
                raise self._http.bad_response("other bytes than were requested", response, retryable=True)

        joint = "&" if urlsplit(href).query else "?"
        response = await self._http.fetch(
            f"{href}{joint}{signature.query}" if signature else href,
            headers={"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"},
            kind="file",
            expected=Expected(_FILE_TYPES, classify=_classify_file, check=check),
        )
        self.bytes_read += len(response.body)
        return response.body

    async def _signature(self, where: tuple[str, str]) -> _Signature:
        async with self._signing:  # many reads begin at once, and one signature serves them all
            known = self._signatures.get(where)
            if known is not None and self._clock() < known.renew_at_s:
                return known
            address = f"{self._endpoint.sas_url}/token/{where[0]}/{where[1]}"
            # The key goes only where the API is.
            ours = urlsplit(address).netloc == urlsplit(self._endpoint.base_url).netloc
            try:
                response = await self._http.fetch(
                    address, headers=self._key if ours else None, kind="token", expected=Expected(is_json=True)
                )
            except ServiceError as error:
                if not error.retryable and error.kind != "auth":
                    # Whatever its status says, it is said of the signing service and not of the file.
                    error.kind = "expired"
                    error.message = f"no signature (services.stac.sas_url): {error.message}"
                raise
            value = response.json()
            query = value.get("token") if isinstance(value, dict) else None
            if not isinstance(query, str) or not _SIGNATURE.fullmatch(query):
                raise self._http.bad_response("no usable token", response, retryable=True)
            made = _Signature(query, self._clock() + _used_s(_lifetime_s(value.get("msft:expiry"), response)))
            self._signatures[where] = made
            return made


def _classify_file(response: HttpResponse) -> ServiceError | None:
    # Own words throughout: what the host says about a signature may hold parts of it.
    def of(kind: Any, what: str) -> ServiceError:
        return ServiceError("stac", kind, f"{what}: {response.url}", status=response.status)

    match response.status:
        case 401 | 403:
            return of("expired", "the signature is past its time or not accepted")
        case status if status == NO_SIGNATURE:
            return of("expired", "the file needs a signature; look at services.stac.sas_url and asset_url")
        case 404 | 410:
            return of("not_found", "there is no such file")
        case 416:
            return of("rejected", "the range lies past the file's end")
    return None


def _container_pattern(asset_url: str) -> re.Pattern[str]:
    """What recognises a file that is signed, by its account and container."""
    text = re.escape(asset_url)
    for part in ("account", "container"):
        text = text.replace(re.escape(f"{{{part}}}"), f"(?P<{part}>[a-z0-9-]+)")
    return re.compile(text)


def _lifetime_s(expiry: Any, response: HttpResponse) -> float:
    """How long a signature holds: by the signing service's own clock, which need not agree with ours."""
    try:
        end = datetime.fromisoformat(str(expiry))
        now = parsedate_to_datetime(response.headers["date"]) if "date" in response.headers else datetime.now(UTC)
    except ValueError:
        return 2 * RENEW_S  # nothing usable was said: the host will say when it is over
    return (_aware(end) - _aware(now)).total_seconds()


def _used_s(lifetime_s: float) -> float:
    """How long a signature is used before it is renewed: a short one to its half, not anew for every read."""
    return max(lifetime_s - min(RENEW_S, lifetime_s / 2), SHORTEST_USE_S)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


__all__: Sequence[str] = ["Box", "Stac"]
