"""`geofix train --dry-run`: samples, steps and GPU memory of each phase, and what to change where it does not fit."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.session import check_before
from schemas.errors import GeofixError
from tasks.train.fitting import Forecast, forecast
from tasks.train.memory import GIB, Gpu, gpus

REFUSED = 1


def train_dry_run(call: Call) -> int:
    """Estimate and print; nothing is loaded and nothing written. The exit code is 1 where a phase fits no GPU."""
    config = call.options().resolve()
    check_before(config, ["train"])
    lake = existing_lake(call)
    samples = lake.read("samples")
    if samples.is_empty():
        raise GeofixError(
            f"lake '{lake.uri}' has no training samples yet: run `geofix run --to difficulty` and the first train first"
        )
    found, seen = forecast(samples, config.train), gpus()
    largest = max(seen, key=lambda gpu: gpu.total, default=None)
    if call.as_json:
        print_json({"stages": [_as_json(one, largest) for one in found], "gpus": [asdict(gpu) for gpu in seen]})
    else:
        _show(found, seen, largest)
    return REFUSED if largest is not None and not all(one.fits(largest) for one in found) else DONE


def _as_json(one: Forecast, gpu: Gpu | None) -> dict[str, Any]:
    bytes_of = {name: round(value) for name, value in asdict(one.memory).items()}
    return {
        "training_stage": one.phase,
        "samples": one.samples,
        "steps": one.steps,
        "longest_text_tokens": one.text_tokens,
        "bytes": {**bytes_of, "total": round(one.memory.total)},
        "fits": None if gpu is None else one.fits(gpu),
        "advice": None if gpu is None or one.fits(gpu) else one.advice,
    }


def _show(found: list[Forecast], seen: list[Gpu], largest: Gpu | None) -> None:
    console = Console(highlight=False)
    table = Table(box=None, header_style="bold")
    names = ("weights", "gradients", "states", "reference", "activations", "key_cache")
    for column in ("phase", "samples", "steps", "weights", "grads", "states", "ref.", "activ.", "cache", "total GiB"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for one in found:
        parts = [f"{getattr(one.memory, name) / GIB:,.1f}" for name in names]
        total = f"{one.memory.total / GIB:,.1f}"
        table.add_row(one.phase, f"{one.samples:,}", f"{one.steps:,}", *parts, total)
    console.print(table)
    for gpu in seen:
        console.print(
            f"GPU {gpu.index}: {gpu.name}, {gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free", soft_wrap=True
        )
    if largest is None:
        console.print("No GPU here: training would run on the CPU. Nothing was loaded and nothing written.")
        return
    for one in found:
        if not one.fits(largest):
            console.print(
                f"{one.phase} does not fit: it takes {one.memory.total / GIB:.0f} GiB of "
                f"{largest.total / GIB:.0f}; set {one.advice}",
                soft_wrap=True,
            )
        elif one.memory.total > largest.free:
            console.print(f"{one.phase} fits GPU {largest.index} once other processes leave it", soft_wrap=True)
    console.print("Nothing was loaded and nothing written.")
