"""The training loop of every phase: steps, rates, validation, checkpoints, figures, warnings.

A program (supervised.py, grpo.py) computes the gradients of one optimizer step. What is drawn at random is drawn from
the seed and the step's number, so a resumed run needs no generator's state and takes the same steps.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from schemas.errors import GeofixError, StageRefused
from schemas.settings.train import TrainSettings
from tasks.runtime.steps import Steps
from tasks.train.checkpoints import Progress, resume_checkpoint, save_checkpoint
from tasks.train.fast.adapters import add_adapters
from tasks.train.fast.families import FAMILIES, fast_model
from tasks.train.fast.flops import peak_flops
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.fast.packing import PackLimit
from tasks.train.fast.padding import pad_vision
from tasks.train.plain import PlainModel
from tasks.train.ranks import ALONE, Ranks
from tasks.train.signs import Signs
from tasks.train.trainable import TrainableModel

logger = logging.getLogger(__name__)
MAX_NORM = 1.0  # of the gradients together, as transformers' Trainer and verl clip them

Figures = dict[str, float]
Pending = dict[str, float | torch.Tensor]  # tensors are read after the optimizer's step was handed to the device
Validate = Callable[[], Figures]


class Program(Protocol):
    """What a phase does in one optimizer step."""

    steps: int
    save_every: int  # a multiple of the steps between which nothing is carried over
    packs: PackLimit

    def gradients(self, step: int, progress: Progress) -> Pending:
        """Add one step's gradients to the parameters; figures with `loss` and `tokens`."""

    def rate(self, step: int) -> float:
        """The learning rate of this step."""


