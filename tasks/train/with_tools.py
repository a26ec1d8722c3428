"""Rollouts with tools: the policy in the one environment of `tasks/agent`, all rollouts of a batch side by side.

Tools run in an event loop of their own while the engine writes replies of other rollouts: a rollout goes back to the
engine as soon as its own tools have answered, and waits for no other's. The tokens that were drawn stay as they
are; what tools answered is added after them, with its pictures, and bears no loss.

With live services, which replies are written side by side follows from how fast they answer, and so do the random
numbers they are drawn with: two runs need not be the same bit by bit. While answers are recorded, and with recorded
ones, all rollouts go in step: the next replies begin when every tool has answered, in the rollouts' own order, and a
run that is done again is the same; its weights too, with one thread (sums of several differ in their last bits).
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
from PIL import Image

from schemas.errors import GeofixError
from schemas.messages import ChatReply, ToolCall, Usage, image_references, texts_of
from schemas.settings.train import TrainSettings
from tasks.agent.environment import TOOL_OUTAGE, TURN_BUDGET, Environment
from tasks.agent.picture import StoredPictures
from tasks.agent.render import CONTROL
from tasks.agent.service_tools import open_toolbox, tool_services
from tasks.agent.tagged import split_calls
from tasks.agent.toolbox import NOT_RECORDED
from tasks.lake.image_store import ImageStore
from tasks.recipes.recipe import rollout_prompt
from tasks.services import Connections
from tasks.services.calls import spending_of
from tasks.train.encoding import Encoder
from tasks.train.rollouts.engines import RolloutEngines
from tasks.train.rollouts.sampling import Sampling
from tasks.train.rollouts.source import Episode
from tasks.train.token_samples import IGNORED, Completion, Grid, Sample

GATHER_S = 0.05  # a step of the engine costs the same for one rollout as for many: few are not started alone
SLACK = 4  # a quarter more than the longest: an engine is made anew, and emptied before, for what does not fit
OPENED = 16  # pictures, kept until others are: a group's rollouts are begun one after another
DECODED_BYTES = 512_000_000  # of pictures that rollouts zoom into: 20 panoramas of 4096 x 2048
CONTROL_TOKEN = "control_token"  # why a rollout ended: a tool's answer holds a token that steers the model


@dataclass(eq=False)
class Rollout:
    """One rollout that is being written."""

    environment: Environment
    prompt: Sample
    image_id: str = ""
    ids: list[int] = field(default_factory=list)
    is_policy: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)  # of the policy's tokens
    pixels: list[torch.Tensor] = field(default_factory=list)
    grids: tuple[Grid, ...] = ()
    is_finished: bool = True
    outage: str | None = None
    turns: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt.ids) + len(self.ids)

    @property
    def as_sample(self) -> Sample:
        """Prompt and what followed it: the prompt of the next reply."""
        ids = [*self.prompt.ids, *self.ids]
        pixels = [tensor for tensor in (self.prompt.pixels, *self.pixels) if tensor is not None]
        device = self.prompt.pixels.device if self.prompt.pixels is not None else None
        together = (
            torch.cat([picture_pixels.to(device, pixels[0].dtype) for picture_pixels in pixels]) if pixels else None
        )
        return Sample(ids, [IGNORED] * len(ids), together, (*self.prompt.grids, *self.grids))

    def episode(self) -> Episode:
        environment = self.environment
        completion = Completion(self.ids, self.is_policy, torch.cat(self.pixels) if self.pixels else None, self.grids)
        return Episode(
            completion, self.is_finished, environment.final_text, len(environment.calls),
            self.outage or environment.trajectory().outage or None,
            sum(call.error == NOT_RECORDED for call in environment.calls), self.log_probs,
            sum(not call.executed and call.error != NOT_RECORDED for call in environment.calls),
            tuple(environment.messages), tuple(environment.calls),
        )  # fmt: skip


class RolloutQueue:
    """Rollouts of one draw: those whose tools run, and those that are ready for their next reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_turns: int, in_step: bool = False) -> None:
        self._loop, self._max_turns, self._in_step = loop, max_turns, in_step
        self._running: dict[Rollout, Future[None]] = {}
        self._answered: SimpleQueue[Rollout] = SimpleQueue()
        self.ready: deque[Rollout] = deque()
        self.waited_s = 0.0  # in which there was nothing to decode

    def __enter__(self) -> RolloutQueue:
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._running.values():  # after an error: none waits for the others any more
            future.cancel()

    @property
    def count(self) -> int:
        return len(self._running) + len(self.ready)

    def start(self, rollout: Rollout, step: Coroutine[Any, Any, None]) -> None:
        """Take a reply and run its tools, while the caller goes on."""
        rollout.turns += 1
        future = asyncio.run_coroutine_threadsafe(step, self._loop)
        self._running[rollout] = future
        future.add_done_callback(lambda _: self._answered.put(rollout))

    def wait(self) -> bool:
        """Until a rollout is ready; False if none will be."""
        if not self._in_step:
            self._collect(waits=True)
        while self._in_step and self._running and not self.ready:
            running, self._running = self._running, {}  # in the order in which they were started
            began = time.monotonic()
            for rollout, future in running.items():
                future.result()
                self._take(rollout)
            self.waited_s += time.monotonic() - began
        return bool(self.ready)

    def next(self, longest: int, waits: bool) -> Rollout | None:
        """A rollout that is ready and no longer than this."""
        if not self._in_step:
            self._collect(waits)
        for rollout in self.ready:
            if rollout.length <= longest:
                self.ready.remove(rollout)
                return rollout
        return None

    def _collect(self, waits: bool) -> None:
        """Take what has answered. An idle engine waits for the first and for those that come right behind it."""
        while self._running:
            began = time.monotonic()
            try:
                rollout = self._answered.get(waits, GATHER_S if self.ready else None)
            except Empty:
                return
            finally:
                self.waited_s += time.monotonic() - began
            self._running.pop(rollout).result()  # raises what its step raised
            self._take(rollout)

    def _take(self, rollout: Rollout) -> None:
        if rollout.turns >= self._max_turns:
            rollout.environment.end(TURN_BUDGET)
        if not rollout.environment.done:
            self.ready.append(rollout)


