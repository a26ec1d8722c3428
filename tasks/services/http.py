"""HTTP client of every service: retries, rate limits, circuit breakers, response validation, no secrets in errors."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import SecretStr

from schemas.settings.endpoint import Allowance
from schemas.settings.services import Endpoint
from tasks.services.answer import Answer, Classify, error_by_status
from tasks.services.breaker import Suspended
from tasks.services.errors import Kind, ServiceError, safe_url
from tasks.services.host import Host, host_of
from tasks.services.partial import Download
from tasks.services.rate_budget import RateBudget
from tasks.services.rate_limiter import UsedUp, asking, rate_limiter_of
from tasks.services.transfer import Ask, Params, Transfers

if TYPE_CHECKING:
    from tasks.services.models import Models

__all__ = ["Answer", "Classify", "Connection", "Http", "Params", "error_by_status"]

UNITS_A_MINUTE = 600.0  # of a budget of tokens: ten of them a second
_JSON_ALIASES = ("text/json", "text/javascript", "application/javascript")  # what some servers call it


@dataclass(frozen=True)
class Connection:
    """A service's endpoint with its key; travels to workers, shows no secret when printed."""

    service: str
    endpoint: Endpoint
    key: SecretStr | None = None
    contact: str | None = None  # where the service's operator can reach us
    # Of budgets shared with other processes; None: this process's own.
    rate_budget: RateBudget | None = field(default=None, repr=False, compare=False)
    section: str = ""  # where its settings stand, if not under services
    # Of a chat service: the roles, and the other servers that they may be asked of.
    models: "Models | None" = field(default=None, repr=False, compare=False)


@dataclass
class _Passage:
    """Whether a request is the probe of a breaker: of an outage, of a limit."""

    probes_outage: bool = False
    probes_limit: bool = False


