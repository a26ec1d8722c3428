"""Resumable checkpoints: written beside, synchronized to disk, then renamed, so that a kill leaves none by halves."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.errors import GeofixError
from tasks.train.fast.adapters import merged_state
from tasks.train.fast.padding import plain_state
from tasks.train.fast.parts import local, part_like
from tasks.train.ranks import ALONE, Ranks
from tasks.train.sharding import whole_state

KEPT = 2  # a newer checkpoint that turns out unreadable must not be the only one
PREFIX = "checkpoint-"
MARGIN_BYTES = 64 * 1024 * 1024


@dataclass
class Progress:
    """What a training stage knows beside weights and optimizer."""

    step: int = 0  # optimizer steps done
    history: list[dict[str, float]] = field(default_factory=list)  # one entry for each step
    validations: list[dict[str, float]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    best_step: int | None = None
    phase_end: int | None = None  # GRPO: the step at which phase I was found to have converged


def save_checkpoint(folder: Path, model: Any, optimizer: Any, progress: Progress, ranks: Ranks = ALONE) -> Path:
    """Write a checkpoint of the trained parameters; returns its folder.

    It holds whole tensors, so any number of processes may go on from it. All of them call this; rank 0 writes.
    """
    weights = whole_state(trained_weights(model), ranks)
    state = optimizer.state_dict()
    target = folder / f"{PREFIX}{progress.step}"
    if ranks.is_first:
        _write_checkpoint(folder, target, weights, state, progress)
    ranks.wait()
    return target


def _write_checkpoint(
    folder: Path, target: Path, weights: dict[str, torch.Tensor], state: dict[str, Any], progress: Progress
) -> None:
    needed = _bytes(weights) + _bytes(state["state"])
    with room_for(folder, needed, f"the checkpoint of step {progress.step}"):
        fresh = folder / f".{target.name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            torch.save(weights, fresh / "weights.pt")
            torch.save(state, fresh / "optimizer.pt")
            (fresh / "progress.json").write_text(json.dumps(vars(progress)), encoding="utf-8")
            sync(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    for older in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(older, ignore_errors=True)


def load_checkpoint(path: Path, model: Any, optimizer: Any) -> Progress:
    """Put a checkpoint's weights and optimizer states where they belong."""
    weights = torch.load(path / "weights.pt", map_location="cpu", weights_only=True)
    own = dict(model.named_parameters())
    for name, tensor in weights.items():
        if name not in own or own[name].shape != tensor.shape:
            shape = "is not in this model" if name not in own else f"has shape {tuple(own[name].shape)} in this model"
            raise GeofixError(
                f"checkpoint {path} is of another model: {name} {tuple(tensor.shape)} {shape}; delete the folder "
                f"{path.parent} to train from the start"
            )
        local(own[name].detach()).copy_(part_like(tensor, own[name]))
    optimizer.load_state_dict(torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True))
    return Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if (path / "progress.json").exists()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)))


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def save_model(folder: Path, model: Any, processor: Any, ranks: Ranks = ALONE) -> None:
    """A folder that transformers opens: weights without padding and adapters, configuration, processor."""
    state = whole_state(model.state_dict(), ranks)
    if ranks.is_first:
        _write_model(folder, model, processor, merged_state(model, plain_state(model, state)))
    ranks.wait()


def _write_model(folder: Path, model: Any, processor: Any, state: dict[str, torch.Tensor]) -> None:
    with room_for(folder.parent, _bytes(state), "the trained model"):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            model.save_pretrained(folder, state_dict=state)
            processor.save_pretrained(folder)
            sync(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def room_for(folder: Path, needed: int, what: str) -> Iterator[None]:
    """Refuse to begin a write that the disk has no room for; name the full disk if it fills up meanwhile."""

    def full() -> GeofixError:
        free = shutil.disk_usage(folder).free
        return GeofixError(
            f"no room on the disk for {what}: it takes {needed / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB "
            "free; free some and run again, training goes on from its last checkpoint"
        )

    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed + MARGIN_BYTES:
        raise full()
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full() from error
        raise
    except Exception as error:  # torch and safetensors write with code of their own and name no errno
        if "PytorchStreamWriter" in str(error) or "No space left" in str(error):
            raise full() from error
        raise


def sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_bytes(one) for one in value.values())
    return 0
