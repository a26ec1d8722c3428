"""Questions asked together: what one of them spoils is not the others' fault."""

import asyncio
from typing import Any

import pytest

from tasks.collect.batches import Batches
from tasks.services import ServiceError


class Counter:
    """A desk that refuses a whole list because of one key."""

    def __init__(self, kind: str, spoils: str | None, retryable: bool = False) -> None:
        self.kind, self.spoils, self.retryable = kind, spoils, retryable
        self.asked: list[list[str]] = []

    async def ask(self, keys: list[str]) -> dict[str, dict[str, Any]]:
        self.asked.append(keys)
        if self.spoils is None or self.spoils in keys:
            raise ServiceError("mapillary", self.kind, "refused", retryable=self.retryable)  # type: ignore[arg-type]
        return {key: {"id": key} for key in keys}

    async def all(self, keys: list[str]) -> list[Any]:
        batches = Batches(self.ask, len(keys), 0.0)
        return await asyncio.gather(*(batches.get(key) for key in keys), return_exceptions=True)


KEYS = [str(number) for number in range(50)]


@pytest.mark.parametrize("kind", ["rejected", "bad_response", "too_big"])
async def test_only_the_key_that_spoils_a_list_gets_its_error(kind: str) -> None:
    desk = Counter(kind, "33")
    ends = await desk.all(KEYS)
    assert [end for end in ends if not isinstance(end, Exception)] == [{"id": key} for key in KEYS if key != "33"]
    assert isinstance(ends[33], ServiceError) and ends[33].kind == kind
    assert len(desk.asked) <= 13 and desk.asked[-1] != KEYS  # halves: the list, then two for each time it is halved


@pytest.mark.parametrize(
    ("kind", "retryable"), [("auth", False), ("rate_limit", False), ("outage", True), ("bad_response", True)]
)
async def test_what_no_key_is_the_cause_of_is_not_asked_again(kind: str, retryable: bool) -> None:
    desk = Counter(kind, None, retryable)
    ends = await desk.all(KEYS)
    assert all(isinstance(end, ServiceError) and end.kind == kind for end in ends) and len(desk.asked) == 1
