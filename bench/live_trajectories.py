"""500 trajectories at once, with models that take 0.5 s, beside an aiohttp client that does nothing else.

The server (`--serve`) does nothing but wait, in a process of its own. 500 agents are under way at once:
environment, tools, chat client with limits, and every call stored before it is used. They begin from nothing, with 16
requests at once, as adaptive concurrency does; in the place of one that ends the next begins. What is sustained is
counted from when every place has ended one until the first has ended its last. The same requests, byte for byte, are
sent as often by aiohttp alone (`send_all`), 500 at once. Judged are the ratio of requests a second that a process
a core sustains, and the CPU of a request. One process, the start, and the memory of a trajectory stand beside it.

A zoom is a sign of 5 % of the picture, enlarged to 40,000 pixels; of 337 boxes in the demo's trajectories half are
below 0.2 % and nine tenths below 1.2 %. In a process a core it is also a quarter of the picture, which is made smaller:
cutting that out takes four times as long.

    python -m bench live_trajectories
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import aiohttp
from yarl import URL

from bench.goals import Goal, judge
from infra.offline.render import render_jpeg
from infra.offline.world import World
from schemas.settings.services import ServicesSettings
from tasks.agent.attempt import Sampling, SingleAgent
from tasks.agent.environment import Environment, run_agent
from tasks.agent.picture import Picture, open_picture
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import ToolContext
from tasks.recipes.recipe import RECIPES
from tasks.runtime.items.chunk import freeze_gc
from tasks.services import CallLog, Chat, Geocoder, Search, connect
from tasks.services.call_store import CallStore
from tasks.services.maps import open_maps
from tasks.services.rate_budget import ProcessRateBudget
from tasks.services.transport import HttpRequest, HttpTransport

ZOOMS = {"sign": [200, 80, 300, 140], "quarter": [20, 20, 220, 180]}  # of a view of 489 x 244 pixels
SCRIPT = (
    ("image_zoom_in_tool", {"bbox_2d": ZOOMS["sign"]}),
    ("search_web", {"query": "bakery on the market square"}),
    ("maps_geocode", {"address": "Market Square 1"}),
)
ANSWER = (
    "<think>The sign names it.</think><answer>\nCountry: Italy\nCity: Siena\nLatitude: 43.3\nLongitude: 11.3\n</answer>"
)
SEARCH = {"results": [{"title": "Bakery", "url": "https://example.org/bakery", "content": "On the square. " * 20}]}
PLACES = [{"lat": "43.318", "lon": "11.331", "display_name": "Market Square, Siena, Italy", "address": {}}]


def completion(step: int, zoom: str) -> bytes:
    """What a model says after n tool results."""
    message: dict[str, object] = {"role": "assistant", "content": ANSWER}
    if step < len(SCRIPT):
        name, arguments = SCRIPT[step] if step else (SCRIPT[0][0], {"bbox_2d": ZOOMS[zoom]})
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": "I look closer.", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if step < len(SCRIPT) else "stop"}
    usage = {"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960}
    whole = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return _raw(json.dumps(whole).encode())


def _raw(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Waits(asyncio.Protocol):
    """One connection: requests one after the other."""

    search, places = _raw(json.dumps(SEARCH).encode()), _raw(json.dumps(PLACES).encode())

    def __init__(self, latency_s: float, completions: tuple[bytes, ...]) -> None:
        self._completions = completions
        self._latency_s, self._held, self._size, self._need = latency_s, list[bytes](), 0, -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._need < 0:
            start = b"".join(self._held)
            end = start.find(b"\r\n\r\n")
            if end < 0:
                return
            _, _, length = start[:end].lower().partition(b"content-length:")
            self._need = end + 4 + (int(length.split(b"\r\n", 1)[0]) if length else 0)
        if self._size >= self._need:
            request = data if len(self._held) == 1 else b"".join(self._held)
            self._held, self._size, self._need = [], 0, -1
            answer, wait_s = self._answer(request)
            asyncio.get_running_loop().call_later(wait_s, self._send, answer)

    def _answer(self, request: bytes) -> tuple[bytes, float]:
        line = request[:200].split(b"\r\n", 1)[0]
        if b"/chat/completions" in line:
            results = request.count(b'"role":"tool"')  # as our client and httpx write it
            return self._completions[min(results, len(SCRIPT))], self._latency_s
        return (self.search if b"/tavily" in line else self.places), 0.0

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def serve(port: int, latency_s: float, zoom: str) -> None:
    said = tuple(completion(step, zoom) for step in range(len(SCRIPT) + 1))
    server = await asyncio.get_running_loop().create_server(
        lambda: Waits(latency_s, said), "127.0.0.1", port, backlog=2048
    )
    await server.serve_forever()


@contextlib.contextmanager
def latency_server(latency_s: float, zoom: str = "sign") -> Iterator[tuple[str, int]]:
    """Its address and process, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.live_trajectories", "--serve", str(port), str(latency_s), zoom]
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(30)


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


