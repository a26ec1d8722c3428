"""500 trajectories at once, with models that take 0.5 s, beside what the bare server sustains.

The server (`latency_server.py`) does nothing but wait, in a process of its own. First 500 agents are under way at once
in one process: environment, tools, chat client with limits, and every call written down before it is used. Then the
same requests, byte for byte, are sent again over as many bare sockets (`bare_client.py`): what the server sustains. The
ratio of requests a second is the figure; so is the memory that a trajectory takes. httpx, as a client that users know,
is measured beside it and judged by nothing. Then the trajectories are shared out over a process a core, as a stage's
workers are. A second round, in one process again, has a price set, so that a process beside sends the
requests (`broker.py`).

    python -m bench live_trajectories
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from bench.bare_client import Sent, send_all
from bench.goals import Goal, judge
from bench.latency_server import latency_server
from infra.offline.render import render_jpeg
from infra.offline.world import World
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.agent.asking import Sampling, SingleAgent
from tasks.agent.environment import Environment, run_agent
from tasks.agent.picture import Picture, open_picture
from tasks.agent.recipes import RECIPES
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import ToolContext
from tasks.services import CallLog, Chat, Geocoder, Search, connect
from tasks.services.call_file import CallFile
from tasks.services.maps import Maps
from tasks.services.rate_budget import ProcessRateBudget
from tasks.services.transfer import Ask, Transfers

TRAJECTORIES = 500
LATENCY_S = 0.5
PICTURES, VIEW_PIXELS = 10, 120_000
SEED, SIZE, WIDTH = 7, 3_000, 1024
GOAL_RATIO = 0.9

AT_HTTPX = 100  # requests at once of httpx: with 500 its pool takes minutes


def pictures() -> list[Picture]:
    """Some of the world's pictures, as a model sees them."""
    world = World(SEED, SIZE, WIDTH)
    records = (record for index in range(SIZE) for record in world.images(index) if record.condition == "clear")
    found = []
    for record in records:
        found.append(open_picture(render_jpeg(world, record), VIEW_PIXELS, 784))
        if len(found) == PICTURES:
            return found
    raise SystemExit("the world has too few pictures")


@contextmanager
def recorded(sent: list[Sent]) -> Any:
    """Note every request that leaves."""
    send = Transfers.send

    async def noting(self: Transfers, ask: Ask, answered: Any) -> Any:
        request = httpx.Request(ask.method, ask.address, params=ask.params or None)
        body = ask.json_body if isinstance(ask.json_body, bytes) else None
        if body is None and ask.json_body is not None:
            body = httpx.Request("POST", ask.address, json=ask.json_body).content
        sent.append((ask.method, str(request.url), dict(ask.headers), body))
        return await send(self, ask, answered)

    with mock.patch.object(Transfers, "send", noting):
        yield


async def ours(url: str, shown: list[Picture], file: Path, count: int, paid: bool, first: int = 0) -> dict[str, int]:
    """All trajectories at once; how they ended."""
    services = ServicesSettings.model_validate(
        {
            "client": {"timeout_s": 600, "total_timeout_s": 600, "max_concurrency": 512},
            "chat": {"base_url": f"{url}/openai/v1", "timeout_s": 600, "total_timeout_s": 600}
            | {"max_concurrency": 512},
            "search": {"base_url": f"{url}/tavily"},
            "geocoder": {"base_url": f"{url}/nominatim"},
            "maps": {"base_url": f"{url}/maps"},
        }
    )
    calls = CallLog(CallFile(file), "bench", "bench", broker=str(file))
    roles = {"agent": {"price": {"prompt": 1, "completion": 1}}} if paid else {}
    models = ModelsSettings.model_validate({"roles": roles})
    connections = connect(services, {}, models=models).sharing(ProcessRateBudget(), calls)
    chat = Chat(connections.chat)
    context = ToolContext(
        search=Search(connections.search), geocoder=Geocoder(connections.geocoder), maps=Maps(connections.maps)
    )
    tools, recipe, ends = Toolbox(context), RECIPES["spotagent"], dict[str, int]()

    async def one(number: int) -> None:
        environment = Environment(shown[number % len(shown)], tools, recipe)
        # The seed makes every trajectory's requests its own; at temperature 0 the world answers them alike.
        asked = SingleAgent(chat, "agent", Sampling(0.0, number, 1024))
        trajectory = await run_agent(environment, asked)
        ends[trajectory.end_reason] = ends.get(trajectory.end_reason, 0) + 1

    await asyncio.gather(*(one(number) for number in range(first, first + count)))
    await chat.close()
    return ends


