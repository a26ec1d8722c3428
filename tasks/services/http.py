"""One HTTP client for every service: patient, suspicious of answers, and silent about secrets."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import SecretStr

from schemas.settings.services import Endpoint, is_loopback
from tasks.services.errors import Kind, ServiceError, safe_text, safe_url
from tasks.services.limit import shared_limit

Params = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Connection:
    """A service's endpoint with its key; travels to workers, shows no secret when printed."""

    service: str
    endpoint: Endpoint
    key: SecretStr | None = None


@dataclass(frozen=True)
class Answer:
    """A whole answer: status, headers and body as received."""

    status: int
    content_type: str
    body: bytes
    url: str  # safe to show
    attempts: int = 1
    retry_after_s: float | None = None  # the wait the service asks for
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # names in lower case

    def json(self) -> Any:
        """The body as JSON, or ValueError."""
        return json.loads(self.body)


# Turns an answer with an error status into a more exact error than its status alone says; None: the status decides.
Classify = Callable[[Answer], ServiceError | None]


class _HideQueries(logging.Filter):
    """httpx logs every requested URL, signatures included; this makes them safe before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(safe_url(str(a)) if isinstance(a, httpx.URL) else a for a in record.args)
        return True


_hide_queries = _HideQueries()

_BY_STATUS: dict[int, tuple[Kind, bool]] = {
    400: ("rejected", False),
    401: ("auth", False),
    403: ("auth", False),
    404: ("not_found", False),
    408: ("timeout", True),
    410: ("not_found", False),
    413: ("too_big", False),
    425: ("outage", True),
    429: ("rate_limit", True),
    501: ("rejected", False),
    504: ("timeout", True),
}


def error_by_status(service: str, answer: Answer, secrets: tuple[str, ...] = ()) -> ServiceError:
    """The error an HTTP status alone speaks of."""
    if answer.status in _BY_STATUS:
        kind, retryable = _BY_STATUS[answer.status]
    elif answer.status >= 500:
        kind, retryable = "outage", True
    elif answer.status >= 400:
        kind, retryable = "rejected", False
    else:
        # 1xx and 3xx: we follow no redirect, since it could carry a key to another host
        kind, retryable = "bad_response", False
    said = safe_text(answer.body[:2000].decode("utf-8", "replace"), secrets)
    return ServiceError(service, kind, f"{answer.url} said: {said}", status=answer.status, retryable=retryable)


class Http:
    """Requests to one service, with retries by kind of error, timeouts, a rate ceiling and checked answers."""

    def __init__(
        self,
        connection: Connection,
        *,
        headers: Mapping[str, str] | None = None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.service = connection.service
        self.endpoint = connection.endpoint
        self.secrets = (connection.key.get_secret_value(),) if connection.key else ()
        self._headers = {"User-Agent": self.endpoint.user_agent, **(headers or {})}
        self._transport = transport  # makes the way to a host, one a loop; none: httpx's own
        self._sleep, self._uniform, self._now = sleep, uniform, now
        self._limit = shared_limit(self.endpoint.base_url, self.endpoint.requests_per_minute)
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def request(
        self,
        method: str,
        path: str = "",
        *,
        url: str | None = None,
        params: Params | None = None,
        json_body: Any = None,
        headers: Mapping[str, str] | None = None,
        accept: str | tuple[str, ...] = "application/json",
        also: tuple[int, ...] = (),
        classify: Classify | None = None,
        check: Callable[[Answer], None] = lambda answer: None,
    ) -> Answer:
        """The answer to one request, tried again while trying again can help.

        `url` asks another host, and then neither key nor other header of ours goes along. `accept` is the media type
        demanded of a good answer (or several of them); one ending in a slash is a prefix, */* is any. `also` are
        statuses that are answers without a body to look at, such as 304. `check` may refuse a good one with
        ServiceError.
        """
        address = url or f"{self.endpoint.base_url}{path}"
        for attempt in range(1, self.endpoint.max_attempts + 1):
            if self._limit is not None and (queue_s := self._limit.reserve()) > 0:
                await self._sleep(queue_s)
            try:
                answer = await self._once(method, address, url is None, params, json_body, headers or {})
                if answer.status in also:
                    return replace(answer, attempts=attempt)
                if not 200 <= answer.status < 300:
                    exact = classify(answer) if classify else None
                    failed = exact or error_by_status(self.service, answer, self.secrets)
                    failed.retry_after_s = answer.retry_after_s
                    raise failed
                self._check_content_type(answer, accept)
                check(answer)
                return replace(answer, attempts=attempt)
            except ServiceError as error:
                error.attempts = attempt
                wait_s = self._wait_before_retry(attempt, error)
                if not error.retryable or attempt == self.endpoint.max_attempts or wait_s is None:
                    raise
                await self._sleep(wait_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def request_json(self, method: str, path: str, **options: Any) -> tuple[Any, Answer]:
        """The JSON value answered, and the answer it came in."""
        parsed: list[Any] = []

        def parse(answer: Answer) -> None:
            try:
                parsed[:] = [answer.json()]
            except ValueError:
                # Half a body under the right length: gateways do that when what is behind them breaks off.
                raise self.bad_response("the body is not JSON", answer, retryable=True) from None

        answer = await self.request(method, path, check=parse, **options)
        return parsed[0], answer

    def bad_response(self, what: str, answer: Answer, *, retryable: bool = False) -> ServiceError:
        """An error for an answer that breaks the protocol."""
        text = safe_text(what, self.secrets)
        return ServiceError(
            self.service, "bad_response", f"{answer.url}: {text}", status=answer.status, retryable=retryable
        )

    async def close(self) -> None:
        """Close the connections of the running loop."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    def _client_of_this_loop(self) -> httpx.AsyncClient:
        # A pool belongs to the loop it was made in; a worker may run each batch in a loop of its own.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            for name in ("httpx", "httpcore"):
                logging.getLogger(name).addFilter(_hide_queries)
            timeout = httpx.Timeout(self.endpoint.timeout_s, connect=self.endpoint.connect_timeout_s)
            # A proxy from the environment cannot reach our own loopback.
            trust = not is_loopback(self.endpoint.base_url)
            transport = self._transport() if self._transport else None
            self._client = httpx.AsyncClient(
                timeout=timeout, trust_env=trust, follow_redirects=False, transport=transport
            )
            self._loop = loop
        return self._client

    async def _once(
        self, method: str, address: str, ours: bool, params: Params | None, json_body: Any, more: Mapping[str, str]
    ) -> Answer:
        headers = {**(self._headers if ours else {"User-Agent": self.endpoint.user_agent}), **more}
        client = self._client_of_this_loop()
        shown = safe_url(address)
        started = False
        try:
            # httpx drops the address's own query if it is given params, even empty ones
            request = client.build_request(method, address, params=params or None, json=json_body, headers=headers)
            shown = safe_url(str(request.url))
            async with asyncio.timeout(self.endpoint.total_timeout_s):
                response = await client.send(request, stream=True)
                try:
                    started = True
                    body = await self._read(response, shown)
                finally:
                    await response.aclose()
        # `from None` throughout: httpx's own messages and requests may hold the full URL.
        except (httpx.TimeoutException, TimeoutError) as error:
            raise self._error("timeout", f"{shown}: no answer in time ({type(error).__name__})", True) from None
        except httpx.DecodingError:
            raise self._error("bad_response", f"{shown}: the body cannot be decompressed", True) from None
        except httpx.TransportError as error:
            if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
                raise self._error("rejected", f"{shown}: {type(error).__name__}", False) from None
            if started:
                raise self._error("bad_response", f"{shown}: the answer broke off", True) from None
            raise self._error("outage", f"{shown}: cannot be reached ({type(error).__name__})", True) from None
        except httpx.InvalidURL:
            raise self._error("rejected", f"{shown}: not a valid address", False) from None
        answer = Answer(
            response.status_code,
            response.headers.get("content-type", ""),
            body,
            shown,
            retry_after_s=self._retry_after_s(response.headers.get("retry-after", "").strip()),
            headers=dict(response.headers),
        )
        self._check_length(response, answer)
        return answer

    async def _read(self, response: httpx.Response, shown: str) -> bytes:
        limit = int(self.endpoint.max_body_mb * 1_000_000)
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > limit:
                raise self._error("bad_response", f"{shown}: more than {self.endpoint.max_body_mb:g} MB", False)
        return bytes(body)

    def _check_length(self, response: httpx.Response, answer: Answer) -> None:
        promised = response.headers.get("content-length", "")
        received = response.num_bytes_downloaded
        bodiless = response.request.method == "HEAD" or answer.status in (204, 304)
        if promised.isdigit() and not bodiless and int(promised) != received:
            raise self.bad_response(f"{received} of {promised} bytes came", answer, retryable=True)

    def _check_content_type(self, answer: Answer, accept: str | tuple[str, ...]) -> None:
        media = answer.content_type.partition(";")[0].strip().lower()
        wanted = (accept,) if isinstance(accept, str) else accept
        if not any(kind == "*/*" or media == kind or (kind[-1:] == "/" and media.startswith(kind)) for kind in wanted):
            # Gateways put HTML error pages under status 200; they pass.
            raise self.bad_response(f"content type {media or 'missing'!r}, not {wanted[0]!r}", answer, retryable=True)

    def _retry_after_s(self, named: str) -> float | None:
        """Seconds a Retry-After header asks for, in either of its two forms; None if it is absent or unreadable."""
        if named.isdigit():
            return float(named)
        try:
            moment = parsedate_to_datetime(named)
        except ValueError:
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - self._now())

    def _wait_before_retry(self, attempt: int, error: ServiceError) -> float | None:
        """Seconds to wait: what the service asks for, else full jitter; None if it asks for more than we wait."""
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.endpoint.max_wait_s else None
        ceiling_s = min(self.endpoint.max_wait_s, self.endpoint.backoff_s * 2 ** (attempt - 1))
        return self._uniform(0.0, ceiling_s)

    def _error(self, kind: Kind, message: str, retryable: bool) -> ServiceError:
        return ServiceError(self.service, kind, safe_text(message, self.secrets, limit=400), retryable=retryable)
