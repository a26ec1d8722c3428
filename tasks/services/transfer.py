"""One request and its whole answer, or the one error that says why there is none."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from schemas.settings.services import Endpoint, is_loopback
from tasks.services.answer import Answer
from tasks.services.connections import KEEP_IDLE_S, Reply, SingleConnections, address_of, by_proxy, framed, with_query
from tasks.services.errors import Kind, ServiceError, safe_text, safe_url
from tasks.services.meter import count
from tasks.services.partial import Download, WrongPart
from tasks.services.unpack import ACCEPTED, CannotUnpack, Unpacker

Params = Mapping[str, str | int | float | bool]
_Response = httpx.Response | Reply
_Way = SingleConnections | httpx.AsyncBaseTransport | httpx.AsyncClient  # to hosts; a client where there is a proxy


class _HideQueries(logging.Filter):
    """httpx logs every requested URL, signatures included; this makes them safe before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(safe_url(str(a)) if isinstance(a, httpx.URL) else a for a in record.args)
        return True


_hide_queries = _HideQueries()


@dataclass(frozen=True)
class Ask:
    """One request, the same at every attempt."""

    method: str
    address: str
    headers: Mapping[str, str]
    params: Params | None
    json_body: Any
    download: Download | None  # a file that may come in parts
    kind: str = ""  # of request, by which it is counted
    call_id: str = ""  # of a call that is to be paid for once
    attempt: int = 0


