import itertools
import statistics
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.reward.advantage import advantages, group_advantages, turn_advantages


def by_the_formula(rewards: list[float], groups: list[str]) -> list[float]:
    """verl's rule in the standard library: (r - mean) / (unbiased std + 1e-6), a group of one against 0 and 1."""
    members: dict[str, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        members.setdefault(group, []).append(reward)

    def advantage(reward: float, peers: list[float]) -> float:
        mean, deviation = (0.0, 1.0) if len(peers) == 1 else (statistics.fmean(peers), statistics.stdev(peers))
        return (reward - mean) / (deviation + 1e-6)

    return [advantage(reward, members[group]) for reward, group in zip(rewards, groups, strict=True)]


def test_a_thousand_random_groups_equal_the_formula() -> None:
    rng = np.random.default_rng(0)
    groups = [f"image-{g}" for g in range(1000) for _ in range(rng.integers(1, 17))]
    rng.shuffle(groups)
    rewards = rng.choice([0.0, 0.1, 0.2, 0.8, 1.0], len(groups)) + rng.random(len(groups)) * (rng.random() < 0.5)
    ours = group_advantages(rewards, groups).values
    np.testing.assert_allclose(ours, by_the_formula(rewards.tolist(), groups), atol=1e-6, rtol=0)


def test_a_known_group() -> None:
    values = group_advantages([1.0, 0.0, 0.0, 1.0], ["a"] * 4).values
    np.testing.assert_allclose(values, np.array([1, -1, -1, 1]) * 0.5 / (1 / 3**0.5 + 1e-6), rtol=1e-12)


def test_equal_rewards_teach_nothing_and_one_alone_is_as_in_verl() -> None:
    assert group_advantages([0.3] * 8, ["a"] * 8).values == pytest.approx([0] * 8, abs=1e-9)
    assert group_advantages([0.7], ["a"]).values == pytest.approx([0.7 / (1 + 1e-6)])


def test_an_outage_leaves_its_group() -> None:
    found = group_advantages([1.0, np.nan, 0.0, 0.5], ["a", "a", "a", "b"])
    without = group_advantages([1.0, 0.0, 0.5], ["a", "a", "b"])
    assert (~found.used).sum() == 1
    assert found.values.tolist() == [without.values[0], 0.0, without.values[1], without.values[2]]
    assert group_advantages([np.nan, np.nan], ["a", "a"]).values.tolist() == [0, 0]


@given(st.lists(st.floats(0, 4), min_size=2, max_size=16))
def test_advantages_of_a_group_sum_to_nothing_and_keep_the_order(rewards: list[float]) -> None:
    values = group_advantages(rewards, ["g"] * len(rewards)).values
    assert values.sum() == pytest.approx(0, abs=1e-6)
    assert np.all(np.diff(values[np.argsort(rewards, kind="stable")]) >= -1e-9)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rewards but 1"):
        group_advantages([1.0, 2.0], ["a"])
    with pytest.raises(ValueError, match="infinite"):
        group_advantages([np.inf], ["a"])
    assert group_advantages([], []).values.size == 0


def test_rewards_come_without_torch_and_prefect() -> None:
    # Rollout workers score answers; they must not load a trainer or an orchestrator for it.
    code = "import sys, tasks.reward.services, tasks.reward.outcome, tasks.reward.advantage, tasks.reward.metrics; "
    code += "sys.exit(bool({'torch', 'prefect', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Pass@K-GRPO and PKPO (Thinking with Map, Table 9)


def over_all_sets(rewards: list[float], k: int) -> list[float]:
    """PKPO's s^(loo-1) as it is defined: every set of k that holds i, with and without i, over C(n, k)."""
    sets = list(itertools.combinations(range(len(rewards)), k))
    found = []
    for i in range(len(rewards)):
        holding = [one for one in sets if i in one]
        gains = [max(rewards[j] for j in one) - max(rewards[j] for j in one if j != i) for one in holding]
        found.append(sum(gains) / len(sets))
    return found


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]), min_size=4, max_size=8), st.integers(2, 4))
def test_pkpo_is_the_mean_over_all_sets_of_k(rewards: list[float], k: int) -> None:
    ours = advantages(rewards, ["g"] * len(rewards), "pkpo", k).values
    np.testing.assert_allclose(ours, over_all_sets(rewards, k), atol=1e-12)


