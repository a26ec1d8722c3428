"""The training programs against plain transformers, torch's AdamW and formulas written out: 1e-5."""

import copy
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import Qwen2_5_VLForConditionalGeneration, get_scheduler

from schemas.settings.train import GrpoSettings, LoraSettings, TrainSettings, TunerSettings
from tasks.reward.advantage import blocks_of_k, every_set_of_k
from tasks.train.checkpoints import Progress
from tasks.train.fast.adapters import add_adapters, merged_state
from tasks.train.fast.families import fast_model
from tasks.train.fast.flops import peak_flops, step_flops
from tasks.train.fast.grouped import pack_groups
from tasks.train.grpo import Grpo, Reference, RolloutStats, by_distance, figures_of, has_converged, tau_at
from tasks.train.loop import Loop, prepare_model
from tasks.train.rollouts.source import Episode, Judged
from tasks.train.schedule import rate_share
from tasks.train.supervised import Supervised
from tasks.train.token_samples import Completion, Group, Sample
from tasks.train.validation import pass_figures

Plain = Callable[[Sample], dict[str, torch.Tensor]]
Build = Callable[..., Qwen2_5_VLForConditionalGeneration]
Make = Callable[..., Sample]
GRIDS: list[tuple[tuple[int, int, int], ...]] = [((1, 6, 10),), (), ((1, 4, 4), (1, 10, 6)), ((1, 8, 8),), ((1, 4, 6),)]


@pytest.mark.parametrize("kept", ["none", "all"])
def test_supervised_steps_are_those_of_transformers_and_torchs_adamw(
    kept: Any, build_tiny: Build, make_sample: Make, plain: Plain, tmp_path: Path
) -> None:
    samples = [make_sample(n, grids, 5 + n) for n, grids in enumerate(GRIDS)]
    tuner = TunerSettings(epochs=2, batch_size=3, micro_batch=2, learning_rate=3e-3, warmup_share=0.3, weight_decay=0.1)
    settings = TrainSettings(sft=tuner, loader_threads=2, pack_tokens=64, gradient_checkpointing=kept)
    ours, theirs = build_tiny(), build_tiny()
    fast = fast_model(ours, checkpoint_vision=kept == "all", checkpoint_text=kept == "all")
    program = Supervised(fast, samples.__getitem__, len(samples), settings, tuner)
    assert program.steps == 4
    progress = Loop(ours, program, settings, tmp_path, weight_decay=0.1, peak_flops=1e12).run()
    for step, entry in enumerate(progress.history):
        chosen = [samples[n] for n in program.batch(step)]
        needed = step_flops(
            ours.config,
            [len(one.ids) for one in chosen],
            [grid for one in chosen for grid in one.grids],
            sum(label != -100 for one in chosen for label in one.labels[1:]),
        )
        assert entry["mfu"] == pytest.approx(needed / entry["seconds"] / 1e12) and "flops" not in entry

    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}], 3e-3, weight_decay=0.1
    )
    scheduler: Any = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=4)
    losses = []
    for step in range(4):
        chosen = [samples[n] for n in program.batch(step)]
        trained = sum(label != -100 for one in chosen for label in one.labels[1:])
        total = torch.zeros(())
        for one in chosen:
            logits = theirs(**plain(one)).logits[0, :-1].float()
            labels = torch.tensor(one.labels[1:])
            total = total + torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        loss = total / trained
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert [one["loss"] for one in progress.history] == pytest.approx(losses, abs=1e-5)
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4, msg=name)


