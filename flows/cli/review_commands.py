"""The reviewer's commands: approve and reject."""

import getpass
from typing import Annotated

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json

GROUP = "Review"

SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id, or its first 6 letters or more.")]
Reviewer = Annotated[str | None, typer.Option(metavar="NAME", show_default="your login name", help="Who decides.")]


def register(app: typer.Typer) -> None:
    """The reviewer's commands."""
    command(app, GROUP, ["geofix approve 3c44bc07", 'geofix approve 3c44bc07 --force --why "the map is right"'])(
        approve
    )
    command(app, GROUP, ['geofix reject 3c44bc07 --why "signs are mirrored"'])(reject)


def approve(
    call: Call,
    snapshot: SnapshotId,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="The reason; needed with --force.")] = None,
    reviewer: Reviewer = None,
    force: Annotated[bool, typer.Option("--force", help="Although a check failed, or a decision was made.")] = False,
) -> int:
    """Approve a snapshot, so that training may use it."""
    from flows.cli.lake import existing_lake
    from tasks import review

    lake = existing_lake(call)
    return _print(call, review.approve(lake, snapshot, reviewer or getpass.getuser(), why, force=force))


def reject(
    call: Call,
    snapshot: SnapshotId,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Why it must not be used.")],
    reviewer: Reviewer = None,
) -> int:
    """Reject a snapshot: training refuses it."""
    from flows.cli.lake import existing_lake
    from tasks import review

    return _print(call, review.reject(existing_lake(call), snapshot, reviewer or getpass.getuser(), why))


def _print(call: Call, row: dict[str, object]) -> int:
    if call.as_json:
        print_json({name: row[name] for name in ("snapshot_id", "status", "reviewer", "why")})
    elif not call.quiet:
        print(f"snapshot {row['snapshot_id']} is {row['status']} (by {row['reviewer']})")
    return DONE
