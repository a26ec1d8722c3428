"""HTTP client of every service: retries, rate limits, circuit breakers, response validation, no secrets in errors."""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from schemas.settings.endpoint import Allowance
from schemas.settings.services import is_private
from tasks.services.errors import Classify, HttpResponse, Kind, ServiceError, error_by_status, safe_text, safe_url
from tasks.services.limits import HostLimits, Suspended, host_limits
from tasks.services.meter import request_span
from tasks.services.network import url_as_sent
from tasks.services.rate_budget import UsedUp, asking, rate_limiter_of
from tasks.services.transport import Connection, Download, HttpRequest, HttpTransport

UNITS_A_MINUTE = 600.0  # of a budget of tokens: ten of them a second
UNAVAILABLE = 503
LATELY_S = 5.0  # a host that answered this long ago is not out
_JSON_ALIASES = ("text/json", "text/javascript", "application/javascript")  # what some servers call it

Params = Mapping[str, Any]
# Sends one request; is told how long the first bytes of the response took.
Send = Callable[[HttpRequest, Callable[[float], None]], Awaitable[HttpResponse]]


@dataclass(frozen=True)
class Expected:
    """What a good response is, and what others mean."""

    accept: str | tuple[str, ...] = "application/json"  # media types; one ending in a slash is a prefix, */* is any
    also: tuple[int, ...] = ()  # statuses that are answers without a body to check, such as 304
    classify: Classify | None = None  # the error that a bad response is
    check: Callable[[Any, HttpResponse], None] | None = None  # (JSON value or None, response): may raise ServiceError
    is_json: bool = False


EXPECTED = Expected()


@dataclass(frozen=True)
class PaidCall:
    """A request that costs money.

    A server that knows the id answers a repeated request without working, and being paid, again.
    """

    call_id: str
    weight: float = 0.0  # what it counts in a budget of tokens


@dataclass
class _Passage:
    """Whether a request is the probe of a breaker: of an outage, of a limit."""

    probes_outage: bool = False
    probes_limit: bool = False


