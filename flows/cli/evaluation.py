"""`geofix score`: metrics of a file of predictions."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json

GROUP = "Score predictions"


def register(app: typer.Typer) -> None:
    """The command."""
    command(app, GROUP, ["geofix score predictions.csv", "geofix score predictions.jsonl --json"])(score)


def score(
    call: Call,
    file: Annotated[Path, typer.Argument(help="jsonl, csv or Parquet: id, answer or lat+lon, true_lat, true_lon, …")],
) -> int:
    """Score the predictions of any system with every metric."""
    from tasks.evaluate.predictions import render_report, score_file

    report = score_file(file)
    if call.as_json:
        print_json(report.to_dict())
    else:
        print(render_report(report))
    return DONE
