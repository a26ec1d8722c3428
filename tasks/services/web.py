"""Pictures behind addresses that came from a user's table: anywhere on the open net, and nowhere else."""

from typing import Any

from schemas.settings.ingest import WebRules
from schemas.settings.services import Endpoint
from tasks.services.errors import HttpResponse, ServiceError, safe_url
from tasks.services.http import Expected, ServiceClient
from tasks.services.network import NotPublic, host_of, is_public_host
from tasks.services.rate_budget import RateBudget
from tasks.services.transport import Connection

__all__ = ["NotPublic", "Pictures"]

SERVICE = "web"


class Pictures(ServiceClient):
    """Fetches pictures. No key, no cookie and no header of ours but the user agent goes along."""

    def __init__(
        self, rules: WebRules, max_file_mb: float, contact: str | None = None, rate_budget: RateBudget | None = None
    ) -> None:
        # Nothing is ever requested of this base address: every request names its own.
        here = "http://127.0.0.1" if rules.allow_private else "https://pictures.invalid"
        endpoint = Endpoint(
            base_url=here,
            max_attempts=rules.attempts,
            timeout_s=rules.timeout_s,
            total_timeout_s=rules.total_timeout_s,
            backoff_s=rules.backoff_s,
            limit_patience_s=rules.limit_patience_s,
            requests_per_minute=rules.requests_per_minute,
            max_body_mb=max_file_mb,
        )
        self._allow_private = rules.allow_private
        connection = Connection(SERVICE, endpoint, contact=contact, rate_budget=rate_budget, section="ingest.web")
        super().__init__(connection)

    async def fetch(self, url: str) -> HttpResponse:
        """The whole response; ServiceError, retryable where asking again later may help."""
        host = host_of(url)
        if host is None:
            raise ServiceError(SERVICE, "rejected", f"not a valid address: {safe_url(url)}")
        if not self._allow_private and not is_public_host(host):
            raise NotPublic(safe_url(url))
        pages: list[ServiceError] = []

        def no_page(_: Any, response: HttpResponse) -> None:
            media = response.content_type.partition(";")[0].strip().lower()
            if media in ("text/html", "text/plain", "application/json"):
                # Gateways put error pages under status 200: worth asking again, within this call.
                pages.append(self._http.bad_response(f"content type {media!r}, no picture", response, retryable=True))
                raise pages[-1]

        try:
            return await self._http.fetch(url, resume=True, expected=Expected("*/*", check=no_page))
        except ServiceError as error:
            if error in pages:
                error.retryable = False  # it was a page to the last
            raise
