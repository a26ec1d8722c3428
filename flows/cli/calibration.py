"""`geofix calibrate`: the judges against people."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json

GROUP = "Review"


def register(app: typer.Typer) -> None:
    """The command."""
    command(app, GROUP, ["geofix calibrate labels.csv", "geofix calibrate labels.csv --set curate.labels.votes=all"])(
        calibrate
    )


def calibrate(
    call: Call,
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="CSV of image_id or sha256, and localizable: yes or no.")
    ],
) -> int:
    """Compare the judges' verdicts with people's labels: precision, recall, kappa and the best threshold."""
    from flows.cli.lake import existing_lake
    from flows.cli.program import program
    from tasks.curate.calibrate import calibrate as compare
    from tasks.curate.calibrate import render

    lake = existing_lake(call)
    chosen = call.options().resolve().curate.labels
    found = compare(lake, labels, chosen.votes, chosen.min_score)
    if call.as_json:
        print_json({"judges": [one.to_dict() for one in found]})
    else:
        print(render(found, lambda image_id: f"{program()} view {image_id[:12]}"))
    return DONE
