"""verl's configuration of the GRPO stage: each figure of `train.grpo` under the name verl knows it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from schemas.settings.train import TrainSettings
from tasks.agent.render import chat_template
from tasks.agent.toolbox import RESULT_CHARS
from tasks.train.fitting import CHARS_A_TOKEN, size_of
from tasks.train.memory import TOKEN_PIXELS
from tasks.train.with_tools import budgets_of

# How token losses are averaged, in verl's words.
AVERAGED = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
SCHEDULES = {"constant": "constant", "cosine": "cosine"}
PROMPT_TOKENS = 4096  # SpotAgent's Table 7; longer where a question needs it
ROUND = 256


def launch_configuration(
    settings: TrainSettings,
    folder: Path,
    model: str,
    rows: Sequence[Mapping[str, Any]],
    has_tools: bool,
    estimator: str,
) -> dict[str, Any]:
    """A Hydra file over verl's own `ppo_trainer`."""
    grpo = settings.grpo
    if grpo.schedule not in SCHEDULES:
        raise InputError(f"train.grpo.schedule={grpo.schedule}: verl knows {' and '.join(SCHEDULES)}")
    multi_turn: dict[str, Any] = {"enable": has_tools, "format": "hermes"}
    if has_tools:
        multi_turn |= {
            "tool_config_path": str(folder / "tools.yaml"),
            "max_assistant_turns": grpo.max_turns,
            "max_parallel_calls": budgets_of(settings).calls,
            "max_tool_response_length": RESULT_CHARS,
        }
    adapters = {} if settings.lora is None else {"lora_rank": settings.lora.rank, "lora_alpha": settings.lora.alpha}
    passes = {"log_prob_micro_batch_size_per_gpu": grpo.micro_batch}
    return {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "data": {
            "train_files": str(folder / "train.parquet"),
            "val_files": str(folder / "validation.parquet"),
            "train_batch_size": min(grpo.prompts_per_generation, len(rows)),
            "max_prompt_length": prompt_tokens(settings, rows),
            "max_response_length": grpo.max_completion_tokens,
            "shuffle": False,  # the rows lie in the order of the curriculum
            "seed": settings.seed,
            "truncation": "error",
        },
        "algorithm": {"adv_estimator": "geofix_grpo", "use_kl_in_reward": False, "norm_adv_by_std_in_grpo": True},
        "actor_rollout_ref": {
            "model": {
                "path": model,
                "custom_chat_template": chat_template(),  # Qwen2.5-VL's own has no tools
                "enable_gradient_checkpointing": settings.gradient_checkpointing != "none",
                **adapters,
            },
            "actor": {
                "ppo_mini_batch_size": min(grpo.prompts_per_step, len(rows)),
                "ppo_micro_batch_size_per_gpu": grpo.micro_batch,
                "ppo_epochs": 1,
                "clip_ratio": grpo.clip,
                "clip_ratio_low": grpo.clip,
                "clip_ratio_high": grpo.clip,
                "clip_ratio_c": 1e9,  # the recipes' objective has no second bound for negative advantages
                "loss_agg_mode": AVERAGED[grpo.loss],
                "loss_scale_factor": grpo.max_completion_tokens if grpo.loss == "dr_grpo" else None,
                "use_kl_loss": grpo.kl > 0,
                "kl_loss_coef": grpo.kl,
                "kl_loss_type": "low_var_kl",
                "entropy_coeff": 0,
                "optim": {
                    "lr": grpo.learning_rate,
                    "weight_decay": 0.0,
                    "lr_scheduler_type": SCHEDULES[grpo.schedule],
                    "clip_grad": 1.0,
                },
            },
            "ref": passes,
            "rollout": {
                "name": "vllm",
                "n": grpo.group_size,
                "temperature": grpo.temperature,
                "tensor_model_parallel_size": 1,
                "multi_turn": multi_turn,
                "agent": {"default_agent_loop": "tool_agent" if has_tools else "single_turn_agent"},
                **passes,
            },
        },
        "reward": {
            "custom_reward_function": {
                "path": str(folder / "reward.py"),
                "name": "compute_score",
                "reward_kwargs": {"config": str(folder / "settings.yaml")},
            }
        },
        "trainer": {
            "total_epochs": max(1, round(grpo.epochs)),
            "total_training_steps": grpo.max_steps,
            "save_freq": settings.save_steps,
            "test_freq": settings.validation_steps,
            "logger": ["console", "tensorboard"],
            "project_name": "geofix",
            "experiment_name": f"{settings.recipe}-grpo",
            "default_local_dir": str(folder / "checkpoints"),
        },
        "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"VERL_USE_EXTERNAL_MODULES": estimator}}}},
    }


def prompt_tokens(settings: TrainSettings, rows: Sequence[Mapping[str, Any]]) -> int:
    """Room for the longest question with its picture."""
    text = max(size_of(row["messages_json"])[0] for row in rows) / CHARS_A_TOKEN
    if settings.grpo.max_turns:  # words and tools of the recipe stand in place of the question
        text = len(str(_words(settings))) / CHARS_A_TOKEN
    needed = text + settings.image_max_pixels / TOKEN_PIXELS
    return max(PROMPT_TOKENS, round(-(-needed // ROUND) * ROUND))


def _words(settings: TrainSettings) -> list[Any]:
    from tasks.agent.recipes import RECIPES

    recipe = RECIPES[settings.recipe]
    return [recipe.opening({"type": "image"}), recipe.schemas()]
