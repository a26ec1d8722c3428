"""GRPO's rollouts with slow tools: each goes on when its own tools have answered, against rounds that wait for all.

A tiny model writes the replies with the product's engine, the calls are given, and a search on loopback answers most
of them in 0.1 s and every eighth after 4 s. Rounds: all replies of a turn, then all tools of the turn, as before.

The tool server speaks Tavily's search and AMap's static maps. A query says what is to become of it: `wait 0.5` is
answered after half a second, `fail` with status 503, `hold NAME` once somebody has asked `release NAME`, or at the
latest after HELD_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from bench.goals import Goal, judge
from bench.training_lake import fill_lake, small_settings
from schemas.settings.services import ServicesSettings
from schemas.settings.train import GrpoSettings, TinySettings, TrainSettings
from tasks.agent.environment import Environment
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.runtime.stage import open_inputs
from tasks.services import Connections, connect
from tasks.train.encoding import Encoder, Pictures, conversation_texts
from tasks.train.loop import prepare_model
from tasks.train.rollouts.engines import Engines
from tasks.train.rollouts.source import Episode
from tasks.train.samples import STAGE, compute
from tasks.train.tiny import build_model, build_processor
from tasks.train.token_samples import Sample
from tasks.train.with_tools import Rollout, ToolRollouts, environment_maker, opening_prompt

HELD_S = 120.0  # only so that a test that fails ends


class ToolServer(ThreadingHTTPServer):
    """What was asked, in order, and the requests that are held."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.released: dict[str, threading.Event] = defaultdict(threading.Event)
        self.overdue: list[str] = []  # held requests that were never released

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, query: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(query)
        word, _, rest = query.partition(" ")
        if word == "wait":
            time.sleep(float(rest.split()[0]))
        elif word == "release":
            self.released[rest].set()
        elif word == "hold" and not self.released[rest].wait(HELD_S):
            self.overdue.append(rest)
        if word == "fail":
            return 503, {"error": "out of order"}
        return 200, {"results": [{"title": "Found", "url": "https://example.org", "content": query, "score": 1.0}]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ToolServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, value = self.server.answer(json.loads(body)["query"])
        self._send(status, json.dumps(value).encode(), "application/json")

    def do_GET(self) -> None:
        self.server.asked.append(self.path.partition("?")[0])
        out = io.BytesIO()
        Image.new("RGB", (512, 512), "olive").save(out, "PNG")
        self._send(200, out.getvalue(), "image/png")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a request in thousands is of no interest."""


@contextlib.contextmanager
def tool_server() -> Iterator[ToolServer]:
    """The server, until the block ends."""
    server = ToolServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


Call = tuple[str, dict[str, Any]]
# The calls of a rollout's turn: (number of the rollout, turn from 1 on) -> calls; none ends it.
Script = Callable[[int, int], Sequence[Call]]
FAST_S, SLOW_S, EVERY = 0.1, 4.0, 8


class Scripted(ToolRollouts):
    """The engine draws the tokens; which tools are called is given, as a tiny model never writes a call."""

    script: Script

    def _calls(self, rollout: Rollout, text: str) -> tuple[str, list[tuple[str, str]]]:
        number = rollout.environment.number  # type: ignore[attr-defined]
        return "Look.", [(name, json.dumps(given)) for name, given in self.script(number, rollout.turns)]

    async def _reply(self, rollout: Rollout, ids: list[int], log_probs: Sequence[float]) -> None:
        whole = [*ids[:-1], self._encoder.end_tokens[0]]  # a reply that is not cut
        await super()._reply(rollout, whole, [*log_probs[:-1], math.nan])


class InRounds(Scripted):
    """As it was before: in each turn all replies, then all tools."""

    def draw(
        self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]], has_weights: threading.Event | None = None
    ) -> list[list[Episode]]:
        groups = [
            [Rollout(self._make(row), prompt) for _ in range(self._size)]
            for prompt, row in zip(prompts, rows, strict=True)
        ]
        every = [rollout for group in groups for rollout in group]
        first = self._engines.generate(prompts, self._size, self._max_tokens, self._sampling)
        replies = [(rollout, one) for group, found in zip(groups, first, strict=True)
                   for rollout, one in zip(group, found, strict=True)]  # fmt: skip
        while replies:
            for rollout, _ in replies:
                rollout.turns += 1

            async def step(some: Sequence[tuple[Rollout, Any]]) -> None:
                await asyncio.gather(*(self._reply(rollout, one.ids, one.log_probs) for rollout, one in some))

            began = time.monotonic()
            asyncio.run_coroutine_threadsafe(step(replies), self._loop()).result()
            self.waited_s += time.monotonic() - began
            going = [rollout for rollout in every if not rollout.environment.done and rollout.turns < self._max_turns]
            if not going:
                break
            rolled = self._engines.generate(
                [rollout.as_sample for rollout in going], 1, self._max_tokens, self._sampling
            )
            replies = [(rollout, one) for rollout, [one] in zip(going, rolled, strict=True)]
        return [[rollout.episode() for rollout in group] for group in groups]


def settings_of(recipe: str = "geovista", group_size: int = 4, **changes: Any) -> TrainSettings:
    grpo = GrpoSettings(
        max_steps=1, group_size=group_size, prompts_per_generation=2, prompts_per_step=2, micro_batch=8,
        learning_rate=1e-3, max_completion_tokens=4000, max_turns=6, kl=0.0,
    )  # fmt: skip
    tiny = TinySettings(vocabulary=4096, hidden=64, layers=1, intermediate=64, vision_hidden=32, vision_layers=1)
    return small_settings(
        tiny=tiny, recipe=recipe, phases=("grpo",), pack_tokens=64_000, validation_images=0, **{"grpo": grpo, **changes}
    )


def services(server: ToolServer) -> Connections:
    """Every service of the tools is the server; a failure is not tried again."""
    here = {"base_url": server.url, "max_attempts": 1, "public_key": "none", "timeout_s": 300, "total_timeout_s": 300}
    return connect(ServicesSettings.model_validate({"search": here, "geocoder": here, "maps": here}), {}, ())


def numbered(make: Callable[[Mapping[str, Any]], Environment]) -> Callable[[Mapping[str, Any]], Environment]:
    """Environments that know which rollout they are of, so that a script can tell them apart."""
    count = iter(range(1_000_000))

    def made(row: Mapping[str, Any]) -> Environment:
        environment = make(row)
        environment.number = next(count)  # type: ignore[attr-defined]
        return environment

    return made


def opened(kind: type[Scripted], lake: Lake, settings: TrainSettings, server: ToolServer, script: Script) -> Any:
    """Rollouts, and the prompts and rows they are drawn of; the engine writes short replies."""
    samples, _ = compute(open_inputs(STAGE, lake), settings)
    rows = samples.filter(samples["training_stage"] == "grpo").to_dicts()
    words = RECIPES[
        settings.recipe
    ].prompt  # among the tokenizer's, so that a question has a thousand tokens and not five
    texts = [text for one in samples["messages_json"] for text in conversation_texts(one)]
    texts += [words.system, words.question, json.dumps(words.tool_schemas())]
    processor = build_processor(texts, settings.tiny, settings.image_min_pixels, settings.image_max_pixels)
    fast = prepare_model(build_model(processor, settings.tiny, 0), settings)
    encoder = Encoder(processor, Pictures(lake.images, settings.image_min_pixels, settings.image_max_pixels))
    make = environment_maker(settings, lake.images, services(server))
    prompts = [opening_prompt(make(row), encoder) for row in rows]
    grpo = settings.grpo
    engines = Short(fast, encoder.end_tokens, grpo.rollout_groups * grpo.group_size)
    rollouts = kind(
        engines, encoder, numbered(make), grpo.group_size, grpo.max_completion_tokens, grpo.max_turns, grpo.temperature
    )
    rollouts.script = script
    return rollouts, prompts, rows


class Short(Engines):
    """Replies of a few tokens: what is measured is the waiting."""

    TOKENS = 16

    def engine(self, longest: int, prompts: int, size: int, new_tokens: int, sampling: Any) -> Any:
        return super().engine(longest, prompts, size, self.TOKENS, sampling)


def slow_searches(seed: int = 0, turns: int = 5) -> Script:
    """A search in every turn, of which one in EVERY is slow; the last reply answers."""
    rng = random.Random(seed)
    waits = {(n, t): SLOW_S if rng.random() < 1 / EVERY else FAST_S for n in range(64) for t in range(1, turns + 1)}

    def script(number: int, turn: int) -> Sequence[Call]:
        return [("search_web", {"query": f"wait {waits[number, turn]}"})] if turn <= turns else []

    return script


def measure() -> list[Goal]:
    torch.set_num_threads(1)
    settings = settings_of()
    taken: dict[str, float] = {}
    waited: dict[str, float] = {}
    episodes: dict[str, list[list[Episode]]] = {}
    with tempfile.TemporaryDirectory(prefix="geofix-tools-") as name, tool_server() as server:
        lake = Lake(Path(name) / "lake")
        fill_lake(lake, pictures=10)
        for kind in (InRounds, Scripted):
            rollouts, prompts, rows = opened(kind, lake, settings, server, slow_searches())
            rollouts.draw(prompts[:1], rows[:1])  # engines and connections are there
            rollouts, prompts, rows = opened(kind, lake, settings, server, slow_searches())
            began = time.monotonic()
            episodes[kind.__name__] = rollouts.draw(prompts[:4], rows[:4])
            taken[kind.__name__] = time.monotonic() - began
            waited[kind.__name__] = rollouts.waited_s
    calls = {name: [one.tool_calls for group in found for one in group] for name, found in episodes.items()}
    assert calls["Scripted"] == calls["InRounds"]
    print(
        f"   16 rollouts of 6 turns, {sum(calls['Scripted'])} searches: in rounds {taken['InRounds']:.1f} s, of "
        f"them {waited['InRounds']:.1f} s with nothing to decode; each on its own {taken['Scripted']:.1f} s, of them "
        f"{waited['Scripted']:.1f} s", flush=True,
    )  # fmt: skip
    return [
        Goal("time in rounds, times that of rollouts on their own", taken["InRounds"] / taken["Scripted"], 1.3),
        Goal("idle time in rounds, times that of rollouts on their own", waited["InRounds"] / waited["Scripted"], 1.5),
    ]


def main(arguments: list[str] | None = None) -> int:
    return judge(measure())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
