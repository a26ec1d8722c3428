"""The GPU before and while a stage is trained on it: whether there is room, and what to change where there is none."""

from __future__ import annotations

import torch

from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings
from tasks.train.fitting import Forecast


def check_room(found: Forecast) -> None:
    """Refuse a GPU that is too small, or that other processes hold, before weights are loaded to it."""
    free, total = memory()
    wanted = found.memory.total
    if wanted > total:
        raise GeofixError(
            f"{found.training_stage} takes about {wanted / 2**30:.0f} GiB and the GPU has {total / 2**30:.0f}: set "
            f"{found.advice}; `geofix train --dry-run` says what fits"
        )
    if wanted > free:
        raise GeofixError(
            f"{found.training_stage} takes about {wanted / 2**30:.0f} GiB and other processes left "
            f"{free / 2**30:.0f} of the GPU's {total / 2**30:.0f} GiB free: end them, or name another GPU in "
            "CUDA_VISIBLE_DEVICES"
        )


def memory() -> tuple[int, int]:
    """Free and all bytes of the GPU."""
    try:
        return torch.cuda.mem_get_info()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:  # a GPU for one process alone that has one, or a driver in trouble
        said = str(error).splitlines()[0]
        raise GeofixError(
            f"the GPU cannot be used ({said}): end the process that holds it, or name another GPU in "
            "CUDA_VISIBLE_DEVICES"
        ) from error


def too_large(settings: TrainSettings, error: BaseException) -> str:
    """What to change when a GPU's memory is full, cheapest first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    if any(name.endswith(("engine.py", "cache.py", "source.py")) for name in frames):
        advice = f"lower train.grpo.rollout_groups (now {settings.grpo.rollout_groups}): it decides the key cache"
    elif any(name.endswith("optimizer.py") for name in frames) and settings.lora is None:
        advice = f"set train.states=int8 (now {settings.states}) or train adapters (train.lora.rank=64)"
    elif settings.gradient_checkpointing != "all":
        advice = (
            f"lower train.pack_tokens (now {settings.pack_tokens}) or set train.gradient_checkpointing=all (now "
            f"{settings.gradient_checkpointing})"
        )
    else:
        advice = f"lower train.pack_tokens (now {settings.pack_tokens}) or train.image_max_pixels"
    free, total = memory()
    return (
        f"the GPU's memory is full ({free / 2**30:.0f} of {total / 2**30:.0f} GiB free): {advice}; `geofix train "
        "--dry-run` says what fits. Training goes on from its last checkpoint"
    )