class ToolRollouts:
    """G conversations of each picture, of at most `max_turns` replies and `max_tokens` tokens after the prompt.

    One that does not stop writing holds up the whole batch: `reply_tokens` ends it sooner.
    """

    def __init__(
        self,
        engines: RolloutEngines,
        encoder: Encoder,
        make_environment: Callable[[Mapping[str, Any]], Environment],
        size: int,
        max_tokens: int,
        max_turns: int,
        temperature: float,
        reply_tokens: int | None = None,
        keep: bool = True,
        in_step: bool = False,
    ) -> None:
        self._engines, self._encoder, self._make = engines, encoder, make_environment
        self._size, self._max_tokens, self._max_turns = size, max_tokens, max_turns
        self._reply_tokens = min(max_tokens, reply_tokens or max_tokens)
        self._sampling = Sampling(temperature)
        self._keep, self._in_step = keep, in_step  # keep: key caches between two draws
        self._tools: asyncio.AbstractEventLoop | None = None
        self.waited_s = 0.0  # of the last draw: the engine idle for want of a tool's answer

    def draw(
        self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]], has_weights: threading.Event | None = None
    ) -> list[list[Episode]]:
        groups = [
            [Rollout(self._make(row), prompt, str(row.get("image_id") or "")) for _ in range(self._size)]
            for prompt, row in zip(prompts, rows, strict=True)
        ]
        self._engines.refresh_weights()
        if has_weights is not None:
            has_weights.set()
        with RolloutQueue(self._loop(), self._max_turns, self._in_step) as queue:
            # The first replies: a group's prompt is computed once.
            for number, rollouts in self._engines.stream(prompts, self._size, self._reply_tokens, self._sampling):
                for rollout, reply in zip(groups[number], rollouts, strict=True):
                    queue.start(rollout, self._reply(rollout, reply.ids, reply.log_probs))
            while queue.wait():
                self._continue(queue)
        self.waited_s = queue.waited_s
        if not self._keep:
            self._engines.clear()
        return [[rollout.episode() for rollout in group] for group in groups]

    def _continue(self, queue: RolloutQueue) -> None:
        """Replies of rollouts whose tools have answered, until none is left that fits the engine."""
        longest = max(rollout.length for rollout in queue.ready)
        taken: list[Rollout] = []

        def take(most: int, waits: bool) -> Sample | None:
            rollout = queue.next(most, waits)
            if rollout is None:
                return None
            taken.append(rollout)
            return rollout.as_sample

        room = longest + longest // SLACK
        for number, [reply] in self._engines.serve(take, room, queue.count, self._reply_tokens, self._sampling):
            queue.start(taken[number], self._reply(taken[number], reply.ids, reply.log_probs))

    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the tools, in a thread of its own; services keep their connections in it between two draws."""
        if self._tools is None:
            self._tools = asyncio.new_event_loop()
            threading.Thread(target=self._tools.run_forever, name="tools", daemon=True).start()
        return self._tools

    async def _reply(self, rollout: Rollout, ids: list[int], log_probs: Sequence[float]) -> None:
        ids = ids[: max(1, self._max_tokens - len(rollout.ids))]
        is_whole = ids[-1] in self._encoder.end_tokens
        rollout.ids += ids
        rollout.is_policy += [True] * len(ids)
        rollout.log_probs += log_probs[: len(ids)]
        environment = rollout.environment
        before = len(environment.messages)
        text = self._encoder.decode(ids)
        reply_text, calls = self._calls(rollout, text)
        reply = ChatReply(
            text=reply_text if calls else text,
            tool_calls=tuple(ToolCall(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(calls)),
            usage=Usage(prompt_tokens=rollout.length - len(ids), completion_tokens=len(ids)),
            finish_reason="stop" if is_whole else "length",
        )
        with spending_of(rollout.image_id):  # what tools answer is kept as the picture's, and leaves with it
            await environment.step(reply)
        rollout.is_finished = is_whole
        if environment.done:
            if environment.end_reason == TOOL_OUTAGE:
                rollout.outage = environment.trajectory().outage or "tool_outage"
            return
        self._add_responses(rollout, environment.messages[before + 1 :])
        if len(rollout.ids) >= self._max_tokens:
            rollout.is_finished = False
            environment.end("token_budget")

    def _calls(self, rollout: Rollout, text: str) -> tuple[str, list[tuple[str, str]]]:
        """A reply's words, and the names and arguments of its calls."""
        return split_calls(text.rstrip("\n"))

    def _add_responses(self, rollout: Rollout, responses: Sequence[dict[str, Any]]) -> None:
        """What the tools answered, as the chat template writes it after the reply."""
        environment = rollout.environment
        if any(token in text for message in responses for text in texts_of(message) for token in CONTROL):
            rollout.outage = CONTROL_TOKEN
            environment.end(CONTROL_TOKEN)
            return
        pictures = [
            Image.open(io.BytesIO(environment.pictures[sha256])).convert("RGB")
            for sha256, _ in image_references(list(responses))
        ]
        added = self._encoder.responses(responses, pictures)
        rollout.ids += list(added.ids)
        rollout.is_policy += [False] * len(added.ids)
        rollout.grids += added.grids
        if added.pixels is not None:
            rollout.pixels.append(added.pixels)


