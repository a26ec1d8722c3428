"""An aiohttp client that does nothing else: requests that are ready are sent, bodies are read and dropped.

No JSON, no limits, nothing kept. What it brings a second is what a user of the library could have at best.
"""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
from yarl import URL

Sent = tuple[str, str, dict[str, str], bytes | None]  # method, address, headers, body


async def send_all(sent: Sequence[Sent], at_once: int) -> list[float]:
    """When each was answered, in order; a status other than 200, or a connection that ends, raises."""
    answered: list[float] = []
    left = iter(sent)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def work() -> None:
            for method, url, headers, body in left:
                async with session.request(method, URL(url, encoded=True), headers=headers, data=body) as response:
                    await response.read()
                    response.raise_for_status()
                answered.append(time.perf_counter())

        await asyncio.gather(*(work() for _ in range(min(at_once, len(sent)))))
    return answered
