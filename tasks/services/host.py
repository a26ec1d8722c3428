"""What this process knows of a host from all its requests there: how many at once, is it out, is its limit reached?"""

import asyncio
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from schemas.settings.services import Endpoint
from tasks.services.breaker import Breaker
from tasks.services.concurrency import ConcurrencyLimiter
from tasks.services.refusal import Refusals


class Host:
    """One kind of request to one host. What it says about its limit is said to all kinds."""

    def __init__(self, name: str, endpoint: Endpoint, refusals: Refusals) -> None:
        self.name = name
        self.gate = ConcurrencyLimiter(endpoint.max_concurrency)
        self.breaker = Breaker(
            endpoint.outage_after, endpoint.outage_pause_s, endpoint.max_wait_s, endpoint.outage_patience_s
        )
        self.refusals = refusals


_Key = tuple[str, str, str, str]
FILES = ("picture", "file")  # kinds of request that go to a store of files, which has limits of its own


class _Hosts:
    def __init__(self) -> None:
        self.by_kind: dict[_Key, Host] = {}
        self.refusals: dict[_Key, Refusals] = {}


# A gate's waiters belong to a loop, and go with it.
_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hosts] = WeakKeyDictionary()


def host_of(service: str, endpoint: Endpoint, kind: str, address: str) -> Host:
    """The running loop's one state for this kind of request to this address's host."""
    netloc = urlsplit(address).netloc
    key = (service, endpoint.base_url, kind, netloc)
    hosts = _hosts.setdefault(asyncio.get_running_loop(), _Hosts())
    if key not in hosts.by_kind:
        # As many refusals in a row as one request meets before it would give up.
        fresh = Refusals(endpoint.max_attempts, endpoint.limit_pause_s, endpoint.limit_patience_s)
        apart = kind if kind in FILES else ""
        refusals = hosts.refusals.setdefault((service, endpoint.base_url, apart, netloc), fresh)
        hosts.by_kind[key] = Host(f"{service} {netloc} {apart}".strip(), endpoint, refusals)
    return hosts.by_kind[key]