def environment_maker(
    settings: TrainSettings, store: ImageStore, connections: Connections | None, state: Path | None = None
) -> Callable[[Mapping[str, Any]], Environment]:
    """Makes the environment of a sample: its picture, the recipe's words and tools, the turns of the settings.

    What tools answer is recorded where the run's calls to models are; if it makes none, in the folder `state`.
    """
    prompt = rollout_prompt(settings.recipe, settings.grpo.max_turns, settings.prompt)
    if not prompt.tools:
        raise GeofixError(
            f"train.grpo.max_turns is {settings.grpo.max_turns}, but '{settings.recipe}' has no tools; set it to 0"
        )
    if connections is None:
        raise GeofixError("tools in training ask services: run it through `geofix train`")
    for service in tool_services(prompt.tools) if connections.tools.recording is None else ():
        connection = getattr(connections, service)
        if connection.endpoint.key_env and connection.key is None:
            raise GeofixError(
                f"the tools of '{settings.recipe}' ask {service}: put its key into {connection.endpoint.key_env}"
            )
    tools = open_toolbox(connections, state if connections.tools.mode == "record" else None)
    pictures = StoredPictures(store, settings.image_max_pixels, settings.image_min_pixels, OPENED, DECODED_BYTES)

    def make(row: Mapping[str, Any]) -> Environment:
        picture = pictures.opened(*image_references(json.loads(row["messages_json"]))[0])
        return Environment(picture, tools, prompt, stop_at_outage=True)

    return make


def opening_prompt(environment: Environment, encoder: Encoder) -> Sample:
    """What the policy is shown first."""
    shown = [Image.open(io.BytesIO(jpeg)).convert("RGB") for jpeg in environment.pictures.values()]
    return encoder.prompt(environment.messages, environment.offered(), shown)