class Full:
    """A model's function that runs out of memory at some of its calls."""

    def __init__(self, function: Callable[..., Any], at: set[int]) -> None:
        self.function, self.at, self.calls = function, at, 0
        self.tokens: list[int] = []

    def __call__(self, batch: Any, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls in self.at:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.tokens.append(sum(batch.lengths))
        return self.function(batch, *arguments)


def test_a_step_that_does_not_fit_is_taken_in_packs_of_half_the_length(
    build_tiny: Build, make_sample: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [make_sample(n, grids, 5 + n) for n, grids in enumerate(GRIDS)]
    tuner = TunerSettings(max_steps=3, batch_size=4, micro_batch=4, learning_rate=3e-3)
    settings = TrainSettings(sft=tuner, loader_threads=2)

    def run(name: str, at: set[int]) -> tuple[Any, list[float], Full]:
        model = build_tiny()
        fast = fast_model(model)
        full = Full(fast.loss, at)
        fast.loss = full  # type: ignore[method-assign, assignment]
        program = Supervised(fast, samples.__getitem__, len(samples), settings, tuner)
        progress = Loop(model, program, settings, tmp_path / name).run()
        return model, [one["loss"] for one in progress.history], full

    whole, losses, one_pass = run("whole", set())
    assert one_pass.calls == 3, "four samples fit into one pass"
    split, halved, passes = run("split", {3})
    assert halved == pytest.approx(losses, abs=1e-6)
    assert max(passes.tokens[2:]) < one_pass.tokens[2] and passes.calls > 4
    for (name, one), other in zip(whole.named_parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4, msg=name)
    [line] = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert line.startswith("step 3 did not fit on the GPU: its samples are computed again in packs of at most ")
    with pytest.raises(torch.OutOfMemoryError):
        run("twice", {3, 4})
    with pytest.raises(torch.OutOfMemoryError):  # nothing to halve
        tuner = TunerSettings(max_steps=3, batch_size=1)
        run("single", {2})


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_rates_are_those_of_transformers(schedule: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    scheduler: Any = get_scheduler(name, optimizer, num_warmup_steps=3, num_training_steps=20)
    for step in range(20):
        assert rate_share(step, 20, 0.15, schedule) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_every_epoch_sees_every_sample_once_in_another_order(build_tiny: Build) -> None:
    tuner = TunerSettings(epochs=2, batch_size=4)
    program = Supervised(fast_model(build_tiny()), lambda n: Sample([], []), 10, TrainSettings(loader_threads=0), tuner)
    epochs = [[n for step in range(3 * e, 3 * e + 3) for n in program.batch(step)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]


class Fixed:
    """Rollouts that were written down: G for each prompt, the same in every generation."""

    def __init__(self, episodes: list[list[Episode]]) -> None:
        self.episodes = episodes

    def draw(self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]]) -> list[list[Episode]]:
        return [self.episodes[row["number"]] for row in rows]


def fixed_episodes(prompts: int, size: int) -> list[list[Episode]]:
    generator = torch.Generator().manual_seed(5)
    found = []
    for number in range(prompts):
        group = []
        for place in range(size):
            ids = torch.randint(10, 96, (3 + (number + place) % 4,), generator=generator).tolist()
            mask = [True] * len(ids)
            if place == 1:  # as with a tool's answer in the middle, picture included
                ids = [*ids[:2], 7, *[5] * 4, 8, *ids[2:]]
                mask = [True, True, *[False] * 6, *[True] * (len(ids) - 8)]
                pixels = torch.randn(16, 1176, generator=generator)
                group.append(Episode(Completion(ids, mask, pixels, ((1, 4, 4),)), True, f"{number} {place}"))
            else:
                group.append(Episode(Completion(ids, mask), True, f"{number} {place}"))
        found.append(group)
    return found


def test_calls_that_fail_are_a_share_of_all_calls_of_the_step() -> None:
    drawn = [RolloutStats(0, Judged(0.5), 10, True, calls, 0, errors) for calls, errors in ((4, 1), (0, 0), (4, 3))]
    assert figures_of(drawn)["tool_error_rate"] == 0.5
    assert "tool_error_rate" not in figures_of([RolloutStats(0, Judged(0.5), 10, True, 0, 0, 0)]), "no call, no rate"


def test_pass_at_k_of_sampled_answers() -> None:
    near, far, unread = Judged(1.0, error_km=1.0), Judged(0.0, error_km=900.0), Judged(0.0, "no_answer")
    lost = Judged(None, "outage")
    found = pass_figures([[near, far, far, unread], [far, far, far, far]])
    assert {k: found[f"pass@{k}/acc@2km"] for k in (1, 2, 4)} == {1: 0.125, 2: 0.25, 4: 0.5}
    assert found["pass@4/acc@0.5km"] == 0 and "pass@8/acc@2km" not in found
    excluded = pass_figures([[near, lost, lost, lost]])
    assert excluded["pass@1/acc@2km"] == 1 and "pass@2/acc@2km" not in excluded, "an outage is no wrong answer"


REWARDS = [[1.0, None, 0.25, 0.0], [0.5, 0.5, 0.5, 0.5], [0.75, 0.2, 0.0, 1.0], [0.0, 0.1, 0.9, 0.3]]


def fixed_scorer(pairs: Sequence[tuple[Episode, Mapping[str, Any]]]) -> list[Judged]:
    return [Judged(REWARDS[int(one.answer.split()[0])][int(one.answer.split()[1])]) for one, _ in pairs]


def log_probs_by(of: Any, plain: Plain, prompt: Sample, episode: Episode, temperature: float = 1.0) -> torch.Tensor:
    one = episode.completion
    pixels = [part for part in (prompt.pixels, one.pixels) if part is not None]
    whole = Sample([*prompt.ids, *one.ids], [], torch.cat(pixels) if pixels else None, (*prompt.grids, *one.grids))
    logits = of(**plain(whole)).logits[0, len(prompt.ids) - 1 : -1] / temperature
    found = logits.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
    return found[torch.tensor(one.is_policy)]


class Beside:
    """An engine with weights of its own: it goes on writing until the step that trains meanwhile has begun."""

    def __init__(self, model: Any, plain: Plain, episodes: list[list[Episode]]) -> None:
        self.model, self.plain, self.episodes = model, plain, episodes
        self.weights: list[Any] = []  # that each generation was written with
        self.in_training, self.ahead = threading.Event(), 0

    def draw(
        self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]], has_weights: threading.Event | None = None
    ) -> list[list[Episode]]:
        own = copy.deepcopy(self.model)
        self.weights.append(own)
        if has_weights is not None:
            has_weights.set()
            assert self.in_training.wait(20), "the trainer waits for the engine"
            self.ahead += 1
        return [
            [
                replace(one, log_probs=log_probs_by(own, self.plain, prompt, one).tolist())
                for one in self.episodes[row["number"]]
            ]
            for prompt, row in zip(prompts, rows, strict=True)
        ]


