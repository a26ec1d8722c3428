"""Which requests are answered together, and what is done meanwhile."""

import threading
import time
from typing import Any, cast

import pytest

from infra.serve.batcher import Batcher, Waiting


class Slow:
    """A model whose answer to the first request waits for a sign."""

    batch = 4

    def __init__(self) -> None:
        self.go, self.batches = threading.Event(), list[list[int]]()

    def answer(self, questions: list[int], sampling: object) -> list[str]:
        self.batches.append(list(questions))
        assert self.go.wait(30)
        return [f"to {one}" for one in questions]


def waiting(question: int, read: threading.Event | None = None) -> Waiting:
    def reading() -> Any:
        if question < 0:
            raise ValueError("cannot be read")
        if read is not None:
            read.set()
        return question

    return Waiting(reading, cast(Any, "alike"))


def test_requests_are_read_while_the_model_answers_others_and_then_answered_together() -> None:
    model = Slow()
    batcher = Batcher(cast(Any, model))
    first = batcher.submit(waiting(1))
    while not model.batches:
        time.sleep(0.01)
    read = [threading.Event() for _ in range(3)]
    later = [batcher.submit(waiting(number, event)) for number, event in zip((2, 3, 4), read, strict=True)]
    assert all(event.wait(30) for event in read), "nobody reads while the model works"
    bad = batcher.submit(waiting(-1))
    with pytest.raises(ValueError, match="cannot be read"):
        bad.result(30)
    model.go.set()
    told: list[Any] = [one.result(30) for one in (first, *later)]
    assert told == ["to 1", "to 2", "to 3", "to 4"]
    assert sorted(number for batch in model.batches[1:] for number in batch) == [2, 3, 4]
    assert len(model.batches) <= 3
