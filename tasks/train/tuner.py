"""Supervised training through TRL: the loss is on the assistant's text alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from trl import SFTConfig, SFTTrainer

from schemas.settings.train import TrainSettings, TunerSettings
from tasks.imaging.processor import ImageOnlyProcessor
from tasks.train.dataset import Pictures, conversations


def shared_arguments(settings: TrainSettings, output: Path) -> dict[str, Any]:
    """Trainer arguments of every stage: seeded, resumable, silent, on this machine alone."""
    import torch

    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(output),
        "seed": settings.seed,
        "data_seed": settings.seed,
        # CPUs emulate bf16 slowly, and a tiny model has no memory to save
        "bf16": settings.precision == "bf16" and on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if settings.gradient_checkpointing else None,
        "save_strategy": "steps",
        "save_total_limit": 2,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "push_to_hub": False,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        "optim": "adamw_torch",
    }


def adapters(settings: TrainSettings) -> Any:
    """The LoRA configuration of the settings, or None for full training."""
    if settings.lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora.rank,
        lora_alpha=settings.lora.alpha,
        lora_dropout=settings.lora.dropout,
        target_modules=r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
        task_type="CAUSAL_LM",
    )


def supervised_trainer(
    model: PreTrainedModel,
    processor: ImageOnlyProcessor,
    samples: Sequence[dict[str, Any]],
    pictures: Pictures,
    settings: TrainSettings,
    tuner: TunerSettings,
    output: Path,
) -> SFTTrainer:
    """An SFTTrainer over whole conversations, masked to the assistant's tokens."""
    micro_batch = min(tuner.micro_batch, tuner.batch_size)
    arguments = SFTConfig(
        **shared_arguments(settings, output),
        save_steps=settings.save_steps,
        num_train_epochs=tuner.epochs,
        max_steps=tuner.max_steps or -1,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=tuner.batch_size // micro_batch,
        learning_rate=tuner.learning_rate,
        lr_scheduler_type=tuner.schedule,
        warmup_steps=tuner.warmup_share,
        weight_decay=tuner.weight_decay,
        assistant_only_loss=True,
        max_length=None,  # a cut inside a picture's tokens would lose the picture
    )
    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=conversations(samples, pictures),
        processing_class=processor,
        peft_config=adapters(settings),
    )