def test_grpo_ahead_is_the_formula_with_weights_one_generation_old(
    build_tiny: Build, make_sample: Make, plain: Plain
) -> None:
    grpo = GrpoSettings(
        group_size=4, prompts_per_generation=2, prompts_per_step=2, micro_batch=16, kl=0.0, clip=0.02,
        max_completion_tokens=16, max_steps=5, ahead=True,
    )  # fmt: skip
    settings = TrainSettings(grpo=grpo, loader_threads=0, validation_steps=4)
    prompts = [make_sample(20 + n, grids) for n, grids in enumerate(GRIDS[:4])]
    prompts = [Sample(one.ids, [-100] * len(one.ids), one.pixels, one.grids) for one in prompts]
    model = build_tiny(3)
    engine = Beside(model, plain, fixed_episodes(4, 4))
    rows = [{"number": n, "phase": None} for n in range(4)]
    program = Grpo(fast_model(model), prompts.__getitem__, rows, settings, engine, fixed_scorer, None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        engine.in_training.clear()
        compute = program.fast.log_probs

        def begun(*arguments: Any, compute: Any = compute) -> Any:
            engine.in_training.set()
            return compute(*arguments)

        program.fast.log_probs = begun  # type: ignore[method-assign]
        found = {name: float(value) for name, value in program.gradients(step, Progress()).items()}
        terms = []
        for number in (0, 1) if step % 2 == 0 else (2, 3):
            used = [value for value in REWARDS[number] if value is not None]
            for place, reward in enumerate(REWARDS[number]):
                if reward is None:
                    continue
                advantage = (reward - np.mean(used)) / (np.std(used, ddof=1) + 1e-6)
                pair = plain, prompts[number], engine.episodes[number][place]
                with torch.no_grad():
                    ratio = torch.exp(log_probs_by(model, *pair) - log_probs_by(engine.weights[step], *pair))
                terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.02) * advantage).mean())
        assert found["loss"] == pytest.approx(float(torch.stack(terms).mean()), abs=1e-5)
        assert (found["clip_share"] > 0) == (step in (1, 2, 3)), "others are by the weights that are trained"
        optimizer.step()
        optimizer.zero_grad()
    # Nothing is written ahead of a validation, which asks the engine itself, nor after the last step.
    assert engine.ahead == 3 and len(engine.weights) == 5
    with pytest.raises(ValidationError, match="ahead needs engine vllm, and temperature 1"):
        GrpoSettings(ahead=True, temperature=0.7)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("micro_batch", [3, 16])
