"""GRPO through TRL with a recipe's reward. SpotAgent uses no tools in this stage."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from trl import GRPOConfig, GRPOTrainer

from schemas.settings.train import TrainSettings
from tasks.imaging.processor import ImageOnlyProcessor
from tasks.train.dataset import Pictures, prompts
from tasks.train.tuner import adapters, shared_arguments

# (completion's text, true lat, true lon) -> (reward or None for a rollout an outage excludes, could it not be read?)
Scorer = Callable[[str, float, float], tuple[float | None, bool]]


def reward_function(scorer: Scorer) -> Callable[..., list[float | None]]:
    """TRL's reward hook over a recipe's score. TRL leaves a None out of its group."""

    def reward(
        completions: list[list[dict[str, str]]], lat: list[float], lon: list[float], **columns: Any
    ) -> list[float | None]:
        texts = [completion[-1]["content"] for completion in completions]
        scored = [scorer(*one) for one in zip(texts, lat, lon, strict=True)]
        columns["log_metric"]("parse_failures", sum(unread for _, unread in scored) / len(scored))
        return [value for value, _ in scored]

    return reward


def grpo_trainer(
    model: PreTrainedModel,
    processor: ImageOnlyProcessor,
    samples: Sequence[dict[str, Any]],
    pictures: Pictures,
    settings: TrainSettings,
    scorer: Scorer,
    output: Path,
) -> GRPOTrainer:
    """A GRPOTrainer whose KL reference is the checkpoint the model was loaded from."""
    grpo = settings.grpo
    per_generation = min(grpo.prompts_per_generation, len(samples))  # a small set must still fill a batch
    per_step = max(n for n in range(1, grpo.prompts_per_step + 1) if per_generation % n == 0)
    completions = per_step * grpo.group_size
    micro_batch = math.gcd(grpo.micro_batch, completions)
    accumulation = completions // micro_batch
    steps_per_generation = per_generation // per_step
    arguments = GRPOConfig(
        **shared_arguments(settings, output),
        # Saved only between two generations: TRL keeps no rollouts in a checkpoint and would sample others.
        save_steps=math.ceil(settings.save_steps / steps_per_generation) * steps_per_generation,
        num_train_epochs=grpo.epochs,
        max_steps=grpo.max_steps or -1,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * steps_per_generation,
        num_generations=grpo.group_size,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type=grpo.schedule,
        beta=grpo.kl,
        use_bias_correction_kl=False,  # the paper's low-variance KL is the plain k3 estimator
        epsilon=grpo.clip,
        loss_type=grpo.loss,
        scale_rewards="group",
        temperature=grpo.temperature,
        max_completion_length=grpo.max_completion_tokens,
        # The curriculum is in the order of the samples: phase I first.
        shuffle_dataset=False,
    )
    return GRPOTrainer(
        model=model,
        args=arguments,
        reward_funcs=reward_function(scorer),
        train_dataset=prompts(samples, pictures),
        processing_class=processor,
        peft_config=adapters(settings),
    )
