"""How many requests are at a chat server at once follows what it can take: down when it refuses, up again after."""

import asyncio
import json
import time
from typing import Any

from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.services import Chat, connect
from tasks.services.limits import START, ConcurrencyLimiter, host_limits

ANSWER = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
TAKES = 5  # requests at once, before the server is enlarged
MOST = 64


async def test_concurrency_comes_down_with_refusals_and_goes_up_again_and_none_is_lost(server, reply):
    room, refused, served = TAKES, 0, list[str]()

    def answers(asked: Any) -> Any:
        nonlocal refused
        if server.at_once >= room:
            refused += 1
            return reply(429, b'{"error": {"message": "slow down"}}')
        served.append(asked.json()["messages"][0]["content"])
        return reply(body=json.dumps(ANSWER).encode(), delay_s=0.01)

    server.answers = answers
    own = {"base_url": server.url, "max_concurrency": MOST, "backoff_s": 0.02, "max_attempts": 8, "limit_pause_s": 0.05}
    models = ModelsSettings.model_validate({"endpoints": {"own": own}, "roles": {"m": {"endpoint": "own"}}})
    chat = Chat(connect(ServicesSettings(), {}, models=models).chat)

    async def ask(names: list[str]) -> list[str]:
        asked = [chat.complete("m", [{"role": "user", "content": name}]) for name in names]
        return [one.text for one in await asyncio.gather(*asked)]

    first = [f"first {n}" for n in range(200)]
    assert await ask(first) == ["x"] * 200, "however many refusals, each request has its answer"
    assert sorted(served) == sorted(first), "and is served once"
    limiter = host_limits("own", chat._server("own").http.endpoint, "", f"{server.url}/chat/completions").concurrency
    assert refused > 0 and limiter.limit < 2 * TAKES, "it knows what the server takes"
    assert refused < 200, "refusals are the exception"

    room, refused_before, deadline = 10_000, refused, time.monotonic() + 120
    while limiter.limit < 4 * TAKES:
        assert time.monotonic() < deadline, f"it stays at {limiter.limit}"
        assert set(await ask([f"more {n}" for n in range(100)])) == {"x"}
    assert refused == refused_before
    await chat.close()


async def test_who_has_begun_goes_on_before_the_next_begins():
    limiter, ended = ConcurrencyLimiter(START), list[int]()

    async def item(number: int) -> None:
        for _ in range(3):
            await limiter.enter()
            await asyncio.sleep(0)
            limiter.leave()
        ended.append(number)

    await asyncio.gather(*(item(number) for number in range(4 * START)))
    rounds = [set(ended[start : start + START]) for start in range(0, len(ended), START)]
    assert rounds == [set(range(start, start + START)) for start in range(0, 4 * START, START)]
    assert limiter.inside == 0 and not limiter._queue


async def test_tasks_of_an_item_share_its_place_in_the_order():
    limiter, ended = ConcurrencyLimiter(1), list[str]()

    async def ask(name: str) -> None:
        await limiter.enter()
        await asyncio.sleep(0)
        limiter.leave()
        ended.append(name)

    async def item(name: str) -> None:
        await ask(name)
        await asyncio.gather(*(ask(f"{name}{part}") for part in range(2)))

    await asyncio.gather(item("a"), item("b"), item("c"))
    assert ended == ["a", "b", "a0", "a1", "b0", "b1", "c", "c0", "c1"], "by arrival, c would be the third"


async def test_one_that_gives_up_waiting_leaves_no_place_taken():
    limiter = ConcurrencyLimiter(1)
    await limiter.enter()
    waiting = [asyncio.create_task(limiter.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    limiter.leave()
    await waiting[1]
    assert limiter.inside == 1
    limiter.leave()
    await waiting[2]
    limiter.leave()
    assert limiter.inside == 0
