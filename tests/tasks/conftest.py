"""What tests of several rooms use."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages run here, chunk after chunk: the frame as it is, without Ray's start."""

    def here(todo: Any, make: Any, settings: Any, resources: Any, is_async: bool, **_: Any) -> Iterator[Any]:
        if todo.is_empty():
            return
        chunks, call = list(todo.iter_slices(resources.chunk)), make()

        async def all_chunks() -> list[Any]:
            return await asyncio.gather(*(call(chunk) for chunk in chunks))

        yield from asyncio.run(all_chunks()) if is_async else map(call, chunks)

    monkeypatch.setattr("tasks.runtime.runner.spread", here)