def test_grpo_is_the_formula(loss: Any, micro_batch: int, build_tiny: Build, make_sample: Make, plain: Plain) -> None:
    """Two steps a generation: the second is off-policy, so that ratios and their bounds count."""
    grpo = GrpoSettings(
        group_size=4, prompts_per_generation=4, prompts_per_step=2, micro_batch=micro_batch, kl=0.1, clip=0.02,
        temperature=0.7, loss=loss, max_completion_tokens=16, max_steps=2, learning_rate=5e-3,
    )  # fmt: skip
    settings = TrainSettings(grpo=grpo, loader_threads=0)
    prompts = [make_sample(20 + n, grids) for n, grids in enumerate(GRIDS[:4])]
    prompts = [Sample(one.ids, [-100] * len(one.ids), one.pixels, one.grids) for one in prompts]
    episodes = fixed_episodes(4, 4)
    model, start = build_tiny(3), build_tiny(3)
    fast = fast_model(model)
    rows = [{"number": n, "phase": None} for n in range(4)]
    program = Grpo(
        fast, prompts.__getitem__, rows, settings, Fixed(episodes), fixed_scorer, Reference(fast, False, False)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def log_probs(of: Any, prompt: Sample, episode: Episode) -> torch.Tensor:
        return log_probs_by(of, plain, prompt, episode, temperature=0.7)

    for prompt, group in zip(prompts, episodes, strict=True):  # as an engine that computes a little differently
        for place, one in enumerate(group):
            with torch.no_grad():
                apart = (log_probs(start, prompt, one) + (0.25 if place % 2 else -0.15)).tolist()
            group[place] = replace(one, log_probs=apart if place != 2 else [math.nan] * len(apart))

    for step in range(2):
        numbers = (0, 1) if step == 0 else (2, 3)
        found = {name: float(value) for name, value in program.gradients(step, Progress()).items()}
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        terms, kls, counts = [], [], []
        for number in numbers:
            used = [value for value in REWARDS[number] if value is not None]
            for place, reward in enumerate(REWARDS[number]):
                if reward is None:
                    continue
                advantage = (reward - np.mean(used)) / (np.std(used, ddof=1) + 1e-6)
                pair = (prompts[number], episodes[number][place])
                new = log_probs(model, *pair)
                with torch.no_grad():
                    # the policy that drew them is the one the generation began with
                    old, reference = log_probs(start, *pair), log_probs(start, *pair)
                ratio = torch.exp(new - old)
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.02) * advantage)
                kl = torch.exp(reference - new) - (reference - new) - 1
                terms.append(-gain + 0.1 * kl)
                kls.append(kl.detach())
                counts.append(len(new))
        weights = {
            "grpo": [1 / (len(terms) * count) for count in counts],
            "dapo": [1 / sum(counts)] * len(terms),
            "dr_grpo": [1 / (len(terms) * 16)] * len(terms),
        }[loss]
        expected = sum((w * term.sum() for w, term in zip(weights, terms, strict=True)), torch.zeros(()))
        assert found["loss"] == pytest.approx(expected.item(), abs=1e-5)
        assert found["kl"] == pytest.approx(
            sum(w * k.sum().item() for w, k in zip(weights, kls, strict=True)), abs=1e-5
        )
        expected.backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=1e-3, msg=name)
        assert found["excluded"] == 1 and found["dead_groups"] == pytest.approx(0.25)
        if step == 0:
            given = [one.log_probs for number in numbers for one in (episodes[number][n] for n in (0, 1, 3))]
            apart = [0.25 if n % 3 else 0.15 for n, values in enumerate(given) for _ in values]
            assert found["engine_gap"] == pytest.approx(np.mean(apart), abs=1e-4), "without the unknown ones"
        else:
            assert "engine_gap" not in found, "the weights are no longer those that drew"
        optimizer.step()
        model.zero_grad()
    assert found["clip_share"] > 0, "the second step is off-policy"


