"""GRPO with a recipe's reward: rollouts of the policy, advantages inside each group, clipped steps, a KL penalty."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch

from schemas.errors import GeofixError
from schemas.settings.train import GrpoSettings, TrainSettings
from tasks.reward.advantage import advantages, turn_advantages
from tasks.reward.outcome import figure_name
from tasks.train.checkpoints import Progress
from tasks.train.encoding import CACHE_BYTES, Ahead
from tasks.train.fast.layout import sent
from tasks.train.fast.packing import PackLimit
from tasks.train.fast.parts import HostMemory
from tasks.train.loop import Figures, Pending
from tasks.train.policy_loss import objective, token_weights
from tasks.train.ranks import ALONE, Ranks, gathered
from tasks.train.rollouts.source import Episode, Judged, Rollouts, Scorer
from tasks.train.schedule import rate_share
from tasks.train.supervised import BYTES_A_PIXEL, on_device
from tasks.train.token_samples import Completion, Group, Sample
from tasks.train.trainable import TrainableModel


class RolloutStats(NamedTuple):
    """Of one rollout, what the figures of a generation are made of."""

    group: int
    judged: Judged
    tokens: int
    is_finished: bool
    tool_calls: int
    tool_misses: int
    tool_errors: int
    tool_near: int = 0


@dataclass
class RolloutSample:
    """One rollout with everything its loss needs."""

    prompt: Sample
    episode: Episode
    judged: Judged
    group: int  # of its generation
    advantages: tuple[float, ...] = (0.0,)  # of each reply, or one for all of them
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None

    @property
    def completion(self) -> Completion:
        return self.episode.completion

    @property
    def tokens(self) -> int:
        return sum(self.completion.is_policy)

    @property
    def replies(self) -> list[int]:
        """Tokens of each reply: between two of them stands what tools answered."""
        return [sum(run) for is_policy, run in itertools.groupby(self.completion.is_policy) if is_policy]

    @property
    def stats(self) -> RolloutStats:
        episode = self.episode
        calls = episode.tool_calls, episode.tool_misses, episode.tool_errors
        near = sum(call.likeness < 1 for call in episode.calls)
        return RolloutStats(self.group, self.judged, self.tokens, episode.is_finished, *calls, near)


@dataclass(frozen=True)
class Draw:
    """Rollouts of a generation, with what each is worth."""

    prompts: list[Sample]
    groups: list[list[Episode]]
    judged: list[Judged]
    numbers: list[int]  # of the prompts, in the generation
    seconds: float  # of writing them


class Reference:
    """The phase's starting model: the policy without its adapters, or a copy that lies on the device or beside it."""

    def __init__(self, fast: TrainableModel, has_adapters: bool, is_offloaded: bool) -> None:
        self._device = fast.device
        self._kept: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        if has_adapters:
            self.fast = fast.alike(fast.model, use_adapters=False)
            return
        model = copy.deepcopy(fast.model).requires_grad_(False)
        self.fast = fast.alike(model)
        host = HostMemory()
        self._kept = [(p, host.keep(p)) for p in model.parameters()] if is_offloaded else []
        self._place("cpu")

    def log_probs(
        self, passes: Iterator[list[RolloutSample]], compute: Callable[[TrainableModel, list[RolloutSample]], None]
    ) -> None:
        self._place(self._device)
        for some in passes:
            compute(self.fast, some)
        self._place("cpu")

    def _place(self, device: torch.device | str) -> None:
        """Where an offloaded copy's weights are computed with; they never change, so none is brought back."""
        for parameter, kept in self._kept:
            parameter.data = kept.to(device, non_blocking=True)


