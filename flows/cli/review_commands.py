"""The reviewer's commands: approve and reject."""

import getpass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json

if TYPE_CHECKING:
    from tasks.lake import Lake

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
    return _decided(call, lake, review.approve(lake, snapshot, reviewer or getpass.getuser(), why, force=force))


def reject(
    call: Call,
    snapshot: SnapshotId,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Why it must not be used.")],
    reviewer: Reviewer = None,
    force: Annotated[bool, typer.Option("--force", help="Although a decision was made.")] = False,
) -> int:
    """Reject a snapshot: training refuses it."""
    from flows.cli.lake import existing_lake
    from tasks import review

    lake = existing_lake(call)
    return _decided(call, lake, review.reject(lake, snapshot, reviewer or getpass.getuser(), why, force=force))


def _decided(call: Call, lake: "Lake", row: "dict[str, Any]") -> int:
    from flows.background import resume_flow_runs

    resumed = resume_flow_runs(lake, row)
    if call.as_json:
        print_json({name: row[name] for name in ("snapshot_id", "status", "reviewer", "why")} | {"resumed": resumed})
    elif not call.quiet:
        print(f"snapshot {row['snapshot_id']} is {row['status']} (by {row['reviewer']})")
        for name in resumed:
            print(f"flow run {name} continues")
    return DONE
