"""Which GPU trains a 7B model: one GPU's memory capped at 24, 48, 80 and 141 GB, what `auto` chooses and what it takes.

Qwen2.5-VL-7B's shape with random weights and 2 Mpx pictures: SFT (3,062 tokens a sample), cold start (two pictures,
6,600 tokens) and GRPO (4 prompts x 8 rollouts x 128 tokens), all weights and LoRA of rank 64. Every card is a process
of its own. The forecast of every cell is printed; a few steps are taken of those in MEASURED (--all: of all that fit).
--forecast: the forecasts alone, without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.goals import Goal, judge
from bench.qwen_gpu import NOT_RUN, SHAPES, no_gpu, random_model, random_sample
from schemas.settings.train import ColdStartSettings, GrpoSettings, LoraSettings, TrainingPhase, TrainSettings
from schemas.settings.train import TunerSettings as Tuner
from tasks.train.grpo import Grpo, Reference
from tasks.train.loop import Loop, prepare_model
from tasks.train.memory import GIB, OVERHEAD_GIB, ROOM, Needed, Shape, fit, fit_text
from tasks.train.rollouts.engines import Engines
from tasks.train.rollouts.source import EmbeddedRollouts, Judged
from tasks.train.supervised import Supervised

CARDS = (80, 24, 48, 141)  # GB, in the order of what is asked most
MODEL = SHAPES["qwen2.5-vl-7b"]
PHASES: tuple[TrainingPhase, ...] = ("sft", "cold_start", "grpo")
TEXT = {"sft": 512, "cold_start": 1500, "grpo": 128}
PICTURES = {"sft": 1, "cold_start": 2, "grpo": 1}
BATCH, SAMPLES = 4, 8
GROUPS, SIZE, NEW_TOKENS = 4, 8, 128
STEPS = {"sft": 4, "cold_start": 3, "grpo": 2}
MEASURED = {
    24: ("lora sft", "lora grpo", "lora cold_start"),
    48: ("whole grpo", "whole sft"),
    80: ("whole grpo", "whole sft", "whole cold_start", "lora grpo"),
    141: ("whole sft", "whole grpo"),
}
WITHIN = 0.10
MARK = "CELL "


@dataclass
class Cell:
    """One phase on one card."""

    card: int
    trained: str
    phase: TrainingPhase
    chosen: str
    forecast_gib: float
    fits: bool
    peak_gib: float = 0.0  # what torch allocated, and CUDA's own
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    trouble: str = ""

    @property
    def name(self) -> str:
        return f"{self.trained} {self.phase}"

    @property
    def off(self) -> float:
        """The forecast's error as a share of the peak."""
        return self.forecast_gib / self.peak_gib - 1

    def line(self) -> str:
        if self.peak_gib:
            said = f"{self.peak_gib:6.1f} {self.off:+6.1%} {self.step_s:6.2f} {self.tokens_per_s:8,.0f}"
        else:
            said = f"{'-':>6} {'-':>6} {'-':>6} {'-':>8}"
        fits = "yes" if self.fits else "no"
        start = f"   {self.card:>4} GB {self.name:<17} {fits:<4} {self.forecast_gib:7.1f} {said}"
        return f"{start}  {self.trouble or self.chosen}"


def settings_of(trained: str) -> TrainSettings:
    grpo = GrpoSettings(
        max_steps=STEPS["grpo"], group_size=SIZE, prompts_per_generation=GROUPS, prompts_per_step=GROUPS,
        micro_batch=16, max_completion_tokens=NEW_TOKENS, rollout_groups=GROUPS, patience=None, engine="embedded",
    )  # fmt: skip
    same: dict[str, Any] = {"batch_size": BATCH, "micro_batch": BATCH, "warmup_share": 0.0, "schedule": "constant"}
    return TrainSettings(
        sft=Tuner(max_steps=STEPS["sft"], **same), cold_start=ColdStartSettings(max_steps=STEPS["cold_start"], **same),
        grpo=grpo, lora=LoraSettings() if trained == "lora" else None,
    )  # fmt: skip


def planned(card: int, trained: str, phase: TrainingPhase) -> tuple[TrainSettings, Needed, Cell]:
    """What auto chooses for a phase on a card."""
    room = ROOM * card * 1e9
    shape = Shape.of(MODEL.config().to_dict())
    chosen, needed = fit(shape, settings_of(trained), phase, TEXT[phase], PICTURES[phase], SAMPLES, room)
    cell = Cell(card, trained, phase, fit_text(chosen, phase), needed.total / GIB, needed.total <= room)
    return chosen, needed, cell


def cells_of(card: int) -> list[Cell]:
    return [planned(card, trained, phase)[2] for trained in ("whole", "lora") for phase in PHASES]


