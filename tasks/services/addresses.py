"""Which addresses that a service hands out may be read."""

from urllib.parse import urlsplit

from schemas.settings.services import is_loopback, is_private


def may_fetch(url: str, base_url: str) -> bool:
    """Whether an address from an answer may be read: it must not lead us into our own network.

    A service on the open net hands out addresses there, by https; one in a private network, on its own host.
    """
    if is_private(base_url):
        same_host = urlsplit(url).hostname == urlsplit(base_url).hostname
        return urlsplit(url).scheme in ("http", "https") and (same_host or (is_loopback(url) and is_loopback(base_url)))
    return url.startswith("https://") and not is_private(url)
