"""The `geofix` command: the terminal face of the flows.

Exit codes: 0 done, 1 failed with a one-line reason, 2 wrong usage, 3 done but with failed rows to retry.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.command import Call, run_command

app = typer.Typer(
    name="geofix",
    help="Open street-view and satellite imagery in, a trained geo-localization agent out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from tasks.runtime.identity import code_version

        print(code_version())
        raise typer.Exit


@app.callback()
def geofix(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="The version of geofix, and exit.")
    ] = False,
) -> None:
    """Open street-view and satellite imagery in, a trained geo-localization agent out."""


ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="A YAML file of settings.")]
Recipe = Annotated[str | None, typer.Option(help="Which published system to follow (spotagent).")]
Profile = Annotated[str | None, typer.Option(help="offline or production.")]
LakeFolder = Annotated[
    str | None, typer.Option("--lake", metavar="URI", help="Folder of tables and images, or s3://bucket/prefix.")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one field; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and the logs of Prefect.")]


@app.command()
def demo(
    config: ConfigFile = None,
    lake: LakeFolder = None,
    overrides: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The whole pipeline, small, on the offline world; ends with where to look."""
    from flows.running import run_flow

    call = Call(config, None, "offline", lake, overrides, as_json, quiet, debug, demo=True)
    run_command(call, lambda: run_flow("pipeline", call))


@app.command()
def run(
    first: Annotated[str, typer.Option("--from", metavar="STAGE", help="First part to run.")] = "plan",
    last: Annotated[str, typer.Option("--to", metavar="STAGE", help="Last part to run.")] = "evaluate",
    config: ConfigFile = None,
    recipe: Recipe = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    overrides: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The pipeline or a part of it, resuming where it stopped."""
    from flows.running import check_stretch, run_flow

    call = Call(config, recipe, profile, lake, overrides, as_json, quiet, debug)

    def action() -> int:
        check_stretch(first, last)
        return run_flow("pipeline", call, first=first, last=last)

    run_command(call, action)


def _part_command(name: str, about: str) -> None:
    def command(
        config: ConfigFile = None,
        recipe: Recipe = None,
        profile: Profile = None,
        lake: LakeFolder = None,
        overrides: Set = None,
        as_json: Json = False,
        quiet: Quiet = False,
        debug: Debug = False,
    ) -> None:
        from flows.running import run_flow

        call = Call(config, recipe, profile, lake, overrides, as_json, quiet, debug)
        run_command(call, lambda: run_flow(name, call))

    app.command(name=name, help=about)(command)


def _collect(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate requests, bytes, time and API budget; fetch nothing.")
    ] = False,
    config: ConfigFile = None,
    recipe: Recipe = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    overrides: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    call = Call(config, recipe, profile, lake, overrides, as_json, quiet, debug)
    if dry_run:
        from flows.dry_run import dry_run as estimate

        run_command(call, lambda: estimate(call))
    from flows.running import run_flow

    run_command(call, lambda: run_flow("collect", call))


for _name, _about in {
    "refresh": "Plan, collect, curate and review: what a schedule runs.",
    "plan": "Choose the places to look at.",
    "collect": "Fetch pictures for the planned places; look again at those that are due.",
    "curate": "Keep what can be localized, with its address.",
    "review": "Check the tables, take a snapshot, write the report.",
    "synthesize": "Make tool-using trajectories, keep the good ones.",
    "difficulty": "Pass@K with the current policy.",
    "train": "SFT, cold start and GRPO on the approved snapshot.",
    "evaluate": "Answer the benchmark and score the answers.",
}.items():
    if _name == "collect":
        app.command(name=_name, help=_about)(_collect)
    else:
        _part_command(_name, _about)


@app.command()
def ingest(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, JSON lines or Parquet: path or url, lat, lon and more.")],
    layout: Annotated[
        str | None, typer.Option(help="plain, mp16-pro, im2gps3k, yfcc4k or osv5m; default: by the column names.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the pictures; default: where FILE is.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The dataset's name; default: the file's.")] = None,
    licence: Annotated[str | None, typer.Option(help="Of rows that name none, such as 'CC BY 4.0'.")] = None,
    attribution: Annotated[
        str | None, typer.Option(help="Of rows that name none; may hold {id}, {creator}, {licence}.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, validation or benchmark, for rows that name none; default: by cells.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Of a text table that is not UTF-8, such as cp1252.")] = None,
    swap_lat_lon: Annotated[bool, typer.Option("--swap-lat-lon", help="The two columns are exchanged.")] = False,
    keep_lat_lon: Annotated[bool, typer.Option("--keep-lat-lon", help="They are right, whatever it looks.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Let the file drop most photos it had before.")] = False,
    retry_refused: Annotated[
        bool, typer.Option("--retry-refused", help="Look again at refused pictures and addresses.")
    ] = False,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    overrides: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Bring in a table of photos with coordinates."""
    from flows.ingesting import run_ingest, with_options

    given = {
        **{"layout": layout, "images": images, "name": name, "licence": licence, "attribution": attribution},
        **{"split": split, "encoding": encoding, "swap_lat_lon": swap_lat_lon, "keep_lat_lon": keep_lat_lon},
        **{"replace": replace, "retry_refused": retry_refused},
    }
    call = with_options(Call(config, None, profile, lake, overrides, as_json, quiet, debug), given)
    run_command(call, lambda: run_ingest(file, call))


@app.command()
def approve(
    snapshot: Annotated[str, typer.Argument(help="The snapshot's id, or its first 6 letters or more.")],
    why: Annotated[str | None, typer.Option(help="A word on the decision; needed to overrule failed checks.")] = None,
    reviewer: Annotated[str | None, typer.Option(help="Who decides; default: the user's login name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Approve although a check failed.")] = False,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Let training use a snapshot."""
    from flows.looking import decide

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: decide(call, snapshot, approve=True, why=why, reviewer=reviewer, force=force))


@app.command()
def reject(
    snapshot: Annotated[str, typer.Argument(help="The snapshot's id, or its first 6 letters or more.")],
    why: Annotated[str, typer.Option(help="Why it must not be used.")],
    reviewer: Annotated[str | None, typer.Option(help="Who decides; default: the user's login name.")] = None,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep training away from a snapshot."""
    from flows.looking import decide

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: decide(call, snapshot, approve=False, why=why, reviewer=reviewer))


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="jsonl, csv or Parquet: id, answer or lat+lon, true_lat, true_lon, …")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score anybody's predictions with every metric."""
    from flows.looking import score_predictions

    call = Call(as_json=as_json, debug=debug)
    run_command(call, lambda: score_predictions(file, as_json))