@dataclass
class Loop:
    """Runs a program to its end from the last whole checkpoint in `output`."""

    model: Any
    program: Program
    settings: TrainSettings
    output: Path
    weight_decay: float = 0.0
    validate: Validate | None = None
    report: Callable[[Steps], None] = lambda steps: None
    observe: Callable[[int, Figures], None] = lambda step, figures: None
    keep_best: Callable[[], None] | None = None
    ranks: Ranks = ALONE
    saved: Callable[[Path], None] = lambda path: None  # told of each checkpoint
    peak_flops: float | None = field(default_factory=lambda: _device_peak())  # of each process
    has_halved: bool = field(default=False, init=False)  # packs, after an out-of-memory error

    def run(self) -> Progress:
        """Train; returns the figures of all steps, those before a kill included."""
        optimizer = self._optimizer()
        progress = resume_checkpoint(self.output, self.model, optimizer)
        program, steps = self.program, self.program.steps
        signs = Signs(self.settings)
        signs.replay(progress.history)
        self.report(Steps(progress.step, steps))
        if self.validate is not None and not progress.validations:
            self._validate(progress)
        last_saved = progress.step
        began = time.monotonic()
        done_before = progress.step
        while progress.step < steps:
            try:
                figures = self._step(optimizer, progress)
            except StageRefused as refusal:  # such as a money budget that a reward's models have used up
                if progress.step == last_saved or self.ranks.count > 1:
                    raise
                # A step fails so while it draws, before it learns: the model is as the last step left it.
                self._save(optimizer, progress)
                raise StageRefused(f"{refusal}; the checkpoint of step {progress.step} is kept") from refusal
            for name, text in signs.seen(progress.step, figures):
                progress.warnings.append({"step": progress.step, "sign": name, "text": text})
                logger.warning("step %d: %s", progress.step, text)
            is_last = progress.step == steps
            if self.validate is not None and (is_last or progress.step % self.settings.validation_steps == 0):
                self._validate(progress)
            if progress.step - last_saved >= program.save_every and progress.step % program.save_every == 0:
                self._save(optimizer, progress)
                last_saved = progress.step
            left_s = (time.monotonic() - began) / (progress.step - done_before) * (steps - progress.step)
            self.report(Steps(progress.step, steps, _note(figures, left_s), figures))
        return progress

    def _save(self, optimizer: StochasticAdamW, progress: Progress) -> None:
        self.saved(save_checkpoint(self.output, self.model, optimizer, progress, self.ranks))
        self.ranks.wait()

    def _step(self, optimizer: StochasticAdamW, progress: Progress) -> Figures:
        step, began = progress.step, time.monotonic()
        pending = self._gradients(optimizer, progress)
        # Shared-out parameters have summed their gradients in the backward pass already.
        self.ranks.add_up(
            [p for group in optimizer.param_groups for p in group["params"] if not isinstance(p, DTensor)]
        )
        rate = self.program.rate(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        norm = optimizer.last_norm
        figures = {name: float(value) for name, value in pending.items()}
        figures |= {"learning_rate": rate, "grad_norm": 0.0 if norm is None else float(norm)}
        figures["seconds"] = time.monotonic() - began
        figures["tokens_per_s"] = figures["tokens"] / max(figures["seconds"], 1e-9)
        flops = figures.pop("flops", 0.0)
        if flops and self.peak_flops:
            figures["mfu"] = flops / max(figures["seconds"], 1e-9) / (self.peak_flops * self.ranks.count)
        for name in ("loss", "grad_norm"):
            if not math.isfinite(figures[name]):
                raise GeofixError(
                    f"{name} is {figures[name]} at step {step + 1}: training stopped, its last checkpoint stays; lower "
                    f"the learning rate ({rate:.3g} here) or set train.precision=fp32, and run again"
                )
        progress.step += 1
        progress.history.append({"step": progress.step, **figures})
        self.observe(progress.step, figures)
        return figures

    def _gradients(self, optimizer: StochasticAdamW, progress: Progress) -> Pending:
        """Of the step; where they do not fit, once in this run, of the same samples in packs of half the length."""
        step = progress.step
        seed_step(self.settings.seed, step, self.ranks.rank)
        if not self.model.training:
            self.model.train()
        try:
            return self.program.gradients(step, progress)
        except torch.OutOfMemoryError:
            # The processes of one model take their passes together: one cannot begin again alone.
            if self.has_halved or self.ranks.count > 1 or not self.program.packs.halve():
                raise
        self.has_halved = True  # and the error with the tensors of its frames is gone
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        logger.warning(
            "step %d did not fit on the GPU: its samples are computed again in packs of at most %d tokens, and so are "
            "those of the steps after it; set train.pack_tokens to that",
            *(step + 1, self.program.packs.tokens),
        )
        return self._gradients(optimizer, progress)

    def _validate(self, progress: Progress) -> None:
        assert self.validate is not None
        self.model.eval()
        with torch.no_grad():
            figures = self.validate()
        best = max((_worth(validation) for validation in progress.validations), default=None)
        progress.validations.append({"step": progress.step, **figures})
        self.observe(progress.step, {f"validation/{name}": value for name, value in figures.items()})
        if progress.step and self.keep_best is not None and (best is None or _worth(figures) > best):
            progress.best_step = progress.step
            if progress.step < self.program.steps:  # the last one is saved anyway
                self.keep_best()

    def _optimizer(self) -> StochasticAdamW:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # As transformers' Trainer: biases and norms do not decay.
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return StochasticAdamW(
            [group for group in groups if group["params"]],
            max_norm=MAX_NORM,
            seed=self.settings.seed,
            states=self.settings.states,
            masters=self.settings.update == "masters",
            offload=self.settings.optimizer == "offload",
        )


def _device_peak() -> float | None:
    return peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """The same random numbers for the same seed and step, on every device; others for every process."""
    torch.manual_seed((seed * 1_000_003 + step + rank * 1_000_000_007) & 0x7FFF_FFFF_FFFF_FFFF)


def _worth(validation: Figures) -> tuple[float, float]:
    """By reward; among equal ones by the loss of the true answers."""
    return validation.get("reward", 0.0), -validation.get("loss", 0.0)


def _note(figures: Figures, left_s: float) -> str:
    parts = [f"{name} {figures[name]:.3g}" for name in ("loss", "reward") if name in figures]
    parts.append(f"{figures['tokens_per_s']:,.0f} tokens/s")
    if figures.get("rollout_seconds"):
        parts.append(f"{figures['rollout_seconds']:.1f} of {figures['seconds']:.1f} s for rollouts")
    if "mfu" in figures:
        parts.append(f"MFU {figures['mfu']:.2f}")
    left = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min" if left_s < 5400 else f"{left_s / 3600:.1f} h"
    return ", ".join([*parts, f"{left} left"])


ADAPTERS_STEP = -1  # of the seed that new adapters are drawn with


def prepare_model(model: Any, settings: TrainSettings, processor: Any = None) -> TrainableModel:
    """The model made ready in place: on its device, padded, with adapters where they are wanted.

    A model without a packed path needs its processor.
    """
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    is_packed = model.config.model_type in FAMILIES
    if is_packed:
        pad_vision(model)
    if settings.lora is not None:
        seed_step(settings.seed, ADAPTERS_STEP)
        add_adapters(model, settings.lora)
    kept, is_frozen = settings.gradient_checkpointing, settings.freeze == "vision"
    if is_packed:
        # What is not trained keeps no activations, so there is nothing to compute twice.
        vision_twice = kept != "none" and not is_frozen
        fast: TrainableModel = fast_model(model, checkpoint_vision=vision_twice, checkpoint_text=kept == "all")
    else:
        logger.warning(
            "'%s' has no packed path: it trains by transformers' own forward pass, one conversation at a time, slower "
            "than %s",
            *(model.config.model_type, ", ".join(FAMILIES)),
        )
        fast = PlainModel(model, processor)
        if kept == "all":
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if is_frozen:
        fast.vision.requires_grad_(False)
    return fast
