"""Counts requests and received bytes by service and kind, for the piece of work that causes them."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Requests and bytes, by "service kind"; the parent holds what was really sent."""

    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    parent: "Tally | None" = None

    def add(self, kind: str, requests: int, size: int, sent: bool = True) -> None:
        self.requests[kind] += requests
        self.bytes[kind] += size
        if self.parent is not None and sent:
            self.parent.add(kind, requests, size)


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


def count(service: str, kind: str, requests: int, size: int, sent: bool = True) -> None:
    """Called by the HTTP client for every attempt; by an estimate, with sent=False, for what it only expects."""
    counter = tally.get()
    if counter is not None:
        counter.add(f"{service} {kind}".strip(), requests, size, sent)