class HttpClient:
    """Requests to one service: within its budgets and concurrency, tried again by kind of error.

    Addresses other than `base_url` and `configured` were named by others: unless the service itself is in a private
    network, only public hosts get them. `send` replaces the transport.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        headers: Mapping[str, str] | None = None,
        configured: tuple[str | None, ...] = (),
        send: Send | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.service = connection.service
        self._section = connection.section or f"services.{connection.service}"
        self.endpoint = connection.endpoint
        self.secrets = connection.secrets
        contact = f" (+{connection.contact})" if connection.contact else ""
        self._name = {"User-Agent": f"{self.endpoint.user_agent}{contact}"}
        self._headers = {**self._name, **(headers or {})}
        self._sleep, self._uniform = sleep, uniform
        self._rate_budget = connection.rate_budget
        self._allowances: dict[str, tuple[Allowance, ...]] = {}  # by kind of request, those that limit something
        base_url = self.endpoint.base_url
        self._guards = not is_private(base_url)
        self._trusted = {_origin(url) for url in (base_url, *configured) if url is not None} - {("", 0)}
        self.transport = HttpTransport(connection, now)
        self._send = send or self.transport.send

    async def get(
        self, path: str, params: Params | None = None, *, kind: str = "", expected: Expected = EXPECTED
    ) -> HttpResponse:
        """The response of the service to one request. `kind` says in which of its budgets the request is counted."""
        request = HttpRequest("GET", _with_query(self._address(path), params), self._headers, None, kind)
        return await self._exchange(request, expected)

    async def fetch(
        self,
        url: str,
        params: Params | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        kind: str = "",
        resume: bool = False,
        expected: Expected = EXPECTED,
    ) -> HttpResponse:
        """The response of another address, to which neither key nor other header of ours goes along.

        With `resume`, a file that breaks off is continued where it ended, if its host can.
        """
        request = HttpRequest(
            "GET",
            _with_query(url, params),
            {**self._name, **(headers or {})},
            None,
            kind,
            guarded=self._guards and _origin(url) not in self._trusted,
            download=Download() if resume else None,
        )
        return await self._exchange(request, expected)

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        kind: str = "",
        expected: Expected = EXPECTED,
        paid: PaidCall | None = None,
    ) -> tuple[Any, HttpResponse]:
        """The JSON value that the service answers, and the response it came in. `body` is sent as JSON."""
        encoded: bytes | None = body
        if body is not None and not isinstance(body, bytes):
            encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        told = {**self._headers, **(headers or {}), **({"Content-Type": "application/json"} if encoded else {})}
        request = HttpRequest(method, _with_query(self._address(path), params), told, encoded, kind)
        response = await self._exchange(request, replace(expected, is_json=True), paid)
        return response.json(), response

    def _address(self, path: str) -> str:
        return f"{self.endpoint.base_url}{path}"

    async def _exchange(self, request: HttpRequest, expected: Expected, paid: PaidCall | None = None) -> HttpResponse:
        """The response to one request, tried again while trying again can help."""
        kind, address = request.kind, request.url
        host = host_limits(self.service, self.endpoint, kind, address)
        sent, tried, recoveries, first_refused_s = 0, 0, host.limit.recoveries, 0.0
        failed: ServiceError | None = None
        while True:
            if paid:  # a new key for each attempt: a stored failure must not be repeated to us
                request = replace(request, headers={**request.headers, "Idempotency-Key": f"{paid.call_id}-{sent}"})
            try:
                await host.concurrency.enter()
                passage = _Passage()
                try:
                    await self._pass(host, passage, kind, address, paid.weight if paid else 0.0)
                    await host.pace.wait(self._sleep)
                    response, failed = await self._try(request, host, passage, expected)
                finally:
                    # Without effect where the attempt was reported.
                    if passage.probes_limit:
                        host.limit.abandoned()
                    if passage.probes_outage:
                        host.outage.abandoned()
                    host.concurrency.leave()
            except Suspended as limit:
                raise self._over_limit(limit, address, failed) from None
            sent += 1
            if failed is None:
                return replace(response, attempts=sent) if sent > 1 else response
            failed.attempts = sent
            if failed.retryable and failed.kind == "rate_limit" and host.limit.open:
                # The next attempt waits for the limit's end: patience ends that, not a number of tries. Only a request
                # that is refused again after others were answered has used a try.
                was_over, recoveries = host.limit.recoveries > recoveries, host.limit.recoveries
                tried += was_over
                if tried < self.endpoint.max_attempts:
                    continue
                raise failed
            tried += 1
            wait_s = self._wait_before_retry(tried, failed)
            first_refused_s = first_refused_s or time.monotonic()
            # A host that is queried at its own pace refuses now and then: patience ends that, not a number of tries.
            is_paced = failed.kind == "rate_limit" and host.pace.interval_s > 0
            is_patient = is_paced and time.monotonic() - first_refused_s < self.endpoint.limit_patience_s
            is_over = tried >= self.endpoint.max_attempts and not is_patient
            if not failed.retryable or is_over or wait_s is None:
                raise failed
            await self._sleep(wait_s)

    def bad_response(self, what: str, response: HttpResponse, *, retryable: bool = False) -> ServiceError:
        """An error for a response that breaks the protocol."""
        message = f"{safe_text(what, self.secrets)}: {response.url}"
        return ServiceError(self.service, "bad_response", message, status=response.status, retryable=retryable)

    def list_under(self, value: Any, name: str, response: HttpResponse) -> list[Any]:
        """The list that an answer has under a name; an answer without one breaks the protocol."""
        rows = value.get(name) if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise self.bad_response(f"no list under '{name}'", response)
        return rows

    async def close(self) -> None:
        """Close the connections of the running loop, unless other clients use them."""
        await self.transport.close()

    async def _pass(self, host: HostLimits, passage: _Passage, kind: str, address: str, weight: float) -> None:
        """Wait at the breakers and for a permit; the errors of getting none are not tried again."""
        passage.probes_limit = await host.limit.enter(self._sleep, self._observe(host.name))
        try:
            passage.probes_outage = await host.outage.enter()
        except Suspended as out:
            # The cause first: texts are cut at their end.
            message = f"the service is out{_so_far(out.since_s)}: {out.last}; not asked: {safe_url(address)}"
            raise self._error("outage", message, True) from None
        if weight > 0:
            await self._weigh(weight)
        if kind not in self._allowances:
            self._allowances[kind] = tuple(
                allowance for allowance in self.endpoint.allowances(kind) if not allowance.is_open
            )
        for allowance in self._allowances[kind]:
            await self._permit(allowance)

    def _observe(self, name: str) -> Callable[[], Awaitable[float]] | None:
        rate_budget = self._rate_budget
        return None if rate_budget is None else lambda: asyncio.wrap_future(asking.submit(rate_budget.paused_s, name))

    def _over_limit(self, limit: Suspended, address: str, refused: ServiceError | None) -> ServiceError:
        setting = f"{self._section}.limit_patience_s={self.endpoint.limit_patience_s:g}"
        error = self._error(
            "rate_limit",
            f"the limit is reached{_so_far(limit.since_s)}; run again{_not_before(limit.again_s)} ({setting}); "
            f"{refused.message if refused else f'not asked: {safe_url(address)}'}",
            True,
        )
        if refused:
            error.status, error.attempts = refused.status, refused.attempts
        return error

    async def _weigh(self, weight: float) -> None:
        """Wait until the budget of tokens has room for a request; it is handed out in units."""
        per_minute = getattr(self.endpoint, "tokens_per_minute", None)
        if not per_minute:
            return
        unit = max(1.0, per_minute / UNITS_A_MINUTE)
        allowance = Allowance("tokens", per_minute / unit)
        permits = rate_limiter_of(self._rate_budget, f"{self.endpoint.base_url} tokens", allowance)
        for _ in range(math.ceil(weight / unit)):
            await permits.acquire(self._sleep)

    async def _permit(self, allowance: Allowance) -> None:
        permits = rate_limiter_of(self._rate_budget, f"{self.endpoint.base_url} {allowance.name}", allowance)
        try:
            await permits.acquire(self._sleep)
        except UsedUp as error:
            raise self._error(
                "quota",
                f"the day's {allowance.per_day or 0:,} requests are used up ({self._section}."
                f"{allowance.day_setting}); they renew at {error.renews_at:%Y-%m-%d %H:%M} UTC: "
                "run again after that",
                False,
            ) from None

    async def _try(
        self, request: HttpRequest, host: HostLimits, passage: _Passage, expected: Expected
    ) -> tuple[HttpResponse, ServiceError | None]:
        """The response and no error, or the error; both are reported to the host's limiter and breakers."""
        sent_at_s = time.monotonic()
        response = HttpResponse(0, "", b"", "")
        try:
            with request_span(self.service, request.kind) as span:
                response = await self._send(request, host.concurrency.answered)
                span["status"] = response.status
            if response.status not in expected.also:
                self._check_status(response, request, expected.classify)
                self._check_content_type(response, expected.accept)
                self._check_body(response, expected)
        except ServiceError as error:
            is_page = error.status == UNAVAILABLE and "html" in response.content_type.lower()
            if is_page and error.kind == "outage":  # how nginx words its limit, unless told otherwise
                if host.pace.answered_lately(LATELY_S):
                    error.kind = "rate_limit"
                else:
                    error.message += f"; if that is its request limit, lower {self._section}.requests_per_minute"
            if error.kind in ("rate_limit", "timeout"):
                host.concurrency.too_much(sent_at_s)
            if error.kind == "rate_limit":
                host.pace.refused(sent_at_s)
            if error.kind in ("outage", "timeout"):
                code = f"HTTP {error.status}, " if error.status else ""
                host.outage.failed(passage.probes_outage, why=code + error.message)
                return response, error
            host.outage.answered(sent_at_s, passage.probes_outage)
            if error.kind == "rate_limit" and error.retryable:
                brief = host.pace.answered_lately(LATELY_S)
                pause_s = host.limit.failed(passage.probes_limit, error.retry_after_s, error.message, brief)
                self._tell_pause(host, pause_s)
            elif host.limit.answered(sent_at_s, passage.probes_limit):
                self._tell_pause(host, 0.0)
            return response, error
        host.outage.answered(sent_at_s, passage.probes_outage)
        host.pace.answered()
        if host.limit.answered(sent_at_s, passage.probes_limit):
            self._tell_pause(host, 0.0)
        return response, None

    def _tell_pause(self, host: HostLimits, pause_s: float | None) -> None:
        """Tell the other processes of the lake that a pause begins, or is over (0)."""
        if pause_s is not None and self._rate_budget is not None:
            asking.submit(self._rate_budget.pause, host.name, pause_s)

    def _check_body(self, response: HttpResponse, expected: Expected) -> None:
        value = None
        if expected.is_json:
            try:
                value = response.json()
            except ValueError:
                # Half a body under the right length: gateways do that when what is behind them breaks off.
                raise self.bad_response("the body is not JSON", response, retryable=True) from None
        if expected.check:
            expected.check(value, response)

    def _check_status(self, response: HttpResponse, request: HttpRequest, classify: Classify | None) -> None:
        if response.status == 206 and not any(name.lower() == "range" for name in request.headers):
            raise self.bad_response("a part that was not requested", response, retryable=True)
        if not 200 <= response.status < 300:
            exact = classify(response) if classify else None
            failed = exact or error_by_status(self.service, response, self.secrets)
            failed.retry_after_s = response.retry_after_s
            raise failed

    def _check_content_type(self, response: HttpResponse, accept: str | tuple[str, ...]) -> None:
        media = response.content_type.partition(";")[0].strip().lower()
        if media == accept:
            return
        wanted = (accept,) if isinstance(accept, str) else accept
        if "application/json" in wanted:
            wanted = (*wanted, *_JSON_ALIASES)
        if any(kind == "*/*" or media == kind or (kind[-1:] == "/" and media.startswith(kind)) for kind in wanted):
            return
        error = self.bad_response(f"content type {media or 'missing'!r}, not {wanted[0]!r}", response, retryable=True)
        if media in ("text/html", "application/xhtml+xml"):
            error.kind = "outage"  # a gateway's error page under status 200: what is behind it does not answer
        raise error

    def _wait_before_retry(self, attempt: int, error: ServiceError) -> float | None:
        """Seconds to wait: what the service asks for, else full jitter; None if it asks for more than we wait."""
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.endpoint.max_wait_s else None
        ceiling_s = min(self.endpoint.max_wait_s, self.endpoint.backoff_s * 2 ** (attempt - 1))
        return self._uniform(0.0, ceiling_s)

    def _error(self, kind: Kind, message: str, retryable: bool) -> ServiceError:
        return self.transport.error(kind, message, retryable)