TRAJECTORIES = 500
LATENCY_S = 0.5
PICTURES, VIEW_PIXELS = 10, 120_000
SEED, SIZE, WIDTH = 7, 3_000, 1024
GOAL_RATIO = 0.8
GOAL_CPU_MS = 2.5
ROUNDS = 5  # trajectories of each place after its first
REQUESTS = 6  # of a trajectory


def pictures() -> list[Picture]:
    """Some of the world's pictures, as a model sees them."""
    world = World(SEED, SIZE, WIDTH)
    records = (record for index in range(SIZE) for record in world.images(index) if record.condition == "clear")
    found = []
    for record in records:
        found.append(open_picture(render_jpeg(world, record), VIEW_PIXELS))
        if len(found) == PICTURES:
            return found
    raise SystemExit("the world has too few pictures")


@contextmanager
def recorded(sent: list[Sent]) -> Iterator[None]:
    """Note every request that leaves."""
    send = HttpTransport.send

    async def noting(self: HttpTransport, request: HttpRequest, latency: Any) -> Any:
        sent.append((request.method, request.url, dict(request.headers), request.body))
        return await send(self, request, latency)

    with mock.patch.object(HttpTransport, "send", noting):
        yield


@contextmanager
def answering() -> Iterator[list[float]]:
    """When each request was answered."""
    send = HttpTransport.send
    answered: list[float] = []

    async def noting(self: HttpTransport, request: HttpRequest, latency: Any) -> Any:
        answer = await send(self, request, latency)
        answered.append(time.perf_counter())
        return answer

    with mock.patch.object(HttpTransport, "send", noting):
        yield answered


class Live:
    """Agents of one process, in one event loop after the other phase."""

    def __init__(self, url: str, shown: list[Picture], file: Path) -> None:
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
        calls = CallLog(CallStore(file), "bench", "bench")
        connections = connect(services, {}).sharing(ProcessRateBudget(), calls)
        search, geocoder = Search(connections.search), Geocoder(connections.geocoder)
        context = ToolContext(
            search=search, geocoder=geocoder, maps=open_maps(connections.maps, connections.world_maps)
        )
        self.chat, self._tools, self._shown = Chat(connections.chat), Toolbox(context), shown
        self.ends: dict[str, int] = {}
        self.ended: dict[int, list[float]] = {}  # when trajectories of a place ended

    async def run(self, first: int, count: int, rounds: int = 1) -> None:
        """So many trajectories at once, and in the place of each, when it ends, the next of its rounds."""

        async def place(number: int) -> None:
            ended = self.ended.setdefault(number, [])
            for _ in range(rounds):
                environment = Environment(
                    self._shown[number % len(self._shown)], self._tools, RECIPES["spotagent"].prompt
                )
                # The seed makes every trajectory's requests its own; at temperature 0 the world answers them alike.
                asked = SingleAgent(self.chat, "agent", Sampling(0.0, number, 1024))
                trajectory = await run_agent(environment, asked)
                self.ends[trajectory.end_reason] = self.ends.get(trajectory.end_reason, 0) + 1
                ended.append(time.perf_counter())
                number += TRAJECTORIES

        await asyncio.gather(*(place(number) for number in range(first, first + count)))


async def warmed(url: str, shown: list[Picture], file: Path, count: int = PICTURES) -> None:
    """Trajectories before the first that counts: imports."""
    live = Live(url, shown, file)
    await live.run(0, count)
    await live.chat.close()


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


@dataclass(frozen=True)
class Took:
    """Seconds until every place has ended a trajectory; then requests a second while all are under way; CPU of one."""

    start_s: float
    per_s: float
    cpu_ms: float


