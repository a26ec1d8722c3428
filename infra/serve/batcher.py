"""Requests that wait are answered together where they are sampled alike.

Threads read them (pictures, template, tokens) while the model answers others: done in the model's own thread, reading
held a GPU back to 60 requests a second.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.serve.model import Answer, Model, Question
    from tasks.train.rollouts.sampling import Sampling


@dataclass
class Waiting:
    """A request in line."""

    read: "Callable[[], Question]"
    sampling: "Sampling"
    answer: "Future[Answer]" = field(default_factory=Future)
    question: "Question | None" = None  # once it is read


READERS = 4  # at most: they share one interpreter with the model


class Batcher:
    """Threads that read, one that computes; any number of callers that wait."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._line: queue.Queue[Waiting] = queue.Queue()
        self._left: deque[Waiting] = deque()  # taken from the line, not yet answered
        readers = max(1, min(READERS, (os.cpu_count() or 1) // 2))
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="reader")
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def submit(self, waiting: Waiting) -> "Future[Answer]":
        self._readers.submit(self._read, waiting)
        return waiting.answer

    def _read(self, waiting: Waiting) -> None:
        """Put a request in line once it is read; its caller is told where it cannot be."""
        if not waiting.answer.set_running_or_notify_cancel():
            return
        try:
            waiting.question = waiting.read()
        except Exception as error:  # noqa: BLE001  its caller is told
            waiting.answer.set_exception(error)
            return
        self._line.put(waiting)

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
            if len(chosen) < self._model.batch and first.sampling == other.sampling:
                chosen.append(other)
                self._left.remove(other)
        return chosen

    def _answer(self, chosen: list[Waiting]) -> None:
        try:
            questions = [waiting.question for waiting in chosen if waiting.question is not None]
            answers = self._model.answer(questions, chosen[0].sampling)
        except Exception as error:  # noqa: BLE001  their callers are told, and the thread goes on
            for waiting in chosen:
                waiting.answer.set_exception(error)
            return
        for waiting, answer in zip(chosen, answers, strict=True):
            waiting.answer.set_result(answer)
