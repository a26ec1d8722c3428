"""Counts requests and received bytes by service and kind, for the piece of work that causes them."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Requests and received bytes, by "service kind"; add two to get their sum."""

    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.requests + other.requests, self.bytes + other.bytes)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """(requests, bytes) of each kind."""
        return {kind: (number, self.bytes[kind]) for kind, number in sorted(self.requests.items())}


# Of the running asyncio task and of those it starts; None: nothing is counted.
tally: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextlib.contextmanager
def counted_in(counter: Tally) -> Iterator[Tally]:
    """Count the requests of a block."""
    token = tally.set(counter)
    try:
        yield counter
    finally:
        tally.reset(token)


def count(service: str, kind: str, requests: int, size: int) -> None:
    """Called by the HTTP client for every attempt."""
    counter = tally.get()
    if counter is not None:
        name = f"{service} {kind}".strip()
        counter.requests[name] += requests
        counter.bytes[name] += size
