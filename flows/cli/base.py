"""`geofix base`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import DONE, FAILED, Call
from flows.cli.options import command
from flows.cli.printing import print_json
from schemas.extras import require_extras

GROUP = "Servers and more"


def register(app: typer.Typer) -> None:
    """The command."""
    examples = ["geofix base my-base --seconds 600", "geofix base trial --steps 8 --places 12 --held-out 3 --batch 2"]
    command(app, GROUP, examples)(base)


def base(
    call: Call,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the model and its figures.")],
    start: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on from this model.", show_default="a new one")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long to train.")] = 480.0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many optimizer steps.", show_default="none")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of places, lessons and new weights.")] = 0,
    places: Annotated[int, typer.Option(min=1, help="Places whose signs are practised.")] = 12_000,
    held_out: Annotated[int, typer.Option(min=1, help="Pictures to measure with.")] = 600,
    batch: Annotated[int, typer.Option(min=1, help="Signs in one step.")] = 384,
    processes: Annotated[int | None, typer.Option(min=0, help="That paint.", show_default="all cores but one")] = None,
) -> int:
    """Pretrain a small model to see, on pictures of the offline world; useful with a GPU."""
    from flows.servers import OWN_MODULES

    require_extras("geofix base", "train", "offline")
    painting = max(0, (os.cpu_count() or 1) - 1) if processes is None else processes
    options: dict[str, object] = {"seconds": seconds, "seed": seed, "places": places, "held-out": held_out,
                                  "batch": batch, "processes": painting}  # fmt: skip
    options |= {name: value for name, value in (("start", start), ("steps", steps)) if value is not None}
    arguments = [str(output), *(f"--{name}={value}" for name, value in options.items())]
    # A program of its own, as the servers are: nothing here imports it.
    program = [sys.executable, "-m", "infra.pretrain", *arguments]
    if subprocess.run(program, env={**os.environ, **OWN_MODULES}, check=False).returncode:
        return FAILED
    if call.as_json:
        print_json({"folder": str(output)})
    elif not call.quiet:
        print(f"{output}: train with --set train.base={output}; figures.json says what it can see")
    return DONE
