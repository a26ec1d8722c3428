"""`geofix benchmark`: draw the fresh pictures of a month, sign them, and check what was signed."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command import DONE, FAILED, Call, UsageError
from flows.cli.evaluation import GROUP
from flows.cli.options import Snapshot, command
from flows.cli.printing import print_json
from schemas.errors import InputError

if TYPE_CHECKING:
    from tasks.lake import Lake


def register(app: typer.Typer) -> None:
    """The command."""
    examples = [
        "geofix benchmark --set benchmark.cutoff=2025-06-30",
        "geofix benchmark --month 2026-10 --set 'benchmark.models=[my-model]' "
        "--set 'benchmark.cutoffs={my-model: 2025-06-30}'",
        "geofix benchmark --verify",
        "geofix benchmark --verify --folder lake/reports/benchmarks/2026-10 --key 9f86d081884c7d65…",
    ]
    command(app, GROUP, examples)(benchmark)


def benchmark(
    call: Call,
    month: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM", show_default="the last that is over", help="Whose pictures are drawn."),
    ] = None,
    snapshot: Snapshot = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check signatures, bytes and positions of all months; draw nothing.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --verify: a published month instead of this lake's.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="HEX", help="With --folder: the public key you know, not the folder's own.")
    ] = None,
) -> int:
    """Draw and sign a month's benchmark: pictures newer than a model's cut-off, away from all training."""
    from flows.cli.lake import existing_lake

    if (folder or key) and not verify:
        raise UsageError("--folder and --key are for --verify")
    if folder is not None:
        return _verify_folder(call, folder, key)
    lake = existing_lake(call, read_only=verify)
    return _verify_lake(call, lake) if verify else _draw(call, lake, month, snapshot)


def _draw(call: Call, lake: "Lake", month: str | None, snapshot: str | None) -> int:
    from tasks.evaluate.benchmark_files import draw_month
    from tasks.review import newest_snapshot, renew_site
    from tasks.runtime.runner import Context
    from tasks.runtime.snapshots import approved_snapshot
    from tasks.services import connect

    own = [f"benchmark.month={month}"] if month else []
    config = dataclasses.replace(call, overrides=[*own, *(call.overrides or [])]).options().resolve()
    context = Context(lake, connect(config.services, {}, ()), snapshot=approved_snapshot(lake, snapshot))
    result, drawn = draw_month(context, config.benchmark)
    row = newest_snapshot(lake)
    if row is not None:
        renew_site(lake, row)
    if call.as_json:
        print_json(
            {"benchmark": drawn and {**drawn.manifest, "folder": drawn.folder}, "rejected": result.total_rejects}
        )
    elif drawn is None:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in result.total_rejects.items())
        print(f"no picture of the month can be used: {reasons or 'none was captured in these days'}")
    elif not call.quiet:
        print(f"{drawn.card}\nwritten to {drawn.folder}")
        print("next        geofix evaluate   scores by month are in the site's page “Fresh benchmark”")
    return DONE if drawn else FAILED


def _verify_folder(call: Call, folder: Path, key: str | None) -> int:
    from tasks.evaluate.benchmark_files import CARD, MANIFEST, SIGNATURE, check_files

    try:
        files = {name: (folder / name).read_text("utf-8") for name in (MANIFEST, SIGNATURE, CARD)}
    except (OSError, ValueError) as error:
        raise InputError(f"--folder {folder}: {getattr(error, 'strerror', None) or error}") from error
    manifest = check_files(files, key)
    if call.as_json:
        print_json({"month": manifest["month"], "pictures": manifest["counts"]["kept"], "problems": []})
    else:
        print(f"{manifest['month']}: {manifest['counts']['kept']:,} pictures, as signed")
        if key is None:
            print(
                "the key is the folder's own: it shows that nothing changed, not who signed; compare it or give --key"
            )
    return DONE


def _verify_lake(call: Call, lake: "Lake") -> int:
    from tasks.evaluate.benchmark_files import check_months

    months = check_months(lake)
    if call.as_json:
        print_json([dataclasses.asdict(month) for month in months])
    else:
        for month in months:
            withdrawn = f", {month.withdrawn:,} withdrawn since" if month.withdrawn else ""
            verdict = "WRONG" if month.problems else "as signed"
            print(f"{month.month}: {month.pictures:,} pictures, {verdict}{withdrawn}")
            for problem in month.problems:
                print(f"  {problem}")
        if not months:
            print("no month was drawn yet; run: geofix benchmark")
    return FAILED if any(month.problems for month in months) else DONE
