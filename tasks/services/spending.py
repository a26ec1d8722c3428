"""What the calls to models of one item cost, gathered beside the work: an item that fails has spent it all the same."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from schemas.messages import Usage


@dataclass
class Spending:
    """Of one item."""

    item_id: str = ""
    paid: Usage = field(default_factory=Usage)
    replayed: Usage = field(default_factory=Usage)  # answered from the table `calls`, paid for by an earlier request
    seconds: float = 0.0  # that calls took
    by_role: dict[str, Usage] = field(default_factory=dict)  # both, as a first run would pay it
    calls: int = 0

    def add(self, role: str, usage: Usage, seconds: float, is_replayed: bool) -> None:
        """A call was answered, or failed."""
        self.calls += 1
        self.seconds += seconds
        self.by_role[role] = self.by_role.get(role, Usage()) + usage
        if is_replayed:
            self.replayed += usage
        else:
            self.paid += usage


# Of the running asyncio task and of those it starts; None: nothing is gathered.
spending: ContextVar[Spending | None] = ContextVar("spending", default=None)


@contextlib.contextmanager
def spending_of(item_id: str) -> Iterator[Spending]:
    """Gather what the calls of a block cost."""
    gathered = Spending(item_id)
    token = spending.set(gathered)
    try:
        yield gathered
    finally:
        spending.reset(token)