def test_pkpo_estimates_the_gradient_of_the_best_of_k() -> None:
    """A policy of one number p = P(reward 1): d/dp of 1 - (1 - p)^k is k (1 - p)^(k - 1)."""
    rng, p, n, k = np.random.default_rng(3), 0.3, 8, 4
    drawn = (rng.random((40_000, n)) < p).astype(float)
    score_of = np.where(drawn == 1, 1 / p, -1 / (1 - p))  # d log P / dp
    groups = np.repeat(np.arange(len(drawn)), n)
    weights = advantages(drawn.ravel(), groups, "pkpo", k).values.reshape(drawn.shape)
    estimates = (weights * score_of).sum(axis=1)
    assert estimates.mean() == pytest.approx(k * (1 - p) ** (k - 1), abs=4 * estimates.std() / len(drawn) ** 0.5)


def test_pass_at_k_pays_what_a_rollout_adds_to_the_best_of_its_block() -> None:
    found = advantages([0.2, 1.0, 0.6, 0.2, 0.0, 0.0, 0.8, 0.8], ["a"] * 8, "pass_at_k", 4).values
    np.testing.assert_allclose(found, [0, 0.4, 0, 0, 0, 0, 0, 0])
    assert advantages([0.2, np.nan, 1.0], ["a"] * 3, "pass_at_k", 2).values == pytest.approx([0, 0, 0.8])
    with_grpo = advantages([0.0, 1.0], ["a"] * 2).values
    np.testing.assert_array_equal(with_grpo, group_advantages([0.0, 1.0], ["a"] * 2).values)


def random_rollouts(rng: np.random.Generator, size: int, at_the_end: bool) -> list[list[float] | None]:
    """What each reply of each rollout earned; one in eight is excluded."""
    rollouts: list[list[float] | None] = []
    for _ in range(size):
        earned = rng.random(rng.integers(1, 6)).tolist()
        if at_the_end:
            earned[:-1] = [0.0] * (len(earned) - 1)
        rollouts.append(None if rng.random() < 0.125 else earned)
    return rollouts


def test_a_reply_is_worth_what_is_earned_from_it_on() -> None:
    """Against a loop written out: for each reply the group's returns from there on, of those that ended their last."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        groups = [f"image-{n}" for n in range(3) for _ in range(4)]
        earned = random_rollouts(rng, 12, at_the_end=False)
        ours = turn_advantages(earned, groups)
        for rollout, mine in enumerate(earned):
            if mine is None:
                assert ours[rollout] == (0.0,)
                continue
            assert len(ours[rollout]) == len(mine)
            for reply in range(len(mine)):
                returns = []
                for other, theirs in enumerate(earned):
                    if groups[other] == groups[rollout] and theirs is not None:
                        returns.append(sum(theirs[reply:]) if reply < len(theirs) else theirs[-1])
                mean, deviation = (
                    (0.0, 1.0) if len(returns) == 1 else (statistics.fmean(returns), statistics.stdev(returns))
                )
                expected = (sum(mine[reply:]) - mean) / (deviation + 1e-6)
                assert ours[rollout][reply] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("estimator", ["grpo", "pass_at_k", "pkpo"])
def test_what_is_paid_at_the_end_is_worth_as_much_at_every_reply(estimator: Any) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        groups = ["a"] * 4 + ["b"] * 8
        earned = random_rollouts(rng, 12, at_the_end=True)
        rewards = [np.nan if one is None else one[-1] for one in earned]
        whole = advantages(rewards, groups, estimator, 2).values
        by_reply = turn_advantages(earned, groups, estimator, 2)
        assert [set(one) for one in by_reply] == [{float(worth)} for worth in whole], "bit by bit"
