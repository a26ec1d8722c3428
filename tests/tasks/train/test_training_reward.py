"""GRPO is given the recipe's reward, and TRL makes of it the advantage the paper defines."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2_5_VLForConditionalGeneration

from schemas.errors import GeofixError
from schemas.settings.train import GrpoSettings, TrainSettings
from tasks.lake import Lake
from tasks.reward.advantage import group_advantages
from tasks.runtime.stage import open_inputs
from tasks.train.dataset import Pictures, texts_of
from tasks.train.grpo import grpo_trainer, reward_function
from tasks.train.samples import STAGE, compute
from tasks.train.tiny import build_model, build_processor
from tasks.train.training import scorer

TRL_EPSILON = 1e-4  # fixed in TRL's source; ours and verl's is 1e-6


def test_the_reward_is_spotagents(tmp_path: Path) -> None:
    noted: dict[str, float] = {}
    reward = reward_function(scorer("spotagent"))
    here = "<answer>\nLatitude: 48.0\nLongitude: 2.0\n</answer>"
    far = "<answer>\nLatitude: -48.0\nLongitude: 2.0\n</answer>"
    values = reward(
        completions=[[{"role": "assistant", "content": text}] for text in (here, far, "no idea", "")],
        lat=[48.0] * 4,
        lon=[2.0] * 4,
        log_metric=noted.__setitem__,
    )
    assert values == [1.0, 0.0, 0.0, 0.0]
    assert noted == {"parse_failures": 0.5}
    with pytest.raises(GeofixError, match="has no reward to train with"):
        scorer("smilegeo")


def test_trl_scales_rewards_as_our_advantage_does(
    lake: Lake, tmp_path: Path, filled: Callable[..., str], settings: Callable[..., TrainSettings]
) -> None:
    """The same formula with unbiased deviation; TRL's epsilon is 1e-4, so values differ from ours by 1e-4 / std."""
    filled(lake)
    grpo = GrpoSettings(
        max_steps=1,
        group_size=4,
        prompts_per_generation=3,
        prompts_per_step=3,
        micro_batch=12,
        learning_rate=1e-4,
        max_completion_tokens=3,
    )
    small = settings(grpo=grpo)
    kept, _ = compute(open_inputs(STAGE, lake), small)
    rows = [row for row in kept.to_dicts() if row["training_stage"] == "grpo"]
    texts = [text for row in rows for text in texts_of(row["messages_json"])]
    processor = build_processor(texts, small.tiny, small.image_min_pixels, small.image_max_pixels)
    build_model(processor, small.tiny, 0).save_pretrained(tmp_path / "start")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "start")
    # A group with one outage, a group of equal rewards, a group of different ones.
    given: list[float | None] = [1.0, None, 0.25, 0.0, 0.5, 0.5, 0.5, 0.5, 0.75, 0.2, 0.0, 1.0]
    number = count()

    def fixed(text: str, lat: float, lon: float) -> tuple[float | None, bool]:
        return given[next(number)], False

    pictures = Pictures(lake.images, small.image_min_pixels, small.image_max_pixels)
    trainer: Any = grpo_trainer(model, processor, rows, pictures, small, fixed, tmp_path / "out")
    trainer.train()
    rewards = [np.nan if value is None else value for value in given]
    groups = np.repeat(["a", "b", "c"], 4)
    theirs = np.array(trainer._logs["advantages"])
    np.testing.assert_allclose(theirs, group_advantages(rewards, groups, TRL_EPSILON).values, atol=1e-5)
    np.testing.assert_allclose(theirs, group_advantages(rewards, groups).values, rtol=5e-4, atol=1e-6)
    assert theirs[1] == 0, "an outage moves nothing"
