"""Requests that wait are answered together where they are sampled alike; one with its own seed is answered alone."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra.serve.model import Answer, Model, Question
    from tasks.train.rollouts.sampling import Sampling

MOST = 16  # requests answered together


@dataclass
class Waiting:
    """A request in line."""

    read: "Callable[[], Question]"
    sampling: "Sampling"
    seed: int | None
    answer: "Future[Answer]" = field(default_factory=Future)

    def goes_with(self, other: "Waiting") -> bool:
        is_free = all(one.seed is None or one.sampling.temperature == 0 for one in (self, other))
        return is_free and self.sampling == other.sampling


class Batcher:
    """One thread that computes; any number of callers that wait."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._line: queue.Queue[Waiting] = queue.Queue()
        self._left: deque[Waiting] = deque()  # taken from the line, not yet answered
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def submit(self, waiting: Waiting) -> "Future[Answer]":
        self._line.put(waiting)
        return waiting.answer

    def _work(self) -> None:
        while True:
            self._answer(self._together())

    def _together(self) -> list[Waiting]:
        """The request that has waited longest, and those that go with it."""
        if not self._left:
            self._left.append(self._line.get())
        while not self._line.empty():
            self._left.append(self._line.get())
        first = self._left.popleft()
        chosen = [first]
        for other in list(self._left):
            if len(chosen) < MOST and first.goes_with(other):
                chosen.append(other)
                self._left.remove(other)
        return chosen

    def _answer(self, chosen: list[Waiting]) -> None:
        ready: list[tuple[Waiting, Any]] = []
        for one in chosen:
            if not one.answer.set_running_or_notify_cancel():
                continue
            try:
                ready.append((one, one.read()))
            except Exception as error:  # noqa: BLE001  its caller is told, and the thread goes on
                one.answer.set_exception(error)
        if not ready:
            return
        first = ready[0][0]
        try:
            answers = self._model.answer([question for _, question in ready], first.sampling, first.seed)
        except Exception as error:  # noqa: BLE001  as above
            for one, _ in ready:
                one.answer.set_exception(error)
            return
        for (one, _), answer in zip(ready, answers, strict=True):
            one.answer.set_result(answer)
