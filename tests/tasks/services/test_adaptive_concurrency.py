"""How many requests are at a chat server at once follows what it can take: down when it refuses, up again after."""

import asyncio
import json
import time
from typing import Any

from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.services import Chat, connect
from tasks.services.host import host_of

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
    limiter = host_of("own", chat._server("own").http.endpoint, "", f"{server.url}/chat/completions").concurrency
    assert refused > 0 and limiter.limit < 2 * TAKES, "it knows what the server takes"
    assert refused < 200, "refusals are the exception"

    room, refused_before, deadline = 10_000, refused, time.monotonic() + 120
    while limiter.limit < 4 * TAKES:
        assert time.monotonic() < deadline, f"it stays at {limiter.limit}"
        assert set(await ask([f"more {n}" for n in range(100)])) == {"x"}
    assert refused == refused_before
    await chat.close()