def test_grpo_that_does_not_fit_goes_on_with_the_same_rollouts(
    build_tiny: Build, make_sample: Make, tmp_path: Path
) -> None:
    grpo = GrpoSettings(
        group_size=4, prompts_per_generation=4, prompts_per_step=2, micro_batch=8, kl=0.1, max_steps=2,
        learning_rate=1e-3, max_completion_tokens=16,
    )  # fmt: skip
    settings = TrainSettings(grpo=grpo, loader_threads=0)
    prompts = [make_sample(20 + n, grids) for n, grids in enumerate(GRIDS[:4])]
    rows = [{"number": n, "phase": None} for n in range(4)]
    found = {}
    for at in (set(), {1}, {3}):  # while old log-probabilities are computed, and in the first step
        model = build_tiny(3)
        fast = fast_model(model)
        drawn, reference = Fixed(fixed_episodes(4, 4)), Reference(fast, False, is_offloaded=bool(at))
        full = Full(fast.log_probs, at)
        fast.log_probs = full  # type: ignore[method-assign, assignment]
        program = Grpo(fast, prompts.__getitem__, rows, settings, drawn, fixed_scorer, reference)
        progress = Loop(model, program, settings, tmp_path / str(at)).run()
        found[tuple(at)] = ([one["loss"] for one in progress.history], list(model.parameters()), full.calls)
    losses, weights, calls = found[()]
    for at in ((1,), (3,)):
        assert found[at][0] == pytest.approx(losses, rel=1e-3, abs=1e-6) and found[at][2] > calls + 1
        # Not weight by weight: AdamW's first step goes by a gradient's sign, which rounding decides near 0.
        apart, moved = (
            sum(float((one - other).square().sum()) for one, other in zip(weights, others, strict=True))
            for others in (found[at][1], build_tiny(3).parameters())
        )
        assert apart < (0.005**2) * moved


@pytest.mark.parametrize("advantage", ["pass_at_k", "pkpo"])
def test_the_named_advantage_is_what_grpo_trains_with(advantage: Any, build_tiny: Build, make_sample: Make) -> None:
    grpo = GrpoSettings(
        group_size=4, prompts_per_generation=4, prompts_per_step=4, kl=0.0, max_steps=1, advantage=advantage,
        advantage_k=2,
    )  # fmt: skip
    settings = TrainSettings(grpo=grpo, loader_threads=0)
    prompts = [make_sample(20 + n, grids) for n, grids in enumerate(GRIDS[:4])]
    rows = [{"number": n, "phase": None} for n in range(4)]
    drawn = Fixed(fixed_episodes(4, 4))
    program = Grpo(fast_model(build_tiny(3)), prompts.__getitem__, rows, settings, drawn, fixed_scorer, None)
    program.gradients(0, Progress())
    weigh = blocks_of_k if advantage == "pass_at_k" else every_set_of_k
    expected = []
    for group in REWARDS:
        known = iter(weigh(np.array([one for one in group if one is not None]), 2))
        expected += [0.0 if one is None else float(next(known)) for one in group]
    assert [one.advantages for one in program._drawn] == [pytest.approx((worth,)) for worth in expected]
    with pytest.raises(ValidationError, match="multiple of advantage_k"):
        GrpoSettings(group_size=4, advantage="pkpo", advantage_k=3)