async def timed(live: Live, first: int, count: int) -> Took:
    """Every place goes from one trajectory to the next; what is sustained is counted while none has ended its last."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    with answering() as answered:
        await live.run(first, count, 1 + ROUNDS)
    cpu_s = time.process_time() - began_cpu_s
    await live.chat.close()
    ends = [place[-1 - ROUNDS :] for place in live.ended.values()]
    since_s, until_s = max(place[0] for place in ends), min(place[-1] for place in ends)
    steady = sum(since_s < one_s <= until_s for one_s in answered)
    return Took(since_s - began_s, steady / (until_s - since_s), 1000 * cpu_s / len(answered))


def work(url: str, file: str, count: str, first: str) -> None:
    """One of several processes: it makes ready, waits for a word, and runs its share."""
    shown = pictures()
    asyncio.run(warmed(url, shown, Path(f"{file}.{first}")))
    freeze_gc()
    print("ready", flush=True)
    sys.stdin.readline()
    took = asyncio.run(timed(Live(url, shown, Path(file)), int(first), int(count)))
    print(json.dumps(vars(took)), flush=True)


def spread(url: str, file: Path, count: int, processes: int) -> Took:
    """All trajectories, shared out over processes as a stage's workers are; one file of calls."""
    share = -(-count // processes)
    parts = [(min(share, count - first), first) for first in range(0, count, share)]
    command = [sys.executable, "-m", "bench.live_trajectories", "--work", url, str(file)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as Ray tells a worker of one core
    workers = [subprocess.Popen([*command, str(size), str(first)], env=environment, **pipes) for size, first in parts]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n", "a process did not start"
    took = [Took(**json.loads(worker.communicate()[0])) for worker in _told(workers)]
    return Took(max(one.start_s for one in took), sum(one.per_s for one in took), fmean(one.cpu_ms for one in took))


def _told(workers: list["subprocess.Popen[str]"]) -> list["subprocess.Popen[str]"]:
    """Each is told to go before any is waited for."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return workers


def cpu_of(process: int) -> float:
    """CPU seconds of another process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_aiohttp(sent: list[Sent], count: int, server: int) -> tuple[Took, float]:
    """The same requests as often, counted alike; and the server's CPU of one in ms."""
    began_s, began_cpu_s, began_server_s = time.perf_counter(), time.process_time(), cpu_of(server)
    answered = asyncio.run(send_all(sent * (1 + ROUNDS), count))
    cpu_ms, server_ms = (1000 * one / len(answered)
                         for one in (time.process_time() - began_cpu_s, cpu_of(server) - began_server_s))  # fmt: skip
    # Many are answered at one moment and sent again at one moment: whole latencies are counted.
    since_s = began_s + 2.5 * LATENCY_S
    whole_s = LATENCY_S * int((answered[-1] - since_s) / LATENCY_S - 0.5)
    steady = sum(since_s < one_s <= since_s + whole_s for one_s in answered)
    return Took(answered[len(sent) - 1] - began_s, steady / whole_s, cpu_ms), server_ms


def told(how: str, took: Took, bare: Took, requests: int) -> None:
    """Print both phases beside those of aiohttp alone."""
    start, sustained = bare.start_s / took.start_s, took.per_s / bare.per_s
    print(f"   {how}: from the start {requests / took.start_s:.0f} requests a second, ratio {start:.2f}; sustained "
          f"{took.per_s:.0f}, ratio {sustained:.2f}; {took.cpu_ms:.2f} ms of CPU a request", flush=True)  # fmt: skip


def measure(url: str, server: int, folder: str, count: int) -> list[Goal]:
    """Live and by aiohttp alone, one after the other."""
    shown, file = pictures(), Path(folder) / "calls.sqlite"
    asyncio.run(warmed(url, shown, file.with_name("first.sqlite")))
    sent: list[Sent] = []
    memory = PeakMemory()
    memory.start()
    with recorded(sent):
        asyncio.run(warmed(url, shown, file.with_name("second.sqlite"), count))
    requests, chats = len(sent), sum("/chat/completions" in url for _, url, _, _ in sent)
    assert requests == REQUESTS * count, f"{requests} requests of {count} trajectories"
    live = Live(url, shown, file)
    freeze_gc()  # as every worker does
    took = asyncio.run(timed(live, 0, count))
    grown_mb = memory.end()
    bare, server_ms = by_aiohttp(sent, count, server)
    kept = sum(len(body or b"") for *_, body in sent) / 1e6  # what this benchmark itself holds of them
    print(f"   {count} trajectories at once: {requests:,} requests of a round, {chats:,} of them to models, "
          f"{1000 * kept / requests:.0f} KB each; ends {live.ends}; memory {(grown_mb - kept) / count:.2f} MB a "
          "trajectory, without the requests kept for aiohttp")  # fmt: skip
    print(f"   aiohttp alone: from the start {requests / bare.start_s:.0f} requests a second, sustained "
          f"{bare.per_s:.0f}; {bare.cpu_ms:.2f} ms of CPU a request, the server's {server_ms:.2f} ms")  # fmt: skip
    told("1 process", took, bare, requests)
    cores = os.cpu_count() or 1
    processes = max(2, cores)
    took = spread(url, file.with_suffix(f".{processes}"), count, processes)
    told(f"{processes} processes", took, bare, requests)
    with latency_server(LATENCY_S, "quarter") as (other, _):
        large = spread(other, file.with_suffix(".large"), count, processes)
    told(f"{processes} processes, zooms of a quarter of the picture", large, bare, requests)
    both_ms = took.cpu_ms + server_ms
    print(f"   {cores} cores, if nothing else ran, allow {1000 * cores / both_ms:.0f} requests a second at "
          f"{both_ms:.2f} ms for client and server together; {GOAL_RATIO} of aiohttp's pace is "
          f"{GOAL_RATIO * bare.per_s:.0f}", flush=True)  # fmt: skip
    return [
        Goal(
            f"requests a second sustained, {processes} processes / aiohttp alone", took.per_s / bare.per_s, GOAL_RATIO
        ),
        Goal("ms of CPU a request", took.cpu_ms, at_most=GOAL_CPU_MS),
    ]


def main(count: int = TRAJECTORIES) -> int:
    spawning = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        latency_server(LATENCY_S) as (url, server),
        ProcessPoolExecutor(1, spawning) as alone,
    ):
        goals = alone.submit(measure, url, server, folder, count).result()
    return judge(goals)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    elif sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
