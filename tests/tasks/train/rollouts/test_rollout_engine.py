"""The embedded engine against transformers' own `generate` and forward."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from schemas.errors import GeofixError
from tasks.train.fast.families import fast_model
from tasks.train.rollouts.engine import Rollout, RolloutEngine
from tasks.train.rollouts.sampling import Sampling, chances, draw, restrict
from tasks.train.token_samples import Sample

END = 1
Plain = Callable[[Sample], dict[str, torch.Tensor]]


@pytest.fixture
def prompts(make_sample: Callable[..., Sample]) -> list[Sample]:
    return [
        make_sample(11, ((1, 6, 10),)),
        make_sample(12, (), 9),
        make_sample(13, ((1, 4, 4), (1, 10, 6))),
        make_sample(14, ((1, 8, 8),), 4),
        make_sample(15, (), 3),
    ]


def rollouts(model: Any, prompts: list[Sample], **changes: Any) -> list[list[Rollout]]:
    values = {"group_size": 3, "groups": 2, "prompt_tokens": 64, "new_tokens": 24, "end_tokens": [END], **changes}
    found = dict(RolloutEngine(fast_model(model), **values).generate(prompts))
    assert sorted(found) == list(range(len(prompts))), "every prompt is answered once"
    return [found[index] for index in range(len(prompts))]


def test_greedy_rollouts_are_generates(
    model: Qwen2_5_VLForConditionalGeneration, prompts: list[Sample], plain: Plain
) -> None:
    greedy = rollouts(model, prompts, sampling=Sampling(temperature=0))
    for prompt, group in zip(prompts, greedy, strict=True):
        expected = model.generate(**plain(prompt), do_sample=False, max_new_tokens=24)[0, len(prompt.ids) :].tolist()
        assert [one.ids for one in group] == [expected] * 3
        assert group[0].is_finished == (expected[-1] == END)


def test_rollouts_stop_at_an_end_token(model: Qwen2_5_VLForConditionalGeneration, prompts: list[Sample]) -> None:
    whole = rollouts(model, prompts, sampling=Sampling(temperature=0), end_tokens=[])
    stop = whole[0][0].ids[5]
    for full, cut in zip(
        whole, rollouts(model, prompts, sampling=Sampling(temperature=0), end_tokens=[stop]), strict=True
    ):
        until = full[0].ids.index(stop) + 1 if stop in full[0].ids else 24
        assert [one.ids for one in cut] == [full[0].ids[:until]] * 3
        assert cut[0].is_finished == (stop in full[0].ids)


def test_log_probs_are_those_of_a_plain_forward(
    model: Qwen2_5_VLForConditionalGeneration, prompts: list[Sample], plain: Plain
) -> None:
    torch.manual_seed(0)
    temperature = 0.7
    for prompt, group in zip(prompts, rollouts(model, prompts, sampling=Sampling(temperature)), strict=True):
        assert len({tuple(one.ids) for one in group}) > 1, "rollouts of a group differ"
        for one in group:
            inputs = plain(Sample([*prompt.ids, *one.ids], [], prompt.pixels, prompt.grids))
            with torch.no_grad():
                logits = model(**inputs).logits[0, len(prompt.ids) - 1 : -1] / temperature
            expected = logits.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=1e-4, rtol=1e-4)


def test_a_step_of_training_is_seen(model: Qwen2_5_VLForConditionalGeneration, prompts: list[Sample]) -> None:
    engine = RolloutEngine(fast_model(model), 2, 2, 64, 6, [END], Sampling(temperature=0))
    first = dict(engine.generate(prompts))
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    second = dict(engine.generate(prompts))
    assert [95 - token for token in first[0][0].ids[:1]] == second[0][0].ids[:1]


def test_a_prompt_that_is_too_long_is_refused(model: Qwen2_5_VLForConditionalGeneration, prompts: list[Sample]) -> None:
    with pytest.raises(GeofixError, match="prompt_tokens allows 8"):
        rollouts(model, prompts, prompt_tokens=8)


def test_draws_follow_the_probabilities() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(40_000, 1)
    tokens, log_probs = draw(logits, Sampling())
    shares = tokens.bincount(minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.01, rtol=0)
    assert log_probs[0].item() == pytest.approx(math.log([0.5, 0.3, 0.15, 0.05][int(tokens[0])]), abs=1e-5)
    assert set(draw(logits, Sampling(top_k=2))[0].tolist()) == {0, 1}
    assert set(draw(logits, Sampling(top_p=0.6))[0].tolist()) == {0, 1}
    assert set(draw(logits, Sampling(top_p=0.4))[0].tolist()) == {0}


def test_chances_draw_by_the_probabilities_and_never_what_has_none() -> None:
    shares = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
    logits = shares.log().clamp_min(-1e30).repeat(40_000, 1)
    chance = chances(3, 40_000)
    tokens, log_probs = draw(logits, Sampling(), chance=chance)
    torch.testing.assert_close(tokens.bincount(minlength=5) / 40_000, shares, atol=0.01, rtol=0)
    assert log_probs[0].item() == pytest.approx(math.log(shares[int(tokens[0])]), abs=1e-5)
    banned = torch.tensor([0])
    for top in (Sampling(), Sampling(top_k=2), Sampling(top_p=0.7)):
        edges = torch.tensor([0.0, 1 - 2**-24]).repeat(20_000)
        assert set(draw(logits, top, banned, edges)[0].tolist()) <= {2, 3}
    assert set(draw(logits, Sampling(top_k=2), chance=chance)[0].tolist()) == {0, 2}


def test_a_seeded_prompt_is_answered_alike_alone_and_beside_others(
    model: Qwen2_5_VLForConditionalGeneration, prompts: list[Sample]
) -> None:
    asked = [replace(one, seed=number) for number, one in enumerate(prompts)]
    drawn = Sampling(1.0, seeded=True)
    together = rollouts(model, asked, sampling=drawn, group_size=1, groups=4)
    alone = [rollouts(model, [one], sampling=drawn, group_size=1, groups=1)[0] for one in asked]
    assert [[one.ids for one in group] for group in together] == [[one.ids for one in group] for group in alone]
    others = rollouts(model, [replace(one, seed=None) for one in prompts], sampling=drawn, group_size=1)
    assert [group[0].ids for group in others] != [group[0].ids for group in together]


def test_top_p_counts_among_the_top_k() -> None:
    log_probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    kept = restrict(log_probs, Sampling(top_k=2, top_p=0.55)).isfinite()
    assert kept.tolist() == [[True, False, False, False]]  # 0.4 / 0.7 is 0.57 of what the top 2 hold


@pytest.mark.parametrize("changes", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_sampling_outside_its_bounds_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(GeofixError, match=next(iter(changes))):
        Sampling(**changes)