@pytest.mark.parametrize("turns", [(), (0.4, 0.1), (-0.25,)])
def test_a_reply_learns_from_what_is_earned_from_it_on(turns: Any, build_tiny: Build, make_sample: Make) -> None:
    """With `credit: turn` a token has its reply's advantage; where all is paid at the end, nothing changes."""

    def paid(pairs: Sequence[tuple[Episode, Mapping[str, Any]]]) -> list[Judged]:
        return [replace(one, turns=turns if one.reward is not None else ()) for one in fixed_scorer(pairs)]

    found = {}
    for credit in ("end", "turn"):
        grpo = GrpoSettings(
            group_size=4, prompts_per_generation=4, prompts_per_step=4, kl=0.0, max_steps=1, credit=credit,
        )  # fmt: skip
        model = build_tiny(3)
        prompts = [make_sample(20 + n, grids) for n, grids in enumerate(GRIDS[:4])]
        rows = [{"number": n, "phase": None} for n in range(4)]
        drawn = Fixed(fixed_episodes(4, 4))
        settings = TrainSettings(grpo=grpo, loader_threads=0)
        program = Grpo(fast_model(model), prompts.__getitem__, rows, settings, drawn, paid, None)
        program.gradients(0, Progress())
        found[credit] = program, [p.grad.clone() for p in model.parameters() if p.grad is not None]
    (_, first), (program, gradients) = found["end"], found["turn"]
    if not turns:
        assert all(torch.equal(one, other) for one, other in zip(first, gradients, strict=True))
    for group, rewards in enumerate(REWARDS):
        mine = [sample for sample in program._drawn if sample.group == group]
        assert [len(sample.replies) for sample in mine] == [1, 2, 1, 1], "the second called a tool"
        used = [reward for reward in rewards if reward is not None]
        for sample, reward in zip(mine, rewards, strict=True):
            spread = program._spread([sample], [sample.advantages]).tolist()
            assert len(spread) == sample.tokens
            if reward is None:
                assert set(spread) == {0.0}
                continue
            whole = (reward - np.mean(used)) / (np.std(used, ddof=1) + 1e-6)
            assert spread[0] == pytest.approx(whole, abs=1e-5), "from the first reply on all is still to be earned"
            if len(sample.replies) == 2:
                later = [one if n != 1 else one - sum(turns[:1]) for n, one in enumerate(rewards) if one is not None]
                worth = (reward - sum(turns[:1]) - np.mean(later)) / (np.std(later, ddof=1) + 1e-6)
                assert spread[sample.replies[0] :] == pytest.approx([worth] * sample.replies[1], abs=1e-5)


def test_tau_falls_over_the_steps_and_pays_by_distance_alone() -> None:
    assert [tau_at((2000.0, 25.0), share) for share in (0.0, 1.0)] == pytest.approx([2000, 25])
    assert tau_at((2000.0, 20.0), 0.5) == pytest.approx(200), "by the same factor with each step"
    known = by_distance(Judged(4.0, None, {"x": 1.0}, 25.0, (0.5,)), 25.0)
    assert (known.reward, known.turns) == (pytest.approx(math.exp(-1)), ())
    assert by_distance(Judged(1.0, "no_answer"), 25.0).reward == 0.0
    assert by_distance(Judged(None, "search_outage"), 25.0) == Judged(None, "search_outage")
    with pytest.raises(ValidationError, match=r"tau_km .*the first and the last tau in km"):
        GrpoSettings(tau_km=(25.0, 2000.0))


