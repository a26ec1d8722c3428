"""What this process knows of a host from its requests there: how many at once, is it out, is its limit reached."""

import asyncio
import functools
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from schemas.settings.services import Endpoint
from tasks.services.breaker import LONGEST_LIMIT_PAUSE_S, Breaker
from tasks.services.concurrency import ConcurrencyLimiter


class Host:
    """One kind of request to one host. A rate limit holds for all kinds."""

    def __init__(self, name: str, endpoint: Endpoint, limit: Breaker) -> None:
        self.name = name
        self.concurrency = ConcurrencyLimiter(endpoint.max_concurrency)
        self.outage = Breaker(
            endpoint.outage_after,
            endpoint.outage_pause_s,
            endpoint.max_wait_s,
            endpoint.outage_patience_s,
            only_if_answered=True,
        )
        self.limit = limit


_Key = tuple[str, str, str, str]
FILES = ("picture", "file")  # kinds of request that go to a store of files, which has limits of its own


class _Hosts:
    def __init__(self) -> None:
        self.by_kind: dict[_Key, Host] = {}
        self.limits: dict[_Key, Breaker] = {}


# Futures belong to a loop, and are dropped with it.
_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hosts] = WeakKeyDictionary()


@functools.lru_cache(maxsize=256)
def _netloc(address: str) -> str:
    return urlsplit(address).netloc


def host_of(service: str, endpoint: Endpoint, kind: str, address: str) -> Host:
    """The running loop's one state for this kind of request to this address's host."""
    netloc = _netloc(address)
    key = (service, endpoint.base_url, kind, netloc)
    loop = asyncio.get_running_loop()
    hosts = _hosts.get(loop) or _hosts.setdefault(loop, _Hosts())
    if key not in hosts.by_kind:
        # As many refusals in a row as one request meets before it would give up.
        fresh = Breaker(endpoint.max_attempts, endpoint.limit_pause_s, LONGEST_LIMIT_PAUSE_S, endpoint.limit_patience_s)
        apart = kind if kind in FILES else ""
        limit = hosts.limits.setdefault((service, endpoint.base_url, apart, netloc), fresh)
        hosts.by_kind[key] = Host(f"{service} {netloc} {apart}".strip(), endpoint, limit)
    return hosts.by_kind[key]