def measure(cell: Cell) -> Cell:
    """The cell with what a few steps took."""
    settings, _, _ = planned(cell.card, cell.trained, cell.phase)
    torch.cuda.reset_peak_memory_stats()
    model = random_model(MODEL.config())
    fast = prepare_model(model, settings)
    text = TEXT[cell.phase]
    count = GROUPS if cell.phase == "grpo" else SAMPLES
    prompt = text if cell.phase == "grpo" else 128
    samples = [random_sample(n, text=text, prompt=prompt, pictures=PICTURES[cell.phase]) for n in range(count)]
    if cell.phase == "grpo":
        rollouts = EmbeddedRollouts(
            Engines(fast, [], settings.grpo.rollout_groups * SIZE), lambda ids: "", SIZE, NEW_TOKENS, 1.0
        )
        reference = Reference(fast, settings.lora is not None, settings.grpo.reference == "offload")
        program: Any = Grpo(
            fast, samples.__getitem__, [{"phase": None}] * count, settings, rollouts,
            lambda pairs: [Judged(float(n % SIZE)) for n, _ in enumerate(pairs)], reference,
        )  # fmt: skip
    else:
        tuner = settings.sft if cell.phase == "sft" else settings.cold_start
        program = Supervised(fast, samples.__getitem__, count, settings, tuner)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(model, program, settings, Path(folder))
        last = loop.run().history[-1]
    cell.peak_gib = torch.cuda.max_memory_allocated() / GIB + OVERHEAD_GIB
    cell.step_s, cell.tokens_per_s = last["seconds"], last["tokens_per_s"]
    cell.trouble = "out of memory once: packs were halved" if loop.has_halved else ""
    return cell


def measure_card(card: int, is_all: bool, until: float) -> None:
    """In a process of its own: print a line for each cell."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (card * 1e9 - OVERHEAD_GIB * GIB) / total))
    cells = {cell.name: cell for cell in cells_of(card)}
    wanted = list(cells) if is_all else MEASURED[card]
    for name, cell in sorted(cells.items(), key=lambda one: wanted.index(one[0]) if one[0] in wanted else len(cells)):
        if cell.fits and name in wanted:
            began = time.monotonic()
            if began > until:
                cell.trouble = "not measured: no time was left"
            else:
                try:
                    measure(cell)
                except torch.OutOfMemoryError as error:
                    cell.trouble = f"out of memory: {str(error).splitlines()[0]}"
                gc.collect()
                torch.cuda.empty_cache()
                print(f"   {card} GB {name}: {time.monotonic() - began:.0f} s", flush=True)
        print(MARK + json.dumps(asdict(cell)), flush=True)


def measured(card: int, is_all: bool, until: float) -> list[Cell]:
    """The cells of a card, from its process."""
    command = [sys.executable, "-m", "bench.cards", "--card", str(card), "--until", str(until)]
    found = []
    with subprocess.Popen([*command, *(["--all"] if is_all else [])], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                found.append(Cell(**json.loads(line.removeprefix(MARK))))
            else:
                print(line, end="", flush=True)
    known = {cell.name for cell in found}
    lost = [cell for cell in cells_of(card) if cell.name not in known]
    for cell in lost:
        cell.trouble = f"its process ended with {process.returncode}"
    return [*found, *lost]


def show(cells: Sequence[Cell]) -> None:
    print(f"   {'card':>7} {'phase':<17} {'fits':<4} {'said':>7} {'peak':>6} {'off':>6} {'s/step':>6} {'tokens/s':>8}  "
          "what auto chose (GiB)", flush=True)  # fmt: skip
    for cell in sorted(cells, key=lambda one: one.card):
        print(cell.line(), flush=True)


def goals(cells: Sequence[Cell]) -> list[Goal]:
    fits = {(one.card, one.name): one.fits for one in cells}
    found = [
        Goal(
            "cells with trouble where the forecast said that they fit",
            sum(bool(one.trouble) for one in cells),
            at_most=0,
        ),
        *(
            Goal(f"{one.card} GB {one.name}: share by which the forecast is off", abs(one.off), at_most=WITHIN)
            for one in cells
            if one.peak_gib
        ),
    ]
    for card, name in ((24, "lora sft"), (24, "lora grpo"), (80, "whole grpo")):
        if (card, name) in fits:
            found.append(Goal(f"{name} fits {card} GB", float(fits[card, name]), at_least=1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=int, nargs="+", choices=CARDS, default=CARDS, help="GB")
    parser.add_argument("--forecast", action="store_true", help="no steps: what auto would choose")
    parser.add_argument("--all", action="store_true", help="steps of every cell that fits")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no cell is begun")
    parser.add_argument("--card", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.forecast:
        cells = [cell for card in given.memory for cell in cells_of(card)]
        show(cells)
        return judge(goals(cells))
    if no_gpu():
        return NOT_RUN
    if given.card:
        measure_card(given.card, given.all, given.until)
        return 0
    until = time.monotonic() + 60 * given.minutes
    cells = [cell for card in given.memory for cell in measured(card, given.all, until)]
    show(cells)
    return judge(goals(cells))


if __name__ == "__main__":
    raise SystemExit(main())
