"""Pictures behind addresses that came from a user's table: anywhere on the open net, and nowhere else."""

import asyncio
import ipaddress
import socket
from urllib.request import getproxies

import httpx

from schemas.settings.ingest import WebRules
from schemas.settings.services import Endpoint, is_private
from tasks.services.errors import ServiceError, safe_url
from tasks.services.http import Answer, Connection, Http
from tasks.services.limit import Till

SERVICE = "web"


class NotPublic(ServiceError):
    """The address leads into a private network, or to this machine."""

    def __init__(self, url: str) -> None:
        super().__init__(SERVICE, "rejected", f"{safe_url(url)}: its host is not on the open net")

    def __reduce__(self) -> tuple[object, ...]:
        return (ServiceError, (self.service, self.kind, self.message))


class OnlyPublic(httpx.AsyncBaseTransport):
    """Connects to the address it has checked, so that a name cannot lead elsewhere between check and connection."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        address = await self._public_address(host, request.url)
        request.extensions = {**request.extensions, "sni_hostname": host}  # certificates are for the name
        request.url = request.url.copy_with(host=address)  # the Host header was set from the name before
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _public_address(self, host: str, url: httpx.URL) -> str:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, url.port or 80, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            # No such name, or no name server: who is offline would lose every row if this were final.
            raise httpx.ConnectError(f"{host} has no address ({type(error).__name__})", request=None) from None
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(is_public(address) for address in addresses):
            raise NotPublic(str(url))
        return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is on the open net: not private, local, reserved, multicast, nor such a one in disguise."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    if inner is not None:
        ip = inner
    return ip.is_global and not ip.is_multicast


class Pictures:
    """Fetches pictures. No key, no cookie and no header of ours but the user agent goes along."""

    def __init__(
        self, rules: WebRules, max_file_mb: float, contact: str | None = None, till: Till | None = None
    ) -> None:
        # Nothing is ever asked of this base address: every request names its own.
        here = "http://127.0.0.1" if rules.allow_private else "https://pictures.invalid"
        endpoint = Endpoint(
            base_url=here,
            max_attempts=rules.attempts,
            timeout_s=rules.timeout_s,
            total_timeout_s=rules.total_timeout_s,
            backoff_s=rules.backoff_s,
            requests_per_minute=rules.requests_per_minute,
            max_body_mb=max_file_mb,
        )
        self._allow_private = rules.allow_private
        # Behind a proxy it is the proxy that looks names up and decides where they may lead.
        free = rules.allow_private or bool(getproxies())
        transport = None if free else lambda: OnlyPublic(httpx.AsyncHTTPTransport())
        self._http = Http(Connection(SERVICE, endpoint, contact=contact, till=till), transport=transport)

    async def fetch(self, url: str) -> Answer:
        """The whole answer; ServiceError, retryable where asking again later may help."""
        if not self._allow_private and is_private(url):
            raise NotPublic(url)
        pages: list[ServiceError] = []

        def no_page(answer: Answer) -> None:
            media = answer.content_type.partition(";")[0].strip().lower()
            if media in ("text/html", "text/plain", "application/json"):
                # Gateways put error pages under status 200: worth asking again, within this call.
                pages.append(self._http.bad_response(f"content type {media!r}, no picture", answer, retryable=True))
                raise pages[-1]

        try:
            return await self._http.request("GET", url=url, accept="*/*", check=no_page, resume=True)
        except ServiceError as error:
            if error in pages:
                error.retryable = False  # it was a page to the last
            raise

    async def close(self) -> None:
        await self._http.close()
