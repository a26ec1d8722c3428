"""Rollouts with tools: the policy in the one environment of `tasks/agent`, all rollouts of a batch side by side.

In each turn the engine writes the next reply of every rollout that goes on, and the tools of all of them are called at
once, so a slow tool waits behind the others. The tokens that were drawn stay as they are; what tools answered is added
after them, with its pictures, and bears no loss.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

from schemas.errors import GeofixError
from schemas.messages import ChatReply, ToolCall, Usage, image_reference
from schemas.settings.train import TrainSettings
from tasks.agent.environment import TOOL_OUTAGE, Environment
from tasks.agent.picture import open_picture
from tasks.agent.recipes import RECIPES
from tasks.agent.render import CONTROL, render_text
from tasks.agent.service_tools import open_toolbox
from tasks.agent.tagged import split_calls
from tasks.lake.image_store import ImageStore
from tasks.services import Connections
from tasks.train.encoding import Encoder, parts_of
from tasks.train.fast.grouped import Completion
from tasks.train.fast.layout import Grid
from tasks.train.fast.packing import IGNORED, Sample
from tasks.train.rollouts.sampling import Sampling
from tasks.train.rollouts.source import Engines, Episode

FOUL = "control_token"  # a tool's answer that would steer the model is no answer


@dataclass
class Course:
    """One rollout on its way."""

    environment: Environment
    prompt: Sample
    ids: list[int] = field(default_factory=list)
    is_policy: list[bool] = field(default_factory=list)
    pixels: list[torch.Tensor] = field(default_factory=list)
    grids: tuple[Grid, ...] = ()
    is_finished: bool = True
    outage: str | None = None

    @property
    def so_far(self) -> Sample:
        """Prompt and what followed it: the prompt of the next reply."""
        ids = [*self.prompt.ids, *self.ids]
        pixels = [one for one in (self.prompt.pixels, *self.pixels) if one is not None]
        device = self.prompt.pixels.device if self.prompt.pixels is not None else None
        together = torch.cat([one.to(device, pixels[0].dtype) for one in pixels]) if pixels else None
        return Sample(ids, [IGNORED] * len(ids), together, (*self.prompt.grids, *self.grids))

    def episode(self) -> Episode:
        environment = self.environment
        completion = Completion(self.ids, self.is_policy, torch.cat(self.pixels) if self.pixels else None, self.grids)
        return Episode(
            completion, self.is_finished, environment.final_text, len(environment.calls),
            self.outage or environment.trajectory().outage or None,
        )  # fmt: skip


class ToolRollouts:
    """G conversations of each picture, of at most `max_turns` replies and `max_tokens` tokens after the prompt."""

    def __init__(
        self,
        engines: Engines,
        encoder: Encoder,
        make_environment: Callable[[Mapping[str, Any]], Environment],
        size: int,
        max_tokens: int,
        max_turns: int,
        temperature: float,
    ) -> None:
        self._engines, self._encoder, self._make = engines, encoder, make_environment
        self._size, self._max_tokens, self._max_turns = size, max_tokens, max_turns
        self._sampling = Sampling(temperature)

    def draw(self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]]) -> list[list[Episode]]:
        groups = [
            [Course(self._make(row), prompt) for _ in range(self._size)]
            for prompt, row in zip(prompts, rows, strict=True)
        ]
        every = [course for group in groups for course in group]
        first = self._engines.generate(prompts, self._size, self._max_tokens, self._sampling)
        replies = [(course, one.ids) for group, found in zip(groups, first, strict=True)
                   for course, one in zip(group, found, strict=True)]  # fmt: skip
        asyncio.run(self._step(replies))
        for _ in range(1, self._max_turns):
            going = [course for course in every if not course.environment.done]
            if not going:
                break
            found = self._engines.generate([course.so_far for course in going], 1, self._max_tokens, self._sampling)
            asyncio.run(self._step([(course, one.ids) for course, [one] in zip(going, found, strict=True)]))
        for course in every:
            course.environment.end("turn_budget")
        return [[course.episode() for course in group] for group in groups]

    async def _step(self, replies: Sequence[tuple[Course, list[int]]]) -> None:
        """Give every rollout its reply; the tools of all of them run at the same time."""
        await asyncio.gather(*(self._take(course, ids) for course, ids in replies))

    async def _take(self, course: Course, ids: list[int]) -> None:
        ids = ids[: max(1, self._max_tokens - len(course.ids))]
        is_whole = ids[-1] in self._encoder.end_tokens
        course.ids += ids
        course.is_policy += [True] * len(ids)
        environment = course.environment
        before = len(environment.messages)
        text = self._encoder.decode(ids)
        said, calls = split_calls(text.rstrip("\n"))
        reply = ChatReply(
            text=said if calls else text,
            tool_calls=tuple(ToolCall(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(calls)),
            usage=Usage(prompt_tokens=len(course.prompt.ids), completion_tokens=len(ids)),
            finish_reason="stop" if is_whole else "length",
        )
        await environment.step(reply)
        course.is_finished = is_whole
        if environment.done:
            if environment.end_reason == TOOL_OUTAGE:
                course.outage = environment.trajectory().outage or "tool_outage"
            return
        self._add_responses(course, environment.messages[before + 1 :])
        if len(course.ids) >= self._max_tokens:
            course.is_finished = False
            environment.end("token_budget")

    def _add_responses(self, course: Course, responses: Sequence[dict[str, Any]]) -> None:
        """What the tools answered, as the chat template writes it after the reply."""
        environment = course.environment
        texts = [part.get("text", "") for message in responses for part in parts_of(message["content"])]
        if any(token in text for text in texts for token in CONTROL):
            course.outage = FOUL
            environment.end(FOUL)
            return
        head: list[dict[str, Any]] = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        start = render_text(head)
        tail = render_text([*head, *responses], add_generation_prompt=True).removeprefix(start)
        pictures = [
            Image.open(io.BytesIO(environment.pictures[reference[0]])).convert("RGB")
            for message in responses
            for part in parts_of(message["content"])
            if (reference := image_reference(part)) is not None
        ]
        added = self._encoder.tail("\n" + tail, pictures)
        course.ids += list(added.ids)
        course.is_policy += [False] * len(added.ids)
        course.grids += added.grids
        if added.pixels is not None:
            course.pixels.append(added.pixels)


def environments(
    settings: TrainSettings, store: ImageStore, connections: Connections | None
) -> Callable[[Mapping[str, Any]], Environment]:
    """Makes the environment of a sample: its picture, the recipe's words and tools, the turns of the settings."""
    if settings.recipe not in RECIPES or not RECIPES[settings.recipe].tools:
        raise GeofixError(
            f"train.grpo.max_turns is {settings.grpo.max_turns}, but '{settings.recipe}' has no tools; set it to 0"
        )
    if connections is None:
        raise GeofixError("tools in training ask services: run it through `geofix train`")
    recipe = RECIPES[settings.recipe]
    tools = open_toolbox(connections, None)
    budgets = replace(recipe.budgets, turns=settings.grpo.max_turns)

    def make(row: Mapping[str, Any]) -> Environment:
        references = [
            reference
            for message in json.loads(row["messages_json"])
            for part in parts_of(message["content"])
            if (reference := image_reference(part)) is not None
        ]
        original = store.read(*references[0])
        picture = open_picture(original, settings.image_max_pixels, settings.image_min_pixels)
        return Environment(picture, tools, recipe, budgets, stop_at_outage=True)

    return make


def opening_prompt(environment: Environment, encoder: Encoder) -> Sample:
    """What the policy is shown first."""
    shown = [Image.open(io.BytesIO(jpeg)).convert("RGB") for jpeg in environment.pictures.values()]
    return encoder.prompt(environment.messages, environment.offered(), shown)