class ServiceClient:
    """What the clients of all services have in common: requests go through `_http`."""

    def __init__(self, connection: Connection, headers: Mapping[str, str] | None = None, **http_options: Any) -> None:
        self._http = HttpClient(connection, headers=headers, **http_options)

    @property
    def base_url(self) -> str:
        return self._http.endpoint.base_url

    async def close(self) -> None:
        await self._http.close()


def key_header(connection: Connection, name: str = "Authorization", scheme: str = "Bearer ") -> dict[str, str]:
    """The header that carries the key, where there is one."""
    return {name: f"{scheme}{connection.secrets[0]}"} if connection.secrets else {}


def _so_far(seconds: float) -> str:
    return f" for {seconds:.0f} s now" if seconds >= 1 else ""


def _not_before(seconds: float) -> str:
    return f" in {seconds:.0f} s" if seconds >= 1 else ""


def _origin(url: str) -> tuple[str, int]:
    """Host and port of an address, as they will be connected to."""
    try:
        sent = url_as_sent(url)
        return (sent.host or "").lower(), sent.port or 0
    except ValueError:  # a pattern, of which nothing can be trusted as it stands
        return "", 0


def _with_query(url: str, params: Params | None) -> str:
    if not params:
        return url
    written = {name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items()}
    return f"{url.partition('#')[0].partition('?')[0]}?{urlencode(written)}"
