"""Embedded rollout engine: G completions of each prompt, the prompt and its pictures computed once for the group.

Groups are decoded side by side in fixed buffers; one decoding step is a CUDA graph. A group whose rollouts have all
ended hands its place to the next prompt. Weights are read where they are: a training step in between is seen at once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F

from schemas.errors import GeofixError
from tasks.train.fast.model import FastModel, Weights, text_after, text_before
from tasks.train.fast.packing import pack
from tasks.train.rollouts.cache import GroupCache
from tasks.train.rollouts.sampling import Sampling, chances, draw
from tasks.train.token_samples import IGNORED, Sample

CHECK = 16  # decoding steps between two looks at which rollouts have ended
PREFILL = 6144  # tokens of prompts computed together: two of 2 megapixels, more of small ones


# Functions of their own: torch.compile keeps graphs by function, and the few rows of decoding need theirs.
def _before(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Weights, epsilon: float, head_dim: int
) -> Weights:
    return text_before(x, cos, sin, weights, epsilon, head_dim)


def _after(x: torch.Tensor, attended: torch.Tensor, weights: Weights, epsilon: float) -> torch.Tensor:
    return text_after(x, attended, weights, epsilon)


def together(arrived: list[tuple[int, Sample]]) -> Iterator[list[tuple[int, Sample]]]:
    """Prompts in parts that are computed at once: as many as fit, at least one."""
    some: list[tuple[int, Sample]] = []
    tokens = 0
    for place, prompt in arrived:
        if some and tokens + len(prompt.ids) > PREFILL:
            yield some
            some, tokens = [], 0
        some.append((place, prompt))
        tokens += len(prompt.ids)
    if some:
        yield some


@dataclass(frozen=True)
class Rollout:
    """One completion: its tokens, the end token included if it was reached."""

    ids: list[int]
    log_probs: list[float]  # of the tokens; nan from an engine that does not keep them
    is_finished: bool


class RolloutEngine:
    """`generate(prompts)` yields (index of the prompt, its G rollouts) as groups end."""

    def __init__(
        self,
        model: FastModel,
        group_size: int,
        groups: int,
        prompt_tokens: int,
        new_tokens: int,
        end_tokens: Iterable[int],
        sampling: Sampling | None = None,
        use_graph: bool | None = None,
    ) -> None:
        text = model.text.config
        self.model, self.sampling = model, sampling or Sampling()
        self.groups, self.size, self.prompt_tokens, self.new_tokens = groups, group_size, prompt_tokens, new_tokens
        self.device = model.device
        # Which experts a token goes to is decided on the device: their work cannot be recorded.
        self.use_graph = self.device.type == "cuda" and not model.has_experts if use_graph is None else use_graph
        self.cache = GroupCache.make(
            len(model.text.layers), text.num_key_value_heads, model.head_dim, groups, group_size, prompt_tokens,
            new_tokens, model.text.embed_tokens.weight.detach(),
        )  # fmt: skip
        count = groups * group_size
        self.ends = torch.tensor(sorted(end_tokens), device=self.device)
        config = model.model.config
        self.banned = torch.tensor([config.image_token_id, config.video_token_id], device=self.device)
        self.token = torch.zeros(count, dtype=torch.long, device=self.device)
        self.position = torch.zeros(count, dtype=torch.long, device=self.device)
        self.is_over = torch.ones(count, dtype=torch.bool, device=self.device)
        self.ids = torch.zeros(count, new_tokens, dtype=torch.long, device=self.device)
        self.log_probs = torch.zeros(count, new_tokens, device=self.device)
        self.written = torch.zeros(count, dtype=torch.long, device=self.device)
        is_drawn = self.sampling.seeded and self.sampling.temperature > 0
        self.chances = torch.zeros(count, new_tokens, device=self.device) if is_drawn else None
        self.graph: Any = None

    def generate(self, prompts: Iterable[Sample]) -> Iterator[tuple[int, list[Rollout]]]:
        """Rollouts of each prompt; only `ids`, `pixels` and `grids` of a prompt are read."""
        waiting = iter(prompts)
        return self.serve(lambda waits: next(waiting, None))

    @torch.no_grad()
    def serve(self, take: Callable[[bool], Sample | None]) -> Iterator[tuple[int, list[Rollout]]]:
        """Rollouts of prompts as they come, numbered in the order they were taken.

        `take(waits)` gives the next prompt. None means that there is none at the moment; with `waits`, as nothing is
        being decoded, that there will be none.
        """
        if self.use_graph and self.graph is None:
            self._capture()
        places: dict[int, int] = {}  # place -> number of the prompt there
        count = 0
        while True:
            free = [place for place in range(self.groups) if place not in places]
            arrived: list[tuple[int, Sample]] = []
            while len(arrived) < len(free):
                prompt = take(not places and not arrived)
                if prompt is None:
                    break
                arrived.append((free[len(arrived)], prompt))
            for some in together(arrived):
                self._fill([place for place, _ in some], [prompt for _, prompt in some])
            for place, _ in arrived:
                places[place] = count
                count += 1
            if not places:
                return
            for _ in range(CHECK):
                if self.graph is None:
                    self._step()
                else:
                    self.graph.replay()
            over = self.is_over.view(self.groups, self.size).all(1).tolist()
            for place in [place for place in places if over[place]]:
                yield places.pop(place), self._collect(place)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        y, weight = self.model.norm(x), self.model.model.lm_head.weight
        if y.is_cuda and y.dtype != torch.float32:
            return torch.mm(y, weight.T, out_dtype=torch.float32)  # bf16 logits would cost two digits
        return F.linear(y, weight)

    def _fill(self, places: list[int], prompts: list[Sample]) -> None:
        """Compute the prompts, keep their keys and values, and draw the first token of every rollout."""
        cache, size = self.cache, self.size
        for prompt in prompts:
            if len(prompt.ids) > cache.prompt:
                raise GeofixError(f"a prompt has {len(prompt.ids)} tokens; prompt_tokens allows {cache.prompt}")
        blind = [Sample(prompt.ids, [IGNORED] * len(prompt.ids), prompt.pixels, prompt.grids) for prompt in prompts]
        batch = pack(blind, self.model.image_token, self.model.merge).to(self.device)
        ends = list(accumulate(batch.lengths))
        spans = [(place * cache.prompt, end - n, n) for place, end, n in zip(places, ends, batch.lengths, strict=True)]

        def keep(layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
            for to, start, length in spans:
                cache.prefix[0, layer, to : to + length] = k[start : start + length]
                cache.prefix[1, layer, to : to + length] = v[start : start + length]

        x = self.model.hidden(batch, keep)[torch.tensor(ends, device=self.device) - 1]
        chance = None
        if self.chances is not None:
            for place, prompt in zip(places, prompts, strict=True):
                drawn = chances(prompt.seed, size * self.new_tokens).view(size, self.new_tokens)
                self.chances[place * size : (place + 1) * size] = drawn.to(self.device)
            chance = torch.cat([self.chances[place * size : (place + 1) * size, 0] for place in places])
        tokens, log_probs = draw(self.logits(x).repeat_interleave(size, 0), self.sampling, self.banned, chance)
        for n, place in enumerate(places):
            rows = slice(place * size, (place + 1) * size)
            first = tokens[n * size : (n + 1) * size]
            cache.prefix_used[place] = batch.lengths[n]
            cache.suffix_used[rows] = 0
            start = spans[n][1]
            self.position[rows] = batch.positions[:, start : start + batch.lengths[n]].max() + 1
            self.token[rows] = first
            self.ids[rows, 0] = first
            self.log_probs[rows, 0] = log_probs[n * size : (n + 1) * size]
            self.written[rows] = 1
            self.is_over[rows] = (first[:, None] == self.ends).any(1) | (self.new_tokens == 1)

    def _step(self) -> None:
        """One token for every rollout, in place; what has ended stays as it is."""
        model, cache = self.model, self.cache
        x = model.text.embed_tokens(self.token)
        if model.wide:
            x = x.float()
        cos, sin = model.rotary(self.position.expand(3, -1))
        place, used = cache.now()
        for number, layer in enumerate(model.text.layers):
            q, k, v = model.before_attention(layer, x, cos, sin, _before)
            cache.append(number, k, v, place)
            attended = cache.attend(number, q, used).flatten(1)
            x = model.after_attention(layer, x, attended, _after)
        at = self.written.clamp(max=self.new_tokens - 1)[:, None]
        chance = None if self.chances is None else self.chances.gather(1, at)[:, 0]
        tokens, log_probs = draw(self.logits(x), self.sampling, self.banned, chance)
        goes_on = ~self.is_over
        self.ids.scatter_(1, at, torch.where(goes_on, tokens, self.ids.gather(1, at)[:, 0])[:, None])
        self.log_probs.scatter_(1, at, torch.where(goes_on, log_probs, self.log_probs.gather(1, at)[:, 0])[:, None])
        self.token.copy_(torch.where(goes_on, tokens, self.token))
        for counter in (self.written, self.position, cache.suffix_used):
            counter.add_(goes_on)
        self.is_over |= (tokens[:, None] == self.ends).any(1) | (self.written >= self.new_tokens)

    def _capture(self) -> None:
        """Record the decoding step. Every rollout is over at first, so the steps run for it change nothing."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may prepare what tools returned meanwhile; only this one is being recorded.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self._step()

    def _collect(self, place: int) -> list[Rollout]:
        rows = range(place * self.size, (place + 1) * self.size)
        lengths = self.written.tolist()
        ids, log_probs = self.ids[rows.start : rows.stop].tolist(), self.log_probs[rows.start : rows.stop].tolist()
        ends = set(self.ends.tolist())
        return [
            Rollout(ids[n][: lengths[row]], log_probs[n][: lengths[row]], ids[n][lengths[row] - 1] in ends)
            for n, row in enumerate(rows)
        ]
