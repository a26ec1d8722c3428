"""Chat requests through Ray: actors answer in place of an address.

Retries, limits, budgets and the response store are those of every chat endpoint; only the way of a request differs.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from schemas.settings.pools import NAMESPACE
from tasks.services.errors import HttpResponse, Kind, ServiceError, safe_text, safe_url
from tasks.services.meter import count
from tasks.services.transport import Connection, HttpRequest


class RayActors:
    """Sends each request to the next of some named actors (`tasks/runtime/engine_actor.py`)."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self._service, self._total_s = connection.service, connection.endpoint.total_timeout_s
        self._names = itertools.cycle(names)
        self._found: dict[str, Any] = {}

    async def send(self, request: HttpRequest, answered: Callable[[float], None]) -> HttpResponse:
        """The actor's response; ServiceError where it is gone or too slow."""
        from ray.exceptions import RayError

        name, sent_at_s = next(self._names), time.monotonic()
        try:
            asked = self._actor(name).complete.remote(request.body)
            status, body = await asyncio.wait_for(asyncio.wrap_future(asked.future()), self._total_s)
        except TimeoutError:
            raise self._error("timeout", f"no answer within {self._total_s:g} s (total_timeout_s)", request) from None
        except (RayError, ValueError) as error:  # ValueError: there is no such actor at the moment
            self._found.pop(name, None)
            raise self._error("outage", f"the actor does not answer ({type(error).__name__})", request) from None
        answered(time.monotonic() - sent_at_s)
        count(self._service, request.kind, 1, len(body))
        return HttpResponse(status, "application/json", body, safe_url(request.url))

    def _actor(self, name: str) -> Any:
        import ray

        if name not in self._found:
            self._found[name] = ray.get_actor(name, namespace=NAMESPACE)
        return self._found[name]

    def _error(self, kind: Kind, what: str, request: HttpRequest) -> ServiceError:
        return ServiceError(self._service, kind, safe_text(f"{what}: {safe_url(request.url)}"), retryable=True)
