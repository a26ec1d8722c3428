"""A tool's question to services: its requests are sent by a process that outlives a killed run (`broker.py`).

While one is asked, every request that this task makes of a service goes by the broker, under an id that follows from
the question. A run that is killed meanwhile asks the same question again, and gets the answer that came in its absence.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from tasks.services.broker_client import Broker
from tasks.services.call_file import CallStore

# Statuses that say the same however often they are asked for: such an answer is kept as a good one is.
FINAL_STATUSES = (400, 404, 410, 413, 414, 422)


@dataclass
class Question:
    """One question. Its requests are numbered, so it must make the same ones in the same order each time."""

    calls: CallStore  # which holds what the broker receives
    broker: Broker
    asked: str  # tells it from all others
    call_ids: list[str] = field(default_factory=list)  # of its requests so far

    def call_id(self) -> str:
        """The id of its next request."""
        digest = hashlib.sha256(self.asked.encode("utf-8", "replace")).hexdigest()
        self.call_ids.append(f"tool-{digest}-{len(self.call_ids)}")
        return self.call_ids[-1]

    @contextlib.contextmanager
    def sent_by_broker(self) -> Iterator[None]:
        """Within the block, requests of this task belong to the question."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def forget(self) -> None:
        """The answers were no use: asked again, services are asked again."""
        self.calls.forget_answers(self.call_ids)


_current: ContextVar[Question | None] = ContextVar("question", default=None)


def current() -> Question | None:
    """The question that this task asks; None: requests are sent by this process."""
    return _current.get()
