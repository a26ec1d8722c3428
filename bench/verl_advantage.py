"""Compare our group advantage with verl's own function on random groups.

verl pins other versions than geofix, so it runs in an environment of its own:

    python -m venv verl-env
    verl-env/bin/pip install --no-deps verl==0.9.1
    verl-env/bin/pip install torch==2.13.0 numpy tensordict hydra-core omegaconf ray transformers codetiming orjson
    verl-env/bin/python bench/verl_advantage.py

Exit code 1 if any advantage differs by more than 1e-6.
"""

import argparse
import importlib.util
import sys
import types
from pathlib import Path

import numpy as np


def load_advantage() -> types.ModuleType:
    """Our module by path: verl's environment has none of geofix's other dependencies."""
    path = Path(__file__).resolve().parent.parent / "tasks" / "reward" / "advantage.py"
    spec = importlib.util.spec_from_file_location("advantage", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def random_rewards(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards of groups of 1 to 16 rollouts: continuous, stepped (Thinking with Map), and all equal."""
    rewards, index = [], []
    for group in range(groups):
        size = int(rng.integers(1, 17))
        kind = group % 3
        if kind == 0:
            drawn = rng.random(size)
        elif kind == 1:
            drawn = rng.choice([0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0], size)
        else:
            drawn = np.full(size, rng.random()) if rng.random() < 0.3 else rng.random(size) * 4
        rewards.append(drawn)
        index += [f"image-{group}"] * size
    order = rng.permutation(len(index))
    return np.concatenate(rewards)[order], np.array(index, dtype=object)[order]


def verl_advantages(rewards: np.ndarray, index: np.ndarray, dtype: object) -> np.ndarray:
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    tokens = torch.zeros((len(rewards), 3), dtype=dtype)  # outcome reward on the last token
    tokens[:, -1] = torch.tensor(rewards, dtype=dtype)
    advantages, _ = compute_grpo_outcome_advantage(tokens, torch.ones_like(tokens), index)
    return advantages[:, 0].double().numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    import torch
    import verl

    rewards, index = random_rewards(np.random.default_rng(options.seed), options.groups)
    ours = load_advantage().group_advantages(rewards, list(index)).values
    exact = np.abs(ours - verl_advantages(rewards, index, torch.float64)).max()
    # verl's trainers hold rewards in float32, where the mean of equal rewards is off in the last digit and divided by
    # 1e-6: apart from such groups the seven digits of float32 remain.
    single = np.abs(ours - verl_advantages(rewards, index, torch.float32))
    spread = np.array([np.ptp(rewards[index == group]) > 0 for group in index])
    print(f"verl {verl.__version__}: {options.groups} groups, {len(rewards)} rollouts")
    print(f"largest difference, verl in float64: {exact:.2e}")
    print(f"largest difference, verl in float32: {single[spread].max():.2e} where rewards differ inside the group,")
    print(f"                                     {single[~spread].max():.2e} where all are equal")
    return 0 if exact <= 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