@app.command()
def tables(
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What the lake holds."""
    from flows.looking import list_tables

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: list_tables(call))


@app.command()
def show(
    table: Annotated[str, typer.Argument(help="A table's name; `geofix tables` lists them.")],
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 10,
    version: Annotated[int | None, typer.Option(help="An older version of the table.")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Only such rows; repeatable.")] = None,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Rows of a table."""
    from flows.looking import show_table

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: show_table(call, table, limit, version, where or []))


@app.command()
def settings(
    name: Annotated[str | None, typer.Argument(help="A section or a field, such as plan or plan.places.")] = None,
    config: ConfigFile = None,
    recipe: Recipe = None,
    profile: Profile = None,
    overrides: Set = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What can be set: fields, values, meanings."""
    from flows.settings import show_settings

    call = Call(config, recipe, profile, None, overrides, as_json, True, debug)
    run_command(call, lambda: show_settings(call, name))


@app.command()
def trace(
    row_id: Annotated[
        str, typer.Argument(metavar="ID", help="Any row's id, or its beginning: sample, trajectory, image, place …")
    ],
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow a row back to the request that fetched its image."""
    from flows.looking import trace_row

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: trace_row(call, row_id))


@app.command()
def view(
    image_id: Annotated[str, typer.Argument(metavar="IMAGE_ID", help="A panorama, as `geofix show images` names it.")],
    yaw: Annotated[float | None, typer.Option(help="Degrees to the right of its middle; default 0.")] = None,
    bearing: Annotated[float | None, typer.Option(help="Instead of --yaw: degrees clockwise from north.")] = None,
    pitch: Annotated[float, typer.Option(help="Degrees up; down is negative.")] = 0.0,
    roll: Annotated[float, typer.Option(help="Degrees the camera is tipped clockwise.")] = 0.0,
    fov: Annotated[float, typer.Option(help="Horizontal field of view in degrees.")] = 90.0,
    size: Annotated[str, typer.Option(metavar="WxH", help="Width and height in pixels.")] = "1024x768",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write it there.")] = None,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Cut a perspective view from a panorama."""
    from flows.views import Wanted, view_panorama

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    wanted = Wanted(yaw, bearing, pitch, roll, fov, size, output)
    run_command(call, lambda: view_panorama(call, image_id, wanted))


@app.command()
def maintain(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    overrides: Set = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compact tables, delete what nothing needs."""
    from flows.upkeep import maintain_lake

    call = Call(config, None, profile, lake, overrides, as_json, True, debug)
    run_command(call, lambda: maintain_lake(call, dry_run))


@app.command()
def verify(
    quick: Annotated[bool, typer.Option("--quick", help="Look whether files exist; read none of them.")] = False,
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check tables, references, pictures and checkpoints."""
    from flows.upkeep import verify_lake

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: verify_lake(call, quick))


@app.command()
def up(
    config: ConfigFile = None,
    profile: Profile = None,
    lake: LakeFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Prefect server, worker, schedules and the offline world, in the background."""
    from flows import background

    call = Call(config, None, profile, lake, None, as_json, True, debug)
    run_command(call, lambda: background.up(call))


@app.command()
def down(config: ConfigFile = None, profile: Profile = None, lake: LakeFolder = None, debug: Debug = False) -> None:
    """Stop what `geofix up` started."""
    from flows import background

    call = Call(config, None, profile, lake, None, False, True, debug)
    run_command(call, lambda: background.down(call))


# Its options are those of the server, which also explains them.
@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def offline(context: typer.Context) -> None:
    """Serve the offline world on loopback."""
    from infra.offline.server import main as serve

    raise SystemExit(serve(context.args))


@app.command()
def version() -> None:
    """The version of geofix."""
    from tasks.runtime.identity import code_version

    print(code_version())


def main() -> Any:
    """Entry point of the command."""
    app()


if __name__ == "__main__":
    main()
