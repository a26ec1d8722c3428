"""What this process knows of a host from all its requests there: how many at once, and whether it is out."""

import asyncio
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from schemas.settings.services import Endpoint
from tasks.services.breaker import Breaker
from tasks.services.gate import Gate


class Host:
    """One kind of request to one host."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.gate = Gate(endpoint.max_concurrency)
        self.breaker = Breaker(
            endpoint.outage_after, endpoint.outage_pause_s, endpoint.max_wait_s, endpoint.outage_patience_s
        )


_Key = tuple[str, str, str, str]
# A gate's waiters belong to a loop, and go with it.
_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, Host]] = WeakKeyDictionary()


def host_of(service: str, endpoint: Endpoint, kind: str, address: str) -> Host:
    """The running loop's one state for this kind of request to this address's host."""
    key = (service, endpoint.base_url, kind, urlsplit(address).netloc)
    hosts = _hosts.setdefault(asyncio.get_running_loop(), {})
    if key not in hosts:
        hosts[key] = Host(endpoint)
    return hosts[key]