class Transfers:
    """The connections to a service and to the hosts it names."""

    def __init__(
        self,
        service: str,
        endpoint: Endpoint,
        secrets: tuple[str, ...],
        transport: Callable[[], httpx.AsyncBaseTransport] | None,
        now: Callable[[], float],
    ) -> None:
        self._service, self._endpoint, self._secrets = service, endpoint, secrets
        self._transport = transport  # makes the way to a host, one a loop; none: httpx's own
        self._now = now
        self._way: _Way | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._most_bytes = int(endpoint.max_body_mb * 1_000_000)
        self._timeout = httpx.Timeout(endpoint.timeout_s, connect=endpoint.connect_timeout_s, pool=None).as_dict()
        self._timeout["total"] = endpoint.total_timeout_s

    async def send(self, ask: Ask, answered: Callable[[float], None]) -> Answer:
        """The answer, whatever its status; `answered` is told how long its first bytes took."""
        way = self._way_of_this_loop()
        shown = safe_url(ask.address)
        response: _Response | None = None
        sent = False
        body = bytearray()
        try:
            headers = {
                "Accept": "*/*",
                "Accept-Encoding": ACCEPTED,
                **ask.headers,
                **(ask.download.headers() if ask.download else {}),
            }
            if ask.call_id:  # a server that knows it answers a repeated request without working, and being paid, again
                headers["Idempotency-Key"] = f"{ask.call_id}-{ask.attempt}"
            body_sent = _body(ask.json_body)
            if body_sent is not None:
                headers["Content-Type"] = "application/json"
            address, url = address_of(ask.address), ask.address
            if ask.params:
                address, url = with_query(address, url, ask.params)
                shown = safe_url(url)
            # Connections of our own keep to the limit by themselves, which takes no timer a request.
            is_direct = isinstance(way, SingleConnections)
            total_s = self._endpoint.total_timeout_s
            async with contextlib.nullcontext() if is_direct else asyncio.timeout(total_s):
                sent_at_s, sent = time.monotonic(), True
                if isinstance(way, SingleConnections):
                    head = framed(ask.method, address, headers.items(), body_sent or b"")
                    response = await way.ask(ask.method, address, head, body_sent or b"", self._timeout)
                else:
                    extensions = {"timeout": self._timeout}
                    request = httpx.Request(ask.method, url, headers=headers, content=body_sent, extensions=extensions)
                    if isinstance(way, httpx.AsyncClient):
                        response = await way.send(request, stream=True)
                    else:
                        response = await way.handle_async_request(request)
                answered(time.monotonic() - sent_at_s)
                try:
                    if ask.download:
                        ask.download.begin(response.status_code, response.headers)
                    whole = self._at_once(response, ask, shown)
                    if whole is None:
                        await self._read(response, body, ask.download.held if ask.download else 0, shown)
                        whole = bytes(body)
                finally:
                    await response.aclose()
            return self._whole(ask, response, whole, shown)
        # `from None` throughout: httpx's own messages and requests may hold the full URL.
        except (httpx.TimeoutException, TimeoutError) as error:
            _keep_part(ask, response, body)
            raise self.error("timeout", f"no answer in time ({type(error).__name__}): {shown}", True) from None
        except CannotUnpack as error:
            raise self.error("bad_response", f"{error}: {shown}", True) from None
        except httpx.TransportError as error:
            if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
                raise self.error("rejected", f"{type(error).__name__}: {shown}", False) from None
            _keep_part(ask, response, body)
            if response is not None:
                raise self.error("bad_response", f"the answer broke off: {shown}", True) from None
            raise self.error("outage", f"cannot be reached ({type(error).__name__}): {shown}", True) from None
        except httpx.InvalidURL:
            raise self.error("rejected", f"not a valid address: {shown}", False) from None
        except WrongPart as wrong:
            raise self.error("bad_response", f"{wrong}: {shown}", True) from None
        finally:
            if sent:
                count(self._service, ask.kind, 1, response.num_bytes_downloaded if response is not None else 0)

    async def close(self) -> None:
        """Close the connections of the running loop."""
        if self._way is not None and self._loop is asyncio.get_running_loop():
            await self._way.aclose()
        self._way = None

    def error(self, kind: Kind, message: str, retryable: bool) -> ServiceError:
        """An error of this service, without its secrets."""
        return ServiceError(self._service, kind, safe_text(message, self._secrets, limit=400), retryable=retryable)

    def bad_response(self, what: str, answer: Answer, retryable: bool) -> ServiceError:
        """An error for an answer that breaks the protocol."""
        message = f"{safe_text(what, self._secrets)}: {answer.url}"
        return ServiceError(self._service, "bad_response", message, status=answer.status, retryable=retryable)

    def _too_long(self, shown: str) -> ServiceError:
        return self.error("bad_response", f"more than {self._endpoint.max_body_mb:g} MB: {shown}", False)

    def _way_of_this_loop(self) -> _Way:
        # Connections belong to the loop they were made in; a worker may run each batch in a loop of its own.
        loop = asyncio.get_running_loop()
        if self._way is None or self._loop is not loop:
            for name in ("httpx", "httpcore"):
                logging.getLogger(name).addFilter(_hide_queries)
            self._way, self._loop = self._open_way(), loop
        return self._way

    def _open_way(self) -> _Way:
        if self._transport is not None:
            return self._transport()
        if not self._by_proxy():
            return SingleConnections(KEEP_IDLE_S)
        # How many at once is the limiter's to say; the pool only keeps what may be used again.
        most = self._endpoint.max_concurrency
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=most, keepalive_expiry=KEEP_IDLE_S)
        return httpx.AsyncClient(limits=limits, follow_redirects=False)

    def _by_proxy(self) -> bool:
        # A proxy from the environment cannot reach our own loopback.
        return not is_loopback(self._endpoint.base_url) and by_proxy()

    def _at_once(self, response: _Response, ask: Ask, shown: str) -> bytes | None:
        """A plain body that has come already, as most have."""
        if isinstance(response, httpx.Response) or ask.download or "content-encoding" in response.headers:
            return None
        body = response.whole()
        if body is not None and len(body) > self._most_bytes:
            raise self._too_long(shown)
        return body

    async def _read(self, response: _Response, body: bytearray, held: int, shown: str) -> None:
        limit = self._most_bytes - held

        def add(pieces: Iterable[bytes]) -> None:
            for piece in pieces:
                body.extend(piece)
                if len(body) > limit:
                    raise self._too_long(shown)

        unpacker = Unpacker(response.headers.get("content-encoding", ""))
        async for raw in response.aiter_raw():
            add(unpacker.unpack(raw))
        if body:
            add(unpacker.end())

    def _whole(self, ask: Ask, response: _Response, body: bytes, shown: str) -> Answer:
        answer = Answer(
            response.status_code,
            response.headers.get("content-type", ""),
            body,
            shown,
            retry_after_s=self._retry_after_s(response.headers.get("retry-after", "").strip()),
            headers=dict(response.headers),
        )
        promised, received = response.headers.get("content-length", ""), response.num_bytes_downloaded
        bodiless = ask.method == "HEAD" or answer.status in (204, 304)
        if promised.isdigit() and not bodiless and int(promised) != received:
            _keep_part(ask, response, body)
            raise self.bad_response(f"{received} of {promised} bytes came", answer, True)
        if ask.download is None or ask.download.partial is None or answer.status != 206:
            return answer
        # The last part of a file: the answer is the file, under the validator all its parts had.
        headers = {**answer.headers, "etag": ask.download.partial.etag}
        return replace(answer, status=200, body=ask.download.whole(body), headers=headers)

    def _retry_after_s(self, named: str) -> float | None:
        """Seconds a Retry-After header asks for, in either of its two forms; None if it is absent or unreadable."""
        if not named:
            return None
        if named.isdigit():
            return float(named)
        try:
            moment = parsedate_to_datetime(named)
        except ValueError:
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - self._now())


def _body(json_body: Any) -> bytes | None:
    """A value written as JSON, as httpx writes it, or bytes that are JSON."""
    if json_body is None or isinstance(json_body, bytes):
        return json_body
    return json.dumps(json_body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _keep_part(ask: Ask, response: _Response | None, body: bytes | bytearray) -> None:
    if ask.download is not None and response is not None:
        ask.download.broke_off(response.status_code, response.headers, bytes(body))
