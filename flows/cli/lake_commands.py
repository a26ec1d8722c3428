"""Commands that look into the lake and bring photos into it: ingest, tables, show, trace, view, settings."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Call
from flows.cli.options import command

GROUP = "Look into the lake"
BRING_IN = "Bring in photos"
KEEP = "Keep the lake in order"
# As in schemas.settings.ingest, whose pydantic takes longer to import than help may.
LAYOUTS = "plain, mp16-pro, im2gps3k, yfcc4k, osv5m, geocomp, imageo-2, street-view-text"


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def register(app: typer.Typer) -> None:
    """The commands."""
    command(
        app,
        BRING_IN,
        [
            'geofix ingest photos.csv --licence "CC BY 4.0" --attribution "City archive"',
            "geofix ingest im2gps3k.csv",
            "geofix ingest phone/ --licence CC0-1.0 --attribution 'Jane Doe'",
        ],
    )(ingest)
    command(app, GROUP, ["geofix tables", "geofix tables --lake /data/lake --json"])(tables)
    command(
        app,
        GROUP,
        [
            "geofix show images --where kind=panorama --limit 3",
            "geofix show scores --columns policy,metric,value",
            "geofix show trajectories --format csv --limit 1000 > trajectories.csv",
        ],
    )(show)
    command(app, GROUP, ["geofix trace 3c44bc07"])(trace)
    command(app, GROUP, ["geofix view 3c44bc07 --yaw 90 --fov 75 -o view.jpg"])(view)
    command(app, GROUP, ["geofix settings", "geofix settings plan", "geofix settings plan.places"])(settings)
    command(app, KEEP, ["geofix maintain --dry-run", "geofix maintain"])(maintain)
    command(app, KEEP, ["geofix migrate --dry-run", "geofix migrate"])(migrate)
    command(app, KEEP, ["geofix backup /backups/lake", "geofix backup s3://bucket/backup --lake /data/lake"])(backup)
    command(app, KEEP, ["geofix restore /backups/lake --lake /data/lake"])(restore)
    command(app, KEEP, ["geofix verify", "geofix verify --quick --lake s3://bucket/lake"])(verify)


def backup(
    call: Call,
    to: Annotated[str, typer.Argument(metavar="TO", help="A folder or s3://bucket/…: empty, or an earlier backup.")],
    quick: Annotated[bool, typer.Option("--quick", help="Afterwards look whether files exist; read none.")] = False,
) -> int:
    """Copy the lake, also while it is being worked on, and check the copy. A second time only what is new."""
    from flows.cli.lake import back_up

    return back_up(call, to, quick)


def restore(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A backup: a folder or s3://bucket/…")],
    quick: Annotated[bool, typer.Option("--quick", help="Afterwards look whether files exist; read none.")] = False,
) -> int:
    """Copy a backup to the place of the lake, which must be empty, and check it."""
    from flows.cli.lake import restore_lake

    return restore_lake(call, source, quick)


def ingest(
    call: Call,
    file: Annotated[Path, typer.Argument(help="A table (CSV, TSV, JSON, Parquet) or a folder of photos.")],
    layout: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="by the column names", help=f"One of {LAYOUTS}."),
    ] = None,
    images: Annotated[
        str | None, typer.Option(metavar="DIR", show_default="where FILE is", help="Folder of the pictures.")
    ] = None,
    name: Annotated[str | None, typer.Option(show_default="the file's", help="The dataset's name.")] = None,
    licence: Annotated[str | None, typer.Option(help="Of rows that name none, such as 'CC BY 4.0'.")] = None,
    attribution: Annotated[
        str | None, typer.Option(help="Of rows that name none; may hold {id}, {creator}, {licence}.")
    ] = None,
    purpose: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="PURPOSE",
            show_default="the layout's, else pool",
            help="benchmark or training: a published set that stays whole; pool: pictures to choose from.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(show_default="by cells", help="train, validation or benchmark, for rows that name none."),
    ] = None,
    encoding: Annotated[str | None, typer.Option(show_default="UTF-8", help="Of a text table, such as cp1252.")] = None,
    swap_lat_lon: Annotated[bool, typer.Option("--swap-lat-lon", help="The two columns are exchanged.")] = False,
    keep_lat_lon: Annotated[
        bool, typer.Option("--keep-lat-lon", help="They are right although they look odd.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Let the file drop most photos it had before.")] = False,
    retry_refused: Annotated[
        bool, typer.Option("--retry-refused", help="Look again at refused pictures and addresses.")
    ] = False,
) -> int:
    """Bring in a table of photos with coordinates, or a folder of photos that hold their own."""
    from flows.cli.ingest import run_ingest, with_options

    chosen = {
        **{"layout": layout, "images": images, "name": name, "licence": licence, "attribution": attribution},
        **{"purpose": purpose, "split": split, "encoding": encoding, "swap_lat_lon": swap_lat_lon},
        **{"keep_lat_lon": keep_lat_lon, "replace": replace, "retry_refused": retry_refused},
    }
    return run_ingest(file, with_options(call, chosen))


def tables(call: Call) -> int:
    """List the tables of the lake: rows, versions, what they hold."""
    from flows.cli.lake import list_tables

    return list_tables(call)


def show(
    call: Call,
    table: Annotated[str, typer.Argument(help="A table's name; `geofix tables` lists them.")],
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", show_default="those that fit", help="Columns to print; `all` for every one."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 10,
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Only rows with this value; repeatable.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(show_default="the newest", help="An older version of the table.")
    ] = None,
    format: Annotated[
        Format, typer.Option(help="table shortens long values, csv and json print them whole.")
    ] = Format.table,
) -> int:
    """Print rows of a table."""
    from flows.cli.show import show_table

    form = "json" if call.as_json else format.value
    return show_table(call, table, columns=columns, limit=limit, where=where or (), version=version, form=form)


def settings(
    call: Call,
    name: Annotated[
        str | None,
        typer.Argument(show_default="all sections", help="A section or a field, such as plan or plan.places."),
    ] = None,
) -> int:
    """List what can be set: fields, values, meanings."""
    from flows.cli.settings import show_settings

    return show_settings(call, name)


def trace(
    call: Call,
    row_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Any row's id or its first 6 letters: sample, trajectory, image, place …"),
    ],
) -> int:
    """Follow a row back to the request that fetched its image."""
    from flows.cli.lake import trace_row

    return trace_row(call, row_id)


def view(
    call: Call,
    image_id: Annotated[str, typer.Argument(metavar="IMAGE", help="A panorama's id, or its first 6 letters or more.")],
    yaw: Annotated[
        float | None, typer.Option(show_default="0", help="Degrees to the right of the panorama's middle.")
    ] = None,
    bearing: Annotated[float | None, typer.Option(help="Instead of --yaw: degrees clockwise from north.")] = None,
    pitch: Annotated[float, typer.Option(help="Degrees up; down is negative.")] = 0.0,
    roll: Annotated[float, typer.Option(help="Degrees the camera is tipped clockwise.")] = 0.0,
    fov: Annotated[float, typer.Option(help="Horizontal field of view in degrees.")] = 90.0,
    size: Annotated[str, typer.Option(metavar="WxH", help="Width and height in pixels.")] = "1024x768",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default="view-IMAGE-….jpg", help="File to write."),
    ] = None,
) -> int:
    """Cut a perspective view from a panorama."""
    from flows.cli.view import view_panorama

    return view_panorama(
        call, image_id, yaw=yaw, bearing=bearing, pitch=pitch, roll=roll, fov=fov, size=size, output=output
    )


def maintain(
    call: Call, dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False
) -> int:
    """Compact tables, delete what nothing needs."""
    from flows.cli.lake import maintain_lake

    return maintain_lake(call, dry_run)


def migrate(
    call: Call, dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False
) -> int:
    """Bring the tables of a lake that an earlier release wrote to this one's columns."""
    from flows.cli.lake import migrate_lake

    return migrate_lake(call, dry_run)


def verify(
    call: Call,
    quick: Annotated[bool, typer.Option("--quick", help="Look whether files exist; read none of them.")] = False,
) -> int:
    """Check tables, references, pictures and checkpoints."""
    from flows.cli.lake import verify_lake

    return verify_lake(call, quick)