def test_adapters_start_as_the_base_and_are_merged_as_they_compute(
    build_tiny: Build, make_sample: Make, plain: Plain
) -> None:
    model, base = build_tiny(), build_tiny()
    add_adapters(model, LoraSettings(rank=4, alpha=8))
    sample = make_sample(3, ((1, 6, 10),))
    from tasks.train.fast.packing import pack

    batch = pack([sample], 5, 2)
    fast = fast_model(model)
    assert fast.loss(batch).item() == pytest.approx(
        base(**plain(sample), labels=torch.tensor([sample.labels])).loss.item()
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    assert sum(p.requires_grad for p in model.parameters()) == 2 * 7 * 2
    adapted = fast.loss(batch).item()
    assert fast_model(model, use_adapters=False).loss(batch).item() == pytest.approx(
        fast_model(base).loss(batch).item(), abs=1e-6
    ), "GRPO's reference is the model without its adapters"
    state = merged_state(model, model.state_dict())
    base.load_state_dict(state)
    assert fast_model(base).loss(batch).item() == pytest.approx(adapted, abs=1e-5)


def test_phase_two_begins_when_the_validation_reward_no_longer_rises() -> None:
    grpo = GrpoSettings(patience=3, least_rise=0.005)
    rising = [{"reward": value} for value in (0.1, 0.2, 0.3, 0.31)]
    assert not has_converged(rising, grpo)
    assert has_converged([*rising, *[{"reward": 0.312}] * 3], grpo)
    assert not has_converged([{"reward": 0.3}] * 3, grpo), "three validations say nothing about the last three"
    assert not has_converged([{"reward": 0.3}] * 9, GrpoSettings(patience=None))


@pytest.mark.parametrize("has_risen", [False, True], ids=["converged", "not converged"])
def test_phase_two_expands_the_set_of_phase_one(has_risen: bool) -> None:
    """SpotAgent 3.3.2: "we expand the training set to include" the looser regimes, whatever ended phase I."""
    rows = [{"phase": 1 + n // 4, "sha256": f"{(7 * n) % 10}"} for n in range(8)]
    program = Grpo.__new__(Grpo)
    program.rows, program.per_generation, program.grpo = rows, 2, GrpoSettings(patience=1)
    progress = Progress(validations=[])
    assert {rows[n]["phase"] for n in program.prompts(0, progress)} == {1} and progress.phase_end is None
    progress.validations += [{"reward": 0.1}, {"reward": 0.9 if has_risen else 0.1}]
    program.prompts(1, progress)
    assert progress.phase_end == (None if has_risen else 1)
    begin = 2 if has_risen else 1
    later = [n for generation in range(begin, begin + 4) for n in program.prompts(generation, progress)]
    assert progress.phase_end == begin
    assert sorted(later) == list(range(8)), "all of both phases, once each"
    assert {rows[n]["phase"] for n in later[:4]} == {1, 2}, "and mixed"


def test_a_last_generation_of_phase_one_is_filled_up_from_phase_one() -> None:
    program = Grpo.__new__(Grpo)
    program.rows, program.per_generation, program.grpo = [{"phase": 1}] * 3 + [{"phase": 2}] * 3, 2, GrpoSettings()
    progress = Progress()
    assert program.prompts(1, progress) == [2, 0] and progress.phase_end is None
    program.prompts(2, progress)
    assert progress.phase_end == 2


def test_a_frozen_vision_tower_stays_as_it_is(build_tiny: Build, make_sample: Make, tmp_path: Path) -> None:
    samples = [make_sample(n, grids, 5 + n) for n, grids in enumerate(GRIDS)]
    tuner = TunerSettings(epochs=1, batch_size=3, micro_batch=2, learning_rate=3e-3)
    settings = TrainSettings(sft=tuner, loader_threads=0, pack_tokens=64, freeze="vision")
    model = build_tiny()
    fast = prepare_model(model, settings)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    Loop(model, Supervised(fast, samples.__getitem__, len(samples), settings, tuner), settings, tmp_path).run()
    same = {name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])}
    assert {name for name in before if ".visual." in name} <= same
    assert not any(name in same for name in before if name.endswith("_proj.weight") and ".visual." not in name)


def test_pictures_of_tools_join_those_of_the_question_as_these_are(build_tiny: Build, make_sample: Make) -> None:
    """On a GPU a question's patches lie there in bf16; what a tool returned is decoded later, in fp32 on the CPU."""
    fast = fast_model(build_tiny())
    prompt, shown = make_sample(0, ((1, 4, 4),), 5), make_sample(1, ((1, 4, 6),), 5)
    assert prompt.pixels is not None
    sent = replace(prompt, pixels=prompt.pixels.to(torch.bfloat16))
    completion = Completion(list(shown.ids), [False] * len(shown.ids), shown.pixels, shown.grids)
    packed = pack_groups([Group(sent, (completion,))], fast.image_token, fast.merge)
    assert packed.pixels is not None and packed.pixels.dtype == torch.bfloat16
    assert len(packed.pixels) == 4 * 4 + 4 * 6


def test_the_peak_is_that_of_the_gpu_and_no_other() -> None:
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12 and peak_flops("NVIDIA L40S") != peak_flops("NVIDIA L4")
    assert peak_flops("NVIDIA GeForce GTX 1080") is None
