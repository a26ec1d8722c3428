"""`geofix export`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json

FORMS = "hf, webdataset, geoparquet or croissant"


def register(app: typer.Typer) -> None:
    """The command."""
    examples = ["geofix export 3c44bc07 --as hf", "geofix export 3c44bc07 --as geoparquet --out /data/published"]
    command(app, "Review", examples)(export)


def export(
    call: Call,
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id, or its first 6 letters or more.")],
    form: Annotated[str, typer.Option("--as", metavar="FORMAT", help=f"{FORMS}.")] = "hf",
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", show_default="geofix-SNAPSHOT-FORMAT", help="A new folder.")
    ] = None,
) -> int:
    """Publish an approved snapshot with its pictures, licences and a dataset card."""
    from flows.cli.lake import existing_lake
    from tasks.review.export import export as write

    lake = existing_lake(call, read_only=True)
    done = write(lake, snapshot, form, Path(out or f"geofix-{snapshot}-{form}"))
    if call.as_json:
        print_json({**dataclasses.asdict(done), "folder": str(done.folder)})
    elif not call.quiet:
        print(f"{done.pictures:,} pictures of snapshot {done.snapshot_id} as {done.form}")
        print(
            f"{done.files:,} files, {done.bytes / 1e6:,.1f} MB in {done.folder}; {done.folder / 'README.md'} says how"
        )
    return DONE
