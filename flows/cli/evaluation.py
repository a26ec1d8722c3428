"""`geofix score`: metrics of files of predictions."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json

GROUP = "Score predictions"


def register(app: typer.Typer) -> None:
    """The command."""
    examples = [
        "geofix score predictions.csv",
        "geofix score base.jsonl trained.jsonl --json",
        "geofix score theirs.csv --columns lat=pred_lat,lon=pred_lon,true_lat=gt_lat,true_lon=gt_lon --by continent",
        "geofix score predictions.parquet --rows errors.csv",
    ]
    command(app, GROUP, examples)(score)


def score(
    call: Call,
    files: Annotated[
        list[Path], typer.Argument(help="jsonl, csv or Parquet: id, answer or lat+lon, true_lat, true_lon, …")
    ],
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="FIELD=COLUMN,…", help="What the fields are called in these files."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Also by country, continent or a column of the file."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", metavar="OUT", help="Write every prediction with its error, as .csv or .parquet."),
    ] = None,
) -> int:
    """Score the predictions of any system with every metric; of several files side by side, with paired tests."""
    from tasks.evaluate.file_report import render_report, render_side_by_side
    from tasks.evaluate.prediction_file import parse_columns
    from tasks.evaluate.predictions import compare_reports, score_file, write_rows

    named = parse_columns(columns)
    reports = [score_file(file, columns=named, by=by) for file in files]
    pairs = [(reports[0].file, other.file, compare_reports(reports[0], other)) for other in reports[1:]]
    if rows is not None:
        write_rows(reports, rows)
    if call.as_json:
        first_report = reports[0].to_dict()
        several = {
            "files": [report.to_dict() for report in reports],
            "differences": [
                {"first": first, "second": second, "metrics": [metric.as_row() for metric in metrics]}
                for first, second, metrics in pairs
            ],
        }
        print_json(several if pairs else first_report)
        return DONE
    for report in reports if not pairs or by else ():
        print(render_report(report) + "\n")
    if pairs:
        print(render_side_by_side(reports, pairs))
    return DONE
