"""On a cluster of two nodes calls go through one actor: what was answered is not asked again, one budget holds."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.loopback_cluster import loopback_cluster
from tasks.services.call_store import CallStore

pytestmark = pytest.mark.whole

LIVENESS_S = 300.0
ANSWER = b'{"choices": [{"message": {"content": "found"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9}}'
# What a command does: workers on two nodes ask a model that costs money.
COMMAND = """
import asyncio, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.runtime.on_ray.budget_actor import shared_rate_budget
from tasks.runtime.calls import StageCalls
from tasks.services import Chat, connect

folder, address, url = sys.argv[1:]
lake, spread = Lake(folder), SpreadSettings(address=address)
models = ModelsSettings.model_validate(
    {
        "endpoints": {"own": {"base_url": url, "timeout_s": 300, "total_timeout_s": 300}},
        "roles": {"m": {"endpoint": "own", "price": {"prompt": 10, "completion": 100}, "max_tokens": 100}},
        "budget_usd": 1.0,
    }
)
calls = StageCalls(lake, models, spread, "stage", "run")
shared = connect(ServicesSettings(), {}, models=models).sharing(shared_rate_budget(lake, spread), calls.log)


@ray.remote(num_cpus=1)
def work(seed):
    reply = asyncio.run(Chat(shared.chat).complete("m", [{"role": "user", "content": "hi"}], seed=seed))
    return reply.text, ray.get_runtime_context().get_node_id()


def on(node, seed):
    return work.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(seed)


first, second = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
ray.get(on(first, 0))  # the first call of a role goes alone: it tells how its server counts
told = ray.get([on(first, 1), on(second, 2)])
nodes = len({node for _, node in told})
calls.commit()
print(*(text for text, _ in told), nodes, lake.read("calls").height, flush=True)
"""


class Model:
    """A server that answers the second seed only when it is told to, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked, self.may_answer = list[int](), threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                seed = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["seed"]
                model.asked.append(seed)
                if seed == 2:
                    model.may_answer.wait(LIVENESS_S)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(ANSWER)))
                self.end_headers()
                self.wfile.write(ANSWER)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def model() -> Iterator[Model]:
    with contextlib.closing(Model()) as serving:
        yield serving


def until(happened: Callable[[], bool], command: "subprocess.Popen[str] | None" = None) -> None:
    deadline = time.monotonic() + LIVENESS_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        assert command is None or command.poll() is None, "the command ended"
        time.sleep(0.1)


def kept(file: Path) -> int:
    if not file.exists():
        return 0
    with contextlib.closing(sqlite3.connect(file, timeout=60)) as opened:
        return int(opened.execute("SELECT count(*) FROM responses WHERE namespace = 'chat'").fetchone()[0])


@pytest.mark.slow
def test_two_nodes_keep_their_answers_in_one_place_and_a_kill_repeats_what_was_in_flight(
    model: Model, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with loopback_cluster(2, tmp_path / "cluster.log") as cluster:
        command = [sys.executable, "-c", COMMAND, str(lake), cluster.address, model.url]
        killed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        file = lake / ".state" / "responses.sqlite"
        until(lambda: len(model.asked) == 3 and kept(file) == 2, killed)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        model.may_answer.set()
        again = subprocess.run(command, capture_output=True, text=True, timeout=LIVENESS_S)
    assert again.stdout.split()[-4:] == ["found", "found", "2", "3"], again.stderr[-2000:]
    assert sorted(model.asked) == [0, 1, 2, 2]
    spent, lost = CallStore(file).totals()
    assert spent == pytest.approx(3 * 9e-5) and lost == pytest.approx(9e-5)
    assert CallStore(file).close_abandoned() == 1
