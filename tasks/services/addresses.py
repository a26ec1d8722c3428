"""Which addresses that a service hands out may be read, by their spelling.

Where a name leads is decided when it is connected to (`tasks/services/ssrf_guard.py`).
"""

import socket
from urllib.parse import urlsplit

import httpx

from schemas.settings.services import is_loopback, is_private
from tasks.services.ssrf_guard import is_public


def may_fetch(url: str, base_url: str) -> bool:
    """Whether an address from an answer may be read: it must not lead us into our own network.

    A service on the open net hands out addresses there, by https; one in a private network, on its own host.
    """
    host = host_of(url)
    if host is None:
        return False
    if is_private(base_url):
        same_host = host == host_of(base_url)
        return same_host or (is_loopback(url) and is_loopback(base_url))
    return urlsplit(url).scheme == "https" and is_open(host)


def host_of(url: str) -> str | None:
    """The host of a web address, in small letters and without a dot at its end; None: it is no web address."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for what is no port
        host = httpx.URL(url).host  # this is what will be connected to
    except (ValueError, httpx.InvalidURL):
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return host.lower().removesuffix(".")


def is_open(host: str) -> bool:
    """Whether a host can be on the open net, as far as its spelling tells."""
    try:
        return is_public(host)
    except ValueError:
        pass
    try:
        socket.inet_aton(host)  # 127.1, 0x7f.0.0.1, 2130706433: not how a public address is spelled
    except OSError:
        return not is_private(f"https://{host}/")
    return False
