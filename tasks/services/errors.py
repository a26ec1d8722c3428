"""What a service answered, the one error every client raises, and texts and addresses made safe to show."""

import asyncio
import functools
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import parse_qsl, quote, urlsplit

from schemas.messages import Usage

T = TypeVar("T")

Kind = Literal[
    "rate_limit",  # too many requests: waiting a little helps
    "quota",  # a quota or a day's budget is used up: only waiting for its renewal helps
    "outage",  # the service is down, or the connection broke
    "timeout",  # no answer in time
    "bad_response",  # an answer that is not what the protocol promises
    "auth",  # key missing, wrong or without the right
    "banned",  # a gateway answers with a page for people that it refuses us: asking on would make it worse
    "not_found",  # no such thing
    "expired",  # a signed address that is past its time; ask for a new one
    "too_big",  # the box (or the request) is larger than the service allows
    "too_dense",  # the box holds more than the service answers; split it
    "rejected",  # the service says the request itself is wrong
    "blocked",  # an address that is not queried, or a host that does not give what is needed, whatever the file
]

# Every other query parameter may be a token or part of a signature, so only these are ever shown.
_SHOWN = {
    *("bbox", "is_pano", "limit", "ids", "sequence_id", "sequence_ids", "start_captured_at"),
    *("end_captured_at", "q", "lat", "lon", "zoom", "format", "addressdetails", "accept-language", "max_results"),
}
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>]+", re.IGNORECASE)
_SIGN_IN = re.compile(r"[^\s/@\"'<>:]{1,64}:[^\s/@\"'<>]{1,128}@(?=[\w\[])")  # user:password@host without a scheme
_READ = 20_000  # characters of a text that are looked at; far more than are ever shown


@functools.lru_cache(maxsize=256)
def safe_url(url: str) -> str:
    """The address without user, fragment, tokens and signatures."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return "(malformed address)"
    shown = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if k in _SHOWN]
    query = "&".join(f"{k}={quote(v, safe=',.:-')}" for k, v in shown)
    where = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"
    return f"{where}?{query}" if query else where


def safe_text(text: str, secrets: tuple[str, ...] = (), limit: int = 200) -> str:
    """Text from outside on one line, cut to `limit`, without the given secrets and without signed addresses."""
    text = text[:_READ]
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
    text = _SIGN_IN.sub("***@", _URL.sub(lambda match: safe_url(match.group()), text))
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


class ServiceError(Exception):
    """A service did not give what was requested.

    `retryable` says that the same request may succeed later. The message never holds a secret: the raising code
    passes text through `safe_text` and addresses through `safe_url`.
    """

    def __init__(
        self, service: str, kind: Kind, message: str, *, status: int | None = None, retryable: bool = False
    ) -> None:
        if kind not in get_args(Kind):
            raise ValueError(f"unknown kind of service error: {kind}")
        self.service = service
        self.kind = kind
        self.message = message
        self.status = status
        self.retryable = retryable
        self.retry_after_s: float | None = None
        self.attempts = 1
        self.usage: Usage | None = None  # of an answer that was paid for and cannot be used
        super().__init__(service, kind, message)

    def __str__(self) -> str:
        code = f" (HTTP {self.status})" if self.status is not None else ""
        tries = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{self.service}: {self.kind}{code}{tries}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # Ray sends exceptions between processes; the default would lose the keyword arguments.
        return (_rebuild, (self.service, self.kind, self.message, self.status, self.retryable, self.attempts))


def _rebuild(
    service: str, kind: Kind, message: str, status: int | None, retryable: bool, attempts: int
) -> ServiceError:
    error = ServiceError(service, kind, message, status=status, retryable=retryable)
    error.attempts = attempts
    return error


@dataclass(frozen=True)
class HttpResponse:
    """A whole response: status, headers and decompressed body."""

    status: int
    content_type: str
    body: bytes
    url: str  # safe to show
    attempts: int = 1
    retry_after_s: float | None = None  # the wait the service asks for
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # names in lower case

    def json(self) -> Any:
        """The body as JSON, or ValueError."""
        return self._json

    @cached_property
    def _json(self) -> Any:
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


# Turns a response with an error status into a more exact error than its status alone says; None: the status decides.
Classify = Callable[[HttpResponse], ServiceError | None]

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


def error_by_status(service: str, response: HttpResponse, secrets: tuple[str, ...] = ()) -> ServiceError:
    """The error that an HTTP status alone stands for."""
    status = response.status
    kind: Kind
    if status == 403 and "html" in response.content_type.lower():
        detail = (
            f"a gateway refuses us with a page (403), and nothing more is requested: lower services.{service}."
            "requests_per_minute, name services.contact, or look at the proxy on the way"
        )
        return ServiceError(service, "banned", f"{detail} ({response.url})", status=status)
    if status in _BY_STATUS:
        kind, retryable = _BY_STATUS[status]
    elif status >= 400:
        kind, retryable = ("outage", True) if status >= 500 else ("rejected", False)
    else:
        # 1xx and 3xx: redirects are not followed, since one could carry a key to another host or lead into our network
        target = safe_url(response.headers.get("location", ""))[:200]
        message = f"redirects are not followed{f', here to {target}' if target else ''}: {response.url}"
        return ServiceError(service, "blocked", safe_text(message, secrets), status=status)
    detail = safe_text(response.body[:2000].decode("utf-8", "replace"), secrets)
    return ServiceError(service, kind, said_at(detail, response.url), status=status, retryable=retryable)


def said_at(detail: str, url: str) -> str:
    """A message with the cause first: texts are cut at their end, and addresses are long."""
    return f"{detail} ({url})" if detail else f"no reason given ({url})"


async def gather_all(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines run concurrently, in order; when one fails, the others are cancelled.

    Of several errors a retryable one is raised, so that the work is done again later. Otherwise the order of arrival
    would decide which error counts.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as several:
        errors = list(_leaves(several))
        retryable = [error for error in errors if isinstance(error, ServiceError) and error.retryable]
        raise (retryable or errors)[0] from None
    return [task.result() for task in tasks]


def _leaves(group: BaseExceptionGroup[Any]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def invalid_google_key(service: str, response: HttpResponse) -> ServiceError | None:
    """A key that Google does not take is a 400; every other status means what it says."""
    if response.status != 400:
        return None
    try:
        details = response.json()["error"].get("details") or ()
        is_refused = any(detail.get("reason") == "API_KEY_INVALID" for detail in details)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return (
        ServiceError(service, "auth", f"API_KEY_INVALID: {safe_url(response.url)}", status=400) if is_refused else None
    )
