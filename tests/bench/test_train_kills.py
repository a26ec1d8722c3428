"""One kill of each training stage, as the benchmark does ten."""

import pytest

from bench import train_kills


@pytest.mark.slow
@pytest.mark.parametrize("stage", train_kills.STAGES)
def test_a_killed_stage_comes_to_the_same_bits(stage: str) -> None:
    [trial] = train_kills.run(kills=1, seed=3, stages=(stage,))[stage]
    assert trial.is_same