async def by_httpx(sent: list[Sent]) -> None:
    """Some of the requests by httpx, as it comes."""
    limit = asyncio.Semaphore(AT_HTTPX)
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:

        async def one(method: str, url: str, headers: dict[str, str], body: bytes | None) -> None:
            async with limit:
                (await client.request(method, url, headers=headers, content=body)).raise_for_status()

        await asyncio.gather(*(one(*each) for each in sent))


class PeakMemory(threading.Thread):
    """The most memory this process had while the thread ran, in MB above what it had before."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over, self.before = threading.Event(), resident_mb()
        self.peak = self.before

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.peak = max(self.peak, resident_mb())

    def end(self) -> float:
        self._over.set()
        self.join()
        return self.peak - self.before


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def ratio_goal(ours_per_s: float, bare_per_s: float, how: str = "") -> Goal:
    """Requests a second, ours over the bare sockets'."""
    name = f"requests a second, live trajectories{how} / bare sockets"
    return Goal(name, ours_per_s / bare_per_s, at_least=GOAL_RATIO)


def work(url: str, file: str, count: str, first: str) -> None:
    """One of several processes: it makes ready, waits for a word, and runs its share of the trajectories."""
    shown = pictures()
    asyncio.run(ours(url, shown, Path(f"{file}.{first}"), PICTURES, False))
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(ours(url, shown, Path(file), int(count), False, int(first)))
    print("done", flush=True)


def spread(url: str, file: Path, count: int, processes: int) -> float:
    """Seconds that all trajectories take, shared out over processes as a stage's workers are; one file of calls."""
    share = -(-count // processes)
    parts = [(min(share, count - first), first) for first in range(0, count, share)]
    command = [sys.executable, "-m", "bench.live_trajectories", "--work", url, str(file)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(size), str(first)], **pipes) for size, first in parts]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n", "a process did not start"
    began_s = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "done\n", "a process failed"
    taken_s = time.perf_counter() - began_s
    for worker in workers:
        worker.communicate()
    return taken_s


def measure(url: str, shown: list[Picture], file: Path, count: int, paid: bool) -> list[Goal]:
    """Both, one after the other."""
    sent: list[Sent] = []
    memory = PeakMemory()
    memory.start()
    with recorded(sent):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        ends = asyncio.run(ours(url, shown, file, count, paid))
        ours_s, ours_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    grown_mb = memory.end()
    kept = sum(len(body or b"") for *_, body in sent) / 1e6  # what this benchmark itself holds of them
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    asyncio.run(send_all(sent, count))
    bare_s, bare_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    some, began_cpu_s = sent[:300], time.process_time()
    asyncio.run(by_httpx(some))
    httpx_ms = 1000 * (time.process_time() - began_cpu_s) / len(some)
    chats = sum("/chat/completions" in url for _, url, _, _ in sent)
    print(f"   {count} trajectories at once, {'by a broker' if paid else 'directly'}: {len(sent):,} requests, "
          f"{chats:,} of them to models, {1000 * kept / len(sent):.0f} KB each; ends {ends}")  # fmt: skip
    print(f"   live: {ours_s:.1f} s, {len(sent) / ours_s:.1f} requests a second "
          f"({1000 * ours_cpu_s / len(sent):.2f} ms of CPU each); bare sockets: {bare_s:.1f} s, "
          f"{len(sent) / bare_s:.1f} a second ({1000 * bare_cpu_s / len(sent):.2f} ms); httpx takes {httpx_ms:.2f} ms "
          f"of CPU each, {AT_HTTPX} at once")  # fmt: skip
    print(f"   ratio {bare_s / ours_s:.2f} (at least {GOAL_RATIO} wanted); memory {(grown_mb - kept) / count:.2f} MB a "
          "trajectory, without the requests kept for the bare sockets", flush=True)  # fmt: skip
    how = ", one process and a broker" if paid else ", one process"
    goals = [ratio_goal(len(sent) / ours_s, len(sent) / bare_s, how)]
    if not paid:
        processes = max(2, os.cpu_count() or 1)
        spread_s = spread(url, file.with_suffix(".spread"), count, processes)
        print(f"   over {processes} processes: {spread_s:.1f} s, {len(sent) / spread_s:.1f} requests a second, ratio "
              f"{bare_s / spread_s:.2f}", flush=True)  # fmt: skip
        goals.append(ratio_goal(len(sent) / spread_s, len(sent) / bare_s, f", {processes} processes"))
    return goals


def main(count: int = TRAJECTORIES) -> int:
    shown = pictures()
    with tempfile.TemporaryDirectory() as name, latency_server(LATENCY_S) as url:
        folder = Path(name)
        for paid in (False, True):  # imports, and the start of the broker
            asyncio.run(ours(url, shown, folder / f"first-{paid}.sqlite", PICTURES, paid))
        found = [measure(url, shown, folder / f"calls-{paid}.sqlite", count, paid) for paid in (False, True)]
    return judge([goal for goals in found for goal in goals])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