class Http:
    """Requests to one service: within its budgets and concurrency, tried again by kind of error."""

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
        self._section = connection.section or f"services.{connection.service}"
        self.endpoint = connection.endpoint
        self.secrets = (connection.key.get_secret_value(),) if connection.key else ()
        contact = f" (+{connection.contact})" if connection.contact else ""
        self._name = {"User-Agent": f"{self.endpoint.user_agent}{contact}"}
        self._headers = {**self._name, **(headers or {})}
        self._sleep, self._uniform = sleep, uniform
        self._rate_budget = connection.rate_budget
        self._allowances: dict[str, tuple[Allowance, ...]] = {}  # by kind of request, those that limit something
        self._transfers = Transfers(self.service, self.endpoint, self.secrets, transport, now)

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
        kind: str = "",
        resume: bool = False,
        weight: float = 0.0,
        call_id: str = "",
        classify: Classify | None = None,
        check: Callable[[Answer], None] = lambda answer: None,
    ) -> Answer:
        """The answer to one request, tried again while trying again can help.

        `url` asks another host, and then neither key nor other header of ours goes along. `accept` is the media type
        demanded of a good answer (or several of them); one ending in a slash is a prefix, */* is any. `also` are
        statuses that are answers without a body to look at, such as 304. `kind` says which of the service's budgets
        the request is counted in. With `resume`, a file that breaks off is continued where it ended, if its host can.
        `weight` is what the request counts in a budget that is not of requests, such as that of tokens.
        `call_id` names a call that is to be paid for once; a server may know a repeated one by it.
        `check` may refuse a good answer with ServiceError.
        """
        ask = Ask(
            method,
            url or f"{self.endpoint.base_url}{path}",
            {**(self._headers if url is None else self._name), **(headers or {})},
            params,
            json_body,
            Download() if resume else None,
            kind,
            call_id,
        )
        host = host_of(self.service, self.endpoint, kind, ask.address)
        sent, tried, recoveries = 0, 0, host.limit.recoveries
        failed: ServiceError | None = None
        while True:
            try:
                await host.concurrency.enter()
                passage = _Passage()
                try:
                    await self._pass(host, passage, kind, ask.address, weight)
                    tried_now = replace(ask, attempt=sent) if sent else ask
                    answer, failed = await self._try(tried_now, host, passage, accept, also, classify, check)
                finally:
                    # Without effect where the attempt was reported.
                    if passage.probes_limit:
                        host.limit.abandoned()
                    if passage.probes_outage:
                        host.outage.abandoned()
                    host.concurrency.leave()
            except Suspended as limit:
                raise self._over_limit(limit, ask.address, failed) from None
            sent += 1
            if failed is None:
                return replace(answer, attempts=sent) if sent > 1 else answer
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
            if not failed.retryable or tried >= self.endpoint.max_attempts or wait_s is None:
                raise failed
            await self._sleep(wait_s)

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
        return self._transfers.bad_response(what, answer, retryable)

    async def close(self) -> None:
        """Close the connections of the running loop."""
        await self._transfers.close()

    async def _pass(self, host: Host, passage: _Passage, kind: str, address: str, weight: float) -> None:
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
            self._allowances[kind] = tuple(one for one in self.endpoint.allowances(kind) if not one.is_open)
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
        assert permits is not None
        for _ in range(math.ceil(weight / unit)):
            await permits.take(self._sleep)

    async def _permit(self, allowance: Allowance) -> None:
        permits = rate_limiter_of(self._rate_budget, f"{self.endpoint.base_url} {allowance.name}", allowance)
        assert permits is not None
        try:
            await permits.take(self._sleep)
        except UsedUp as error:
            raise self._error(
                "quota",
                f"the day's {allowance.per_day or 0:,} requests are used up ({self._section}."
                f"{allowance.day_setting}); they renew at {error.renews_at:%Y-%m-%d %H:%M} UTC: "
                "run again after that",
                False,
            ) from None

    async def _try(
        self,
        ask: Ask,
        host: Host,
        passage: _Passage,
        accept: str | tuple[str, ...],
        also: tuple[int, ...],
        classify: Classify | None,
        check: Callable[[Answer], None],
    ) -> tuple[Answer, ServiceError | None]:
        """The answer and no error, or the error; both are reported to the host's limiter and breakers."""
        sent_at_s = time.monotonic()
        answer = Answer(0, "", b"", "")
        try:
            answer = await self._transfers.send(ask, host.concurrency.answered)
            if answer.status not in also:
                self._check_status(answer, ask, classify)
                self._check_content_type(answer, accept)
                check(answer)
        except ServiceError as error:
            if error.kind in ("rate_limit", "timeout"):
                host.concurrency.too_much(sent_at_s)
            if error.kind in ("outage", "timeout"):
                code = f"HTTP {error.status}, " if error.status else ""
                host.outage.failed(passage.probes_outage, why=code + error.message)
                return answer, error
            host.outage.answered(sent_at_s, passage.probes_outage)
            if error.kind == "rate_limit" and error.retryable:
                self._tell_pause(host, host.limit.failed(passage.probes_limit, error.retry_after_s, error.message))
            elif host.limit.answered(sent_at_s, passage.probes_limit):
                self._tell_pause(host, 0.0)
            return answer, error
        host.outage.answered(sent_at_s, passage.probes_outage)
        if host.limit.answered(sent_at_s, passage.probes_limit):
            self._tell_pause(host, 0.0)
        return answer, None

    def _tell_pause(self, host: Host, pause_s: float | None) -> None:
        """Tell the other processes of the lake that a pause begins, or is over (0)."""
        if pause_s is not None and self._rate_budget is not None:
            asking.submit(self._rate_budget.pause, host.name, pause_s)

    def _check_status(self, answer: Answer, ask: Ask, classify: Classify | None) -> None:
        if answer.status == 206 and not any(name.lower() == "range" for name in ask.headers):
            raise self.bad_response("a part that was not asked for", answer, retryable=True)
        if not 200 <= answer.status < 300:
            exact = classify(answer) if classify else None
            failed = exact or error_by_status(self.service, answer, self.secrets)
            failed.retry_after_s = answer.retry_after_s
            raise failed

    def _check_content_type(self, answer: Answer, accept: str | tuple[str, ...]) -> None:
        media = answer.content_type.partition(";")[0].strip().lower()
        if media == accept:
            return
        wanted = (accept,) if isinstance(accept, str) else accept
        if "application/json" in wanted:
            wanted = (*wanted, *_JSON_ALIASES)
        if any(kind == "*/*" or media == kind or (kind[-1:] == "/" and media.startswith(kind)) for kind in wanted):
            return
        error = self.bad_response(f"content type {media or 'missing'!r}, not {wanted[0]!r}", answer, retryable=True)
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
        return self._transfers.error(kind, message, retryable)


def _so_far(seconds: float) -> str:
    return f" for {seconds:.0f} s now" if seconds >= 1 else ""


def _not_before(seconds: float) -> str:
    return f" in {seconds:.0f} s" if seconds >= 1 else ""
