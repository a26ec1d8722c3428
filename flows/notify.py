"""The webhook: a small JSON document when a run fails, a snapshot waits for review or a budget is used up.

The address is a secret. It is read from the environment when needed and is in no log line, error or table.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from schemas.settings.notify import Event, NotifySettings

logger = logging.getLogger("geofix.notify")


def notify(settings: NotifySettings, event: Event, message: str, **about: Any) -> bool:
    """Post the event, if a webhook is set and wants it; returns whether it was accepted. Never raises."""
    import httpx

    url = os.environ.get(settings.url_env, "").strip()
    if not url or event not in settings.events:
        return False
    try:
        with _no_request_line():
            httpx.post(
                url, json={"event": event, "message": message, **about}, timeout=settings.timeout_s
            ).raise_for_status()
    except httpx.HTTPStatusError as error:
        problem = f"HTTP {error.response.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        problem = type(error).__name__  # the text of some of these holds the address
    else:
        return True
    logger.warning("the webhook (notify.url_env=%s) did not accept '%s': %s", settings.url_env, event, problem)
    return False


@contextlib.contextmanager
def _no_request_line() -> Iterator[None]:
    """httpx logs each request with its address."""
    requests = logging.getLogger("httpx")
    requests.addFilter(_drop)
    try:
        yield
    finally:
        requests.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return False
