"""One request over aiohttp and its whole response, or the one error that says why there is none."""

import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from pydantic import SecretStr
from yarl import URL

from schemas.settings.services import Endpoint
from tasks.services.errors import HttpResponse, Kind, ServiceError, safe_text, safe_url
from tasks.services.meter import count
from tasks.services.network import (
    AttemptFailed,
    LeadsInside,
    Network,
    NotPublic,
    current_network,
    host_of,
    is_public_host,
    leave_network,
    url_as_sent,
)
from tasks.services.rate_budget import RateBudget

_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')
_GZIP = 16 + zlib.MAX_WBITS
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


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

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must appear in no message."""
        return (self.key.get_secret_value(),) if self.key else ()


@dataclass
class Download:
    """One file over as many attempts as it takes: a transfer that broke off is continued where it ended.

    Only a strong validator promises the same bytes under it. Ranges and lengths count encoded bytes, so the file is
    requested without an encoding.
    """

    data: bytes = b""
    etag: str = ""
    length: int = 0

    def headers(self) -> dict[str, str]:
        """What the next attempt asks with; a host that has another file by now sends that one whole."""
        rest = {"Range": f"bytes={len(self.data)}-", "If-Range": self.etag} if self.data else {}
        return {"Accept-Encoding": "identity", **rest}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Check a response before its body is read; ValueError if its bytes must not be used."""
        held, named = bool(self.data), _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        expected = (str(len(self.data)), str(self.length - 1), str(self.length))
        same_file = headers.get("etag", self.etag) == self.etag and "content-encoding" not in headers
        if status == 206 and held and named is not None and named.groups() == expected and same_file:
            return
        if status in (200, 206, 416):
            self.data = b""
        if status == 206:
            raise ValueError("not the part of the file that was requested")
        if status == 416 and held:
            raise ValueError("the host has another file by now")

    def keep(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        """Keep what came before a break, as far as it can be continued."""
        if status == 206:
            self.data += data
        elif status == 200:
            length, self.etag = headers.get("content-length", ""), headers.get("etag", "")
            can_continue = _STRONG_ETAG.fullmatch(self.etag) and "content-encoding" not in headers
            self.length = int(length) if can_continue and length.isdigit() else 0
            self.data = data
        if len(self.data) >= self.length:
            self.data = b""

    def join(self, data: bytes) -> bytes:
        """The whole file, of which this is the last part; ValueError if the parts do not add up."""
        complete_body, self.data = self.data + data, b""
        if len(complete_body) != self.length:
            raise ValueError("the parts do not add up to the file")
        return complete_body


@dataclass(frozen=True)
class HttpRequest:
    """One request, the same at every attempt."""

    method: str
    url: str  # with its query, quoted
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    kind: str = ""  # by which it is counted
    guarded: bool = False  # others named the address: only public hosts are queried
    download: Download | None = None  # a file that may come in parts


@dataclass
class _Transfer:
    """What came of a request so far."""

    status: int = 0  # 0: no head of a response
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    wire_bytes: int = 0
    sent: bool = False
    proxy: URL | None = None


class HttpTransport:
    """Sends requests of one service: limits of time and size, and errors without secrets."""

    def __init__(self, connection: Connection, now: Callable[[], float] = time.time) -> None:
        self._service, self._secrets, self._now = connection.service, connection.secrets, now
        self._endpoint = endpoint = connection.endpoint
        self._most_bytes = int(endpoint.max_body_mb * 1_000_000)
        self._timeout = aiohttp.ClientTimeout(
            total=endpoint.total_timeout_s,
            connect=endpoint.connect_timeout_s,
            sock_connect=endpoint.connect_timeout_s,
            sock_read=endpoint.timeout_s,
        )

    async def send(self, request: HttpRequest, answered: Callable[[float], None]) -> HttpResponse:
        """The response, whatever its status; `answered` is told how long its first bytes took."""
        network, transfer = current_network(self), _Transfer()
        try:
            return await self._exchange(request, network, transfer, answered)
        except AttemptFailed as attempt:
            error: Exception = attempt.error
        except (LeadsInside, aiohttp.ClientError, OSError, ValueError) as failed:
            error = failed
        finally:
            if transfer.sent:
                count(self._service, request.kind, 1, transfer.wire_bytes)
        # After the block, without a context: aiohttp's messages and requests may hold the full URL.
        raise self._error_of(error, request, transfer)

    async def _exchange(
        self, request: HttpRequest, network: Network, transfer: _Transfer, answered: Callable[[float], None]
    ) -> HttpResponse:
        url, host, download = url_as_sent(request.url), host_of(request.url), request.download
        if host is None:
            raise ValueError("not a web address")
        transfer.proxy = proxy = network.proxy_of(url)
        if request.guarded and not is_public_host(host):
            raise LeadsInside(host)
        headers = {"Accept": "*/*", "Accept-Encoding": "gzip", **request.headers}
        if download:
            headers |= download.headers()
        session = await network.session(request.guarded and proxy is None)
        sent_at_s, transfer.sent = time.monotonic(), True
        async with session.request(
            request.method,
            url,
            headers=headers,
            data=request.body,
            allow_redirects=False,
            timeout=self._timeout,
            proxy=proxy,
        ) as response:
            answered(time.monotonic() - sent_at_s)
            transfer.status, transfer.headers = response.status, _merged_headers(response)
            if download:
                download.begin(response.status, transfer.headers)
            await self._read(response, request, transfer)
        return self._whole(request, transfer)

    def _error_of(self, error: Exception, request: HttpRequest, transfer: _Transfer) -> ServiceError:
        """What a failed transfer means, in words that hold no secret."""
        shown, has_begun = safe_url(request.url), transfer.status > 0
        if isinstance(error, LeadsInside):
            return NotPublic(str(error), self._service)
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return self.error("outage", f"{_untrusted(error)}: {shown}", True)
        if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
            proxy = safe_url(str(transfer.proxy))
            return self.error(
                "outage", f"the proxy {proxy} does not connect us ({type(error).__name__}): {shown}", True
            )
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            if has_begun:  # of `Download`, or a body that cannot be decompressed
                return self.error("bad_response", f"{error}: {shown}", True)
            return self.error("rejected", f"not a valid address or header: {shown}", False)
        if request.download is not None and has_begun:
            request.download.keep(transfer.status, transfer.headers, bytes(transfer.body))
        if isinstance(error, TimeoutError):
            return self.error("timeout", f"{self._late(error, has_begun)}: {shown}", True)
        if has_begun:
            return self.error("bad_response", f"the answer broke off: {shown}", True)
        return self.error("outage", f"cannot be reached ({type(error).__name__}): {shown}", True)

    async def close(self) -> None:
        """Close the loop's connections, unless other clients use them."""
        await leave_network(self)

    def error(self, kind: Kind, message: str, retryable: bool) -> ServiceError:
        """An error of this service, without its secrets."""
        return ServiceError(self._service, kind, safe_text(message, self._secrets, limit=400), retryable=retryable)

    async def _read(self, response: aiohttp.ClientResponse, request: HttpRequest, transfer: _Transfer) -> None:
        """The body, decompressed a piece at a time: a few bytes on the wire may hold gigabytes."""
        limit = self._most_bytes - (len(request.download.data) if request.download else 0)
        encoding = transfer.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise ValueError(f"the body is encoded as {encoding[:40]!r}, which was not asked for")
        gzip = zlib.decompressobj(_GZIP) if encoding.endswith("gzip") else None
        body = transfer.body
        async for piece in response.content.iter_any():
            transfer.wire_bytes += len(piece)
            if gzip is None:
                body += piece
            while gzip is not None and piece and len(body) <= limit:
                if gzip.eof:  # a body of several members
                    gzip = zlib.decompressobj(_GZIP)
                try:
                    body += gzip.decompress(piece, limit + 1 - len(body))
                except zlib.error:
                    raise ValueError("the body cannot be decompressed") from None
                piece = gzip.unused_data
            if len(body) > limit:
                most = f"more than {self._endpoint.max_body_mb:g} MB (max_body_mb)"
                raise self.error("bad_response", f"{most}: {safe_url(request.url)}", False)
        if gzip is not None and body and not gzip.eof:
            raise ValueError("the compressed body breaks off")

    def _whole(self, request: HttpRequest, transfer: _Transfer) -> HttpResponse:
        status, headers, body = transfer.status, transfer.headers, bytes(transfer.body)
        if request.download is not None and request.download.data and status == 206:
            # The last part of a file: the response is the file, under the validator that all its parts had.
            headers = {**headers, "etag": request.download.etag}
            status, body = 200, request.download.join(body)
        return HttpResponse(
            status,
            headers.get("content-type", ""),
            body,
            safe_url(request.url),
            retry_after_s=self._retry_after_s(headers.get("retry-after", "").strip()),
            headers=headers,
        )

    def _late(self, error: TimeoutError, has_begun: bool) -> str:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"no connection within {self._endpoint.connect_timeout_s:g} s (connect_timeout_s)"
        if isinstance(error, aiohttp.SocketTimeoutError):
            what = "the answer stalled: nothing came" if has_begun else "no answer"
            return f"{what} within {self._endpoint.timeout_s:g} s (timeout_s)"
        return f"no whole answer within {self._endpoint.total_timeout_s:g} s (total_timeout_s)"

    def _retry_after_s(self, named: str) -> float | None:
        """Seconds a Retry-After header asks for, in either of its two forms; None if it is absent or unreadable."""
        if not named:
            return None
        if named.isdigit():
            return float(named)
        try:
            moment = parsedate_to_datetime(named)
        except ValueError:
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - self._now())


def _merged_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    merged: dict[str, str] = {}
    for name, value in response.headers.items():
        name = name.lower()
        merged[name] = f"{merged[name]}, {value}" if name in merged else value
    return merged


def _untrusted(error: Any) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    why = getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or type(error).__name__
    return f"the certificate is not trusted ({why}); SSL_CERT_FILE names the file of a private authority"
