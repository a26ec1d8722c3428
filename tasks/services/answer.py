"""What a service answered, and which error its status stands for."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.services.errors import Kind, ServiceError, safe_text, safe_url


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
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


# Turns an answer with an error status into a more exact error than its status alone says; None: the status decides.
Classify = Callable[[Answer], ServiceError | None]

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
    kind: Kind
    if answer.status == 403 and "html" in answer.content_type.lower():
        kind, retryable = "outage", True  # a page for people: a firewall or proxy on the way, not the service
    elif answer.status in _BY_STATUS:
        kind, retryable = _BY_STATUS[answer.status]
    elif answer.status >= 500:
        kind, retryable = "outage", True
    elif answer.status >= 400:
        kind, retryable = "rejected", False
    else:
        # 1xx and 3xx: we follow no redirect, since it could carry a key to another host
        target = safe_url(answer.headers.get("location", ""))[:200]
        message = f"redirects are not followed{f', here to {target}' if target else ''}: {answer.url}"
        return ServiceError(service, "blocked", safe_text(message, secrets), status=answer.status)
    said = safe_text(answer.body[:2000].decode("utf-8", "replace"), secrets)
    return ServiceError(service, kind, said_at(said, answer.url), status=answer.status, retryable=retryable)


def said_at(said: str, url: str) -> str:
    """A message with the cause first: texts are cut at their end, and addresses are long."""
    return f"{said} ({url})" if said else f"no reason given ({url})"
