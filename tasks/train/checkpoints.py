"""Resumable checkpoints: written beside, synchronized to disk, then renamed, so that a kill leaves no partial one."""

import contextlib
import errno
import json
import logging
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
from tasks.train.ranks import ALONE, Ranks, whole_state
from tasks.train.result import KEPT, PREFIX, WHOLE

logger = logging.getLogger(__name__)

MARGIN_BYTES = 64 * 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's share of it, the largest file allowed
FULL_TEXTS = tuple(os.strerror(number) for number in FULL)


@dataclass
class Progress:
    """What a phase knows beside weights and optimizer."""

    step: int = 0  # optimizer steps done
    history: list[dict[str, float]] = field(default_factory=list)  # one entry for each step
    validations: list[dict[str, float]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    best_step: int | None = None
    phase_end: int | None = None  # GRPO: the generation that phase II of the curriculum begins with


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
            for name, value in (("weights.pt", weights), ("optimizer.pt", state)):
                # Through a file of Python's: torch's own writer does not say why a write failed.
                with (fresh / name).open("wb") as file:
                    torch.save(value, file)
            (fresh / WHOLE).write_text(json.dumps(vars(progress)), encoding="utf-8")
            sync_folder(fresh)
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
    state = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
    progress = Progress(**json.loads((path / WHOLE).read_text(encoding="utf-8")))
    own = dict(model.named_parameters())
    for name, tensor in weights.items():
        if name not in own or own[name].shape != tensor.shape:
            shape = "is not in this model" if name not in own else f"has shape {tuple(own[name].shape)} in this model"
            raise GeofixError(
                f"checkpoint {path} is of another model: {name} {tuple(tensor.shape)} {shape}; delete the folder "
                f"{path.parent} to train from the start"
            )
        local(own[name].detach()).copy_(part_like(tensor, own[name]))
    optimizer.load_state_dict(state)
    return progress


def resume_checkpoint(folder: Path, model: Any, optimizer: Any) -> Progress:
    """Go on from the newest checkpoint that can be read; from the start where there is none."""
    complete_checkpoints = checkpoints(folder)
    for path in reversed(complete_checkpoints):
        try:
            return load_checkpoint(path, model, optimizer)
        except GeofixError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file raises whatever its reader stumbles over
            logger.warning("checkpoint %s cannot be read (%s); the one before it is tried", path, type(error).__name__)
    if complete_checkpoints:
        raise GeofixError(f"none of the checkpoints in {folder} can be read; delete the folder to train from the start")
    return Progress()


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    complete = [path for path in folder.glob(f"{PREFIX}*") if (path / WHOLE).exists()]
    return sorted(complete, key=lambda path: int(path.name.removeprefix(PREFIX)))


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def save_model(folder: Path, model: Any, processor: Any, ranks: Ranks = ALONE) -> None:
    """A folder that transformers opens: weights without padding and adapters, configuration, processor."""
    state = whole_state(model.state_dict(), ranks)
    if ranks.is_first:
        _tie(model, state)
        _write_model(folder, model, processor, merged_state(model, plain_state(model, state)))
    ranks.wait()


def _tie(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Weights that are one in the model are one in its state again: gathering has made copies of them."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in state and first.setdefault(id(parameter), name) != name:
            state[name] = state[first[id(parameter)]]


def _write_model(folder: Path, model: Any, processor: Any, state: dict[str, torch.Tensor]) -> None:
    with room_for(folder.parent, _bytes(state), "the trained model"):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            model.save_pretrained(folder, state_dict=state)
            processor.save_pretrained(folder)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def room_for(folder: Path, needed: int, what: str) -> Iterator[None]:
    """Refuse to begin a write that the disk has no room for; name the full disk if it fills up meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed + MARGIN_BYTES:
        raise _full(folder, what, needed)
    with full_disk_named(folder, what, needed):
        yield


@contextlib.contextmanager
def full_disk_named(folder: Path, what: str, needed: int | None = None) -> Iterator[None]:
    """One clear line where a write inside ends for want of room, whichever library wrote."""
    try:
        yield
    except GeofixError:
        raise
    except Exception as error:
        if _is_full(error):
            raise _full(folder, what, needed) from error
        raise


def _is_full(error: BaseException) -> bool:
    """Whether a full disk is behind an error, however many libraries have wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in FULL:
            return True
        seen = seen.__cause__ or seen.__context__
    return any(text in str(error) for text in FULL_TEXTS)  # safetensors names no errno


def _full(folder: Path, what: str, needed: int | None) -> GeofixError:
    takes = "" if needed is None else f"it needs {_size(needed + MARGIN_BYTES)} and "
    return GeofixError(
        f"no room on the disk for {what}: {takes}{_size(shutil.disk_usage(folder).free)} are free; free some and run "
        f"again, training goes on from its last checkpoint in {folder}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def sync_folder(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_bytes(inner) for inner in value.values())
    return 0
