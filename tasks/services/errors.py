"""The one error every service client raises, and how an address is made safe to show."""

import functools
import re
from typing import Literal, get_args
from urllib.parse import parse_qsl, quote, urlsplit

from schemas.messages import Usage

Kind = Literal[
    "rate_limit",  # asked too often: waiting a little helps
    "quota",  # a quota or a day's budget is used up: only waiting for its renewal helps
    "outage",  # the service is down, or the connection broke
    "timeout",  # no answer in time
    "bad_response",  # an answer that is not what the protocol promises
    "auth",  # key missing, wrong or without the right
    "not_found",  # no such thing
    "expired",  # a signed address that is past its time; ask for a new one
    "too_big",  # the box (or the request) is larger than the service allows
    "too_dense",  # the box holds more than the service answers; split it
    "rejected",  # the service says the request itself is wrong
    "blocked",  # an address that is not asked, or a host that does not give what is needed, whatever the file
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
    """A service did not give what was asked.

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
