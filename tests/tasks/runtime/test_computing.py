"""Items that wait for others and items that compute, side by side."""

import asyncio
import threading
import time

import pytest

from tasks.runtime.computing import AdaptiveLimiter, Computing


async def test_only_a_few_compute_at_once_and_results_and_errors_come_back():
    computing = Computing(threads=2)
    lock = threading.Lock()
    at_once, most = 0, 0

    def square(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005)
        with lock:
            at_once -= 1
        if number == 13:
            raise ValueError("thirteen")
        return number * number

    found = await asyncio.gather(*(computing.run(square, n) for n in range(30)), return_exceptions=True)
    assert [f for f in found if not isinstance(f, ValueError)] == [n * n for n in range(30) if n != 13]
    assert isinstance(found[13], ValueError) and most <= 2 and computing.waiting == 0


async def under_way(pace: AdaptiveLimiter, items: int, one) -> int:
    """The most items that were under way at once."""
    now, most = 0, 0

    async def item() -> None:
        nonlocal now, most
        async with pace.slot():
            now += 1
            most = max(most, now)
            await one()
            now -= 1

    await asyncio.gather(*(item() for _ in range(items)))
    return most


async def test_items_that_wait_for_others_become_many():
    pace = AdaptiveLimiter(4, 32, Computing())
    assert await under_way(pace, 200, lambda: asyncio.sleep(0.001)) == 32
    assert pace.limit == 32


async def test_items_that_wait_for_a_thread_stay_few():
    computing = Computing(threads=1)
    pace = AdaptiveLimiter(4, 64, computing)
    assert await under_way(pace, 60, lambda: computing.run(time.sleep, 0.002)) <= 8
    pace = AdaptiveLimiter(4, 32, computing)
    await under_way(pace, 100, lambda: asyncio.sleep(0.001))
    assert pace.limit == 32
    await under_way(pace, 100, lambda: computing.run(time.sleep, 0.001))
    assert pace.limit < 16


async def test_a_failed_item_gives_its_place_back():
    pace = AdaptiveLimiter(1, 1, Computing())

    async def fails() -> None:
        raise RuntimeError("broken")

    for _ in range(5):
        with pytest.raises(RuntimeError):
            await under_way(pace, 1, fails)
    assert await asyncio.wait_for(under_way(pace, 3, lambda: asyncio.sleep(0)), 120) == 1