class Grpo:
    """`prompts_per_generation` prompts are drawn at once and trained on in steps of `prompts_per_step`."""

    def __init__(
        self,
        fast: TrainableModel,
        encode: Callable[[int], Sample],
        rows: Sequence[Mapping[str, Any]],
        settings: TrainSettings,
        rollouts: Rollouts,
        scorer: Scorer,
        reference: Reference | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.fast, self.rows, self.settings, self.grpo = fast, rows, settings, settings.grpo
        self.rollouts, self.scorer, self.reference = rollouts, scorer, reference
        self.per_generation = min(self.grpo.prompts_per_generation, len(rows))  # a small set must still fill a batch
        self.per_step = max(n for n in range(1, self.grpo.prompts_per_step + 1) if not self.per_generation % n)
        self.steps_per_generation = self.per_generation // self.per_step
        generations = math.ceil(math.ceil(len(rows) / self.per_generation) * self.grpo.epochs)
        self.steps = self.grpo.max_steps or max(1, generations) * self.steps_per_generation
        # Rollouts are not kept in a checkpoint, so one is made only between two generations.
        self.save_every = math.ceil(settings.save_steps / self.steps_per_generation) * self.steps_per_generation
        self.packs = PackLimit(settings.pack_limit)
        self._ahead = Ahead(
            on_device(encode, fast), settings.loader_threads, CACHE_BYTES // (BYTES_A_PIXEL * settings.image_max_pixels)
        )
        self._drawn: list[RolloutSample] = []
        self._thread = ThreadPoolExecutor(1, "rollouts") if self.grpo.ahead else None
        self._next: tuple[int, Future[Draw]] | None = None  # a generation that is being drawn ahead
        self._generation = -1  # that was drawn; with several processes this one may have no part in it
        self._figures: Figures = {}
        self._rollout_seconds = 0.0  # of the last generation

    def rate(self, step: int) -> float:
        return self.grpo.learning_rate * rate_share(step, self.steps, 0.0, self.grpo.schedule)

    def prompts(self, generation: int, progress: Progress) -> list[int]:
        """The samples of a generation: the curriculum's phase I first, then those of both phases mixed, by bytes.

        Phase II "expands the training set" (SpotAgent 3.3.2) when phase I has converged, or has been seen.
        """
        first = [n for n, row in enumerate(self.rows) if row.get("phase") in (None, 1)]
        if len(first) == len(self.rows):
            progress.phase_end = None  # one phase alone
        elif progress.phase_end is None and (
            generation >= math.ceil(len(first) * self.grpo.epochs / self.per_generation)
            or has_converged(progress.validations, self.grpo)
        ):
            progress.phase_end = generation
        if progress.phase_end is None:
            chosen, start = first, generation * self.per_generation
        else:
            chosen = sorted(range(len(self.rows)), key=lambda n: (str(self.rows[n].get("sha256")), n))
            start = (generation - progress.phase_end) * self.per_generation
        return [chosen[(start + n) % len(chosen)] for n in range(self.per_generation)]

    def gradients(self, step: int, progress: Progress) -> Pending:
        generation, place = divmod(step, self.steps_per_generation)
        if generation != self._generation:
            began = time.monotonic()
            if self._next is not None and self._next[0] == generation:
                drawn = self._next[1].result()
                self._rollout_seconds = time.monotonic() - began  # that were waited for
            else:
                drawn = self._draw(self.prompts(generation, progress))
                self._rollout_seconds = drawn.seconds
            self._generate(drawn, step / max(1, self.steps - 1))
            self._generation = generation
            if self._thread is not None and self._may_draw_ahead(step):
                self._next = generation + 1, self._draw_ahead(self._thread, self.prompts(generation + 1, progress))
        wanted = range(place * self.per_step, (place + 1) * self.per_step)
        mine = [sample for sample in self._drawn if sample.group in wanted]
        weights = token_weights(
            [sample.tokens for sample in mine],
            [sample.judged.reward is not None for sample in mine],
            self.grpo.loss,
            self.grpo.max_completion_tokens,
            self.ranks.totals,
        )
        weight_of = {id(sample): weight for sample, weight in zip(mine, weights, strict=True)}
        totals = torch.zeros(6, device=self.fast.device)
        tokens = 0
        for some in self._even_passes(mine):
            packed = self._packed(some)
            tokens += sum(packed.lengths)
            new, entropy = self.fast.log_probs(packed, self.grpo.temperature)
            if not some:  # another process has one pass more: its weights are asked for here too
                new.sum().backward()
                continue
            old = new.detach() if some[0].old is None else self._joined([sample.old for sample in some])
            if self.grpo.ahead:
                old = torch.where(old.isnan(), new.detach(), old)  # where the engine did not tell
            reference = None if some[0].reference is None else self._joined([sample.reference for sample in some])
            advantages = self._spread(some, [sample.advantages for sample in some])
            shares = self._spread(some, [(weight_of[id(sample)],) for sample in some])
            objective_terms = objective(new, old, reference, advantages, shares, self.grpo.clip, self.grpo.kl)
            objective_terms.loss.backward()
            # The first step's weights are those that drew: what differs is how engine and trainer compute.
            apart = self._apart(some, new.detach()) if place == 0 else new.new_zeros(2)
            totals += torch.stack(
                [
                    objective_terms.loss.detach(),
                    objective_terms.kl,
                    objective_terms.clipped,
                    (entropy * shares).sum(),
                    *apart,
                ]
            )
        if self.ranks.count > 1:
            *sums, every_token = self.ranks.totals(*totals.tolist(), tokens)
            totals, tokens = torch.tensor(sums), round(every_token)
        loss, kl, clipped, entropy_mean, apart_sum, compared = totals.unbind()
        is_known = place == 0 and any(sample.episode.log_probs is not None for sample in mine)
        engine_gap = {"engine_gap": apart_sum / compared.clamp(min=1)} if is_known else {}
        return {
            **self._figures,
            **engine_gap,
            "rollout_seconds": self._rollout_seconds if place == 0 else 0.0,
            "loss": loss,
            "kl": kl,
            "clip_share": clipped,
            "entropy": entropy_mean,
            "tokens": tokens,
        }

    @torch.no_grad()
    def _draw(self, chosen: list[int], has_weights: Event | None = None) -> Draw:
        """Draw and judge the rollouts of these samples."""
        mine = self.ranks.part(chosen)
        prompts = next(self._ahead.batches([mine], ahead=0))
        rows = [self.rows[n] for n in mine]
        began = time.monotonic()
        if has_weights is None:
            self.fast.model.eval()
            with gathered(self.fast):
                groups = self.rollouts.draw(prompts, rows) if mine else []
        else:
            groups = self.rollouts.draw(prompts, rows, has_weights)
        seconds = time.monotonic() - began
        judged = self.scorer([(episode, row) for group, row in zip(groups, rows, strict=True) for episode in group])
        return Draw(prompts, groups, judged, self.ranks.part(range(len(chosen))), seconds)

    def _draw_ahead(self, thread: ThreadPoolExecutor, chosen: list[int]) -> Future[Draw]:
        """The same in another thread; returns as soon as the engine has the weights, so that a step may change them."""
        has_weights = Event()
        draw = thread.submit(self._draw, chosen, has_weights)
        draw.add_done_callback(lambda _: has_weights.set())  # an error is raised where its result is wanted
        has_weights.wait()
        return draw

    def _may_draw_ahead(self, step: int) -> bool:
        """Whether another generation follows, and no validation before it, which the engine would have to answer."""
        end, every = step + self.steps_per_generation, self.settings.validation_steps
        return end < self.steps and not (self.settings.validation_images and end // every > step // every)

    @torch.no_grad()
    def _generate(self, generation: Draw, done: float) -> None:
        """Weigh the rollouts of a generation; `done` is the share of the steps before it."""
        self.fast.model.eval()
        drawn: list[RolloutSample] = []
        judged = generation.judged
        if self.grpo.tau_km is not None:
            judged = [by_distance(one, tau_at(self.grpo.tau_km, done)) for one in judged]
        worth = iter(judged)
        for number, prompt, group in zip(generation.numbers, generation.prompts, generation.groups, strict=True):
            drawn += [RolloutSample(prompt, episode, next(worth), number) for episode in group]
        of_groups = [sample.group for sample in drawn], self.grpo.advantage, self.grpo.advantage_k
        if self.grpo.credit == "turn":
            by_reply = turn_advantages([sample.judged.earned(len(sample.replies)) for sample in drawn], *of_groups)
        else:
            rewards = [math.nan if sample.judged.reward is None else sample.judged.reward for sample in drawn]
            by_reply = [(float(worth),) for worth in advantages(rewards, *of_groups).values]
        for sample, worths in zip(drawn, by_reply, strict=True):
            sample.advantages = worths
        self._drawn = drawn
        stats = self.ranks.of_all([sample.stats for sample in drawn])
        refuse_outage(stats)
        self._figures = figures_of(stats)

        def keep(name: str) -> Callable[[TrainableModel, list[RolloutSample]], None]:
            def compute(fast: TrainableModel, some: list[RolloutSample]) -> None:
                log_probs, _ = fast.log_probs(self._packed(some), self.grpo.temperature)
                parts = log_probs.split([sample.tokens for sample in some])
                for sample, part in zip(some, parts, strict=True):
                    setattr(sample, name, part)

            return compute

        if self.grpo.ahead:
            for sample in drawn:  # by the weights that drew it
                told = sample.episode.log_probs or [math.nan] * sample.tokens
                sample.old = torch.tensor(told, dtype=torch.float32, device=self.fast.device)
        elif self.steps_per_generation > 1:
            for some in self._even_passes(drawn):
                keep("old")(self.fast, some)
        if self.reference is not None:
            self.reference.log_probs(self._even_passes(drawn), keep("reference"))
        self.fast.model.train()

    def _even_passes(self, drawn: Sequence[RolloutSample]) -> Iterator[list[RolloutSample]]:
        """The passes, and as many empty ones as the process with the most has more."""
        passes = list(self._passes(drawn))
        missing = self.ranks.most(len(passes)) - len(passes)  # asked before the first pass: all processes are here then
        yield from passes
        for _ in range(missing):
            yield []

    def _packed(self, some: Sequence[RolloutSample]) -> Any:
        groups = groups_of(some)
        has_picture = any(
            group.prompt.grids or any(completion.grids for completion in group.completions) for group in groups
        )
        if self.ranks.count > 1 and not has_picture:
            groups.append(Group(self.fast.blank_sample(), ()))
        return self.fast.pack_groups(groups)

    def _passes(self, drawn: Sequence[RolloutSample]) -> Iterator[list[RolloutSample]]:
        """Rollouts of each forward pass, in order: a group's rollouts together as far as they fit."""
        some: list[RolloutSample] = []
        tokens = 0
        for sample in drawn:
            is_new = not some or some[-1].group != sample.group
            needed = len(sample.completion.ids) + (len(sample.prompt.ids) if is_new else 0)
            if some and (len(some) >= self.grpo.micro_batch or tokens + needed > self.packs.tokens):
                self.packs.note(tokens, len(some))
                yield some
                some, tokens = [], 0
                needed = len(sample.completion.ids) + len(sample.prompt.ids)
            some.append(sample)
            tokens += needed
        if some:
            self.packs.note(tokens, len(some))
            yield some

    def _apart(self, some: Sequence[RolloutSample], new: torch.Tensor) -> torch.Tensor:
        """The engine's log-probabilities from the trainer's: the sum of distances, and how many there are."""
        drawn = [math.nan] * len(new)
        at = 0
        for sample in some:
            if sample.episode.log_probs is not None:
                drawn[at : at + sample.tokens] = sample.episode.log_probs
            at += sample.tokens
        distances = (new - sent(torch.tensor(drawn, dtype=torch.float32), new.device)).abs()
        return torch.stack([distances.nansum(), (~distances.isnan()).sum().float()])

    def _joined(self, parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
        return torch.cat([part for part in parts if part is not None])

    def _spread(self, some: Sequence[RolloutSample], values: Sequence[Sequence[float]]) -> torch.Tensor:
        """For each token the value of its rollout, or of its reply where a rollout has several."""
        runs = [one.replies if len(own) > 1 else [one.tokens] for one, own in zip(some, values, strict=True)]
        counts = torch.tensor([count for run in runs for count in run])
        whole = torch.tensor([value for own in values for value in own], dtype=torch.float32)
        return sent(torch.repeat_interleave(whole, counts), self.fast.device)


def groups_of(some: Sequence[RolloutSample]) -> list[Group]:
    """Rollouts in order, those of one prompt together."""
    groups: list[Group] = []
    last = -1
    for sample in some:
        if sample.group == last:
            groups[-1] = Group(sample.prompt, (*groups[-1].completions, sample.completion))
        else:
            groups.append(Group(sample.prompt, (sample.completion,)))
        last = sample.group
    return groups


def tau_at(tau_km: tuple[float, float], done: float) -> float:
    """tau after this share of the steps: it falls by the same factor with each."""
    first, last = tau_km
    return float(first * (last / first) ** done)


def by_distance(judged: Judged, tau_km: float) -> Judged:
    """The judgement with exp(-d / tau) as its reward, 0 for an answer without a distance."""
    if judged.reward is None:
        return judged
    reward = 0.0 if judged.error_km is None else math.exp(-judged.error_km / tau_km)
    return replace(judged, reward=reward, parts={"tau_km": tau_km}, turns=())


def has_converged(validations: Sequence[dict[str, float]], grpo: GrpoSettings) -> bool:
    """Whether the validation reward has not risen by `least_rise` over the last `patience` validations."""
    if grpo.patience is None or len(validations) <= grpo.patience:
        return False
    rewards = [validation["reward"] for validation in validations if "reward" in validation]
    if len(rewards) <= grpo.patience:
        return False
    before = max(rewards[: -grpo.patience])
    return max(rewards[-grpo.patience :]) < before + grpo.least_rise


def refuse_outage(drawn: Sequence[RolloutStats]) -> None:
    """Stop where tools or services failed every rollout: a step would have nothing to learn from."""
    if drawn and all(stats.judged.reward is None for stats in drawn):
        reasons = ", ".join(sorted({stats.judged.reason or "outage" for stats in drawn}))
        raise GeofixError(
            f"a tool or service failed all {len(drawn)} rollouts of this step ({reasons}): training stopped, its last "
            "checkpoint stays; run again when the service answers"
        )


def figures_of(drawn: Sequence[RolloutStats]) -> Figures:
    """What the rollouts of a generation look like."""
    used = [stats for stats in drawn if stats.judged.reward is not None]
    rewards = np.array([stats.judged.reward for stats in used], dtype=np.float64)
    by_group: dict[int, list[float]] = {}
    for stats in used:
        by_group.setdefault(stats.group, []).append(float(stats.judged.reward or 0.0))
    lengths = [stats.tokens for stats in drawn]
    figures: Figures = {
        "reward": float(rewards.mean()) if len(rewards) else 0.0,
        "reward_std": float(np.mean([np.std(values) for values in by_group.values()])) if by_group else 0.0,
        "dead_groups": float(np.mean([len(set(values)) == 1 for values in by_group.values()])) if by_group else 1.0,
        "completion_tokens": float(np.mean(lengths)),
        "cut_share": float(np.mean([not stats.is_finished for stats in drawn])),
        "parse_failures": float(np.mean([stats.judged.reason is not None for stats in used])) if used else 0.0,
        "excluded": float(len(drawn) - len(used)),
        "tool_calls": float(np.mean([stats.tool_calls for stats in drawn])),
    }
    if calls := sum(stats.tool_calls for stats in drawn):
        figures["tool_misses"] = sum(stats.tool_misses for stats in drawn) / calls  # with recorded tools
        figures["tool_near"] = sum(stats.tool_near for stats in drawn) / calls  # answered by the nearest question
        figures["tool_error_rate"] = sum(stats.tool_errors for stats in drawn) / calls  # GeoVista, figure 7
    for name in sorted({name for stats in used for name in stats.judged.parts}):
        figures[figure_name(name)] = float(np.mean([stats.judged.parts.get(name, 0.0) for stats in used]))
    return figures
