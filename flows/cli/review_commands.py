"""Commands about snapshots and labels: approve, reject, calibrate, export, withdraw; and marks of people."""

import dataclasses
import functools
import getpass
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command import DONE, Call, UsageError
from flows.cli.options import command
from flows.cli.printing import print_json, program
from schemas.errors import InputError, LakeUnwritable, NotFound

if TYPE_CHECKING:
    from tasks.agent.recording import Written
    from tasks.lake import Lake

GROUP = "Review"
FORMS = "hf, webdataset, geoparquet or croissant"
TOOLS = "frozen-tools"  # what services answered to agents

SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id, or its first 6 letters or more.")]
Reviewer = Annotated[str | None, typer.Option(metavar="NAME", show_default="your login name", help="Who decides.")]


def register(app: typer.Typer) -> None:
    """The commands."""
    for function, examples in (
        (approve, ["geofix approve 3c44bc07", 'geofix approve 3c44bc07 --force --why "the map is right"']),
        (reject, ['geofix reject 3c44bc07 --why "signs are mirrored"']),
        (calibrate, ["geofix calibrate labels.csv", "geofix calibrate labels.csv --set curate.labels.votes=all"]),
        (
            export,
            [
                "geofix export 3c44bc07 --as hf",
                "geofix export 3c44bc07 --as geoparquet --out /data/published",
                "geofix export 3c44bc07 --as hf --with-tools",
                "geofix export --as frozen-tools --out tools.sqlite",
            ],
        ),
        (
            withdraw,
            [
                'geofix withdraw 5f0c21ab90 --why "a face is visible"',
                'geofix withdraw creator:walker --why "asked by the creator"',
                'geofix withdraw "licence:CC BY-SA 4.0" --why "not ours to publish"',
            ],
        ),
    ):
        command(app, GROUP, examples)(function)


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


def calibrate(
    call: Call,
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="CSV of image_id or sha256, and localizable: yes or no.")
    ],
) -> int:
    """Compare the judges' verdicts with people's labels: precision, recall, kappa and the best threshold."""
    from flows.cli.lake import existing_lake
    from tasks.curate.calibrate import calibrate as compare
    from tasks.curate.calibrate import render

    lake = existing_lake(call)
    chosen = call.options().resolve().curate.labels
    comparison = compare(lake, labels, chosen.votes, chosen.min_score)
    if call.as_json:
        print_json({"judges": [judge.to_dict() for judge in comparison]})
    else:
        print(render(comparison, lambda image_id: f"{program()} view {image_id[:12]}"))
    return DONE


def export(
    call: Call,
    snapshot: Annotated[
        str | None, typer.Argument(metavar="SNAPSHOT", help="Its id, or its first 6 letters; none for frozen-tools.")
    ] = None,
    form: Annotated[str, typer.Option("--as", metavar="FORMAT", help=f"{FORMS}; or {TOOLS}.")] = "hf",
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", show_default="geofix-SNAPSHOT-FORMAT", help="A new folder.")
    ] = None,
    with_tools: Annotated[
        bool, typer.Option("--with-tools", help="With what tools were answered about its pictures.")
    ] = False,
) -> int:
    """Publish an approved snapshot with its pictures, licences and a dataset card; or what tools answered.

    With frozen-tools one file is written, which services.tools.recording names: agents are then trained and measured
    without asking any service.
    """
    from flows.cli.lake import existing_lake
    from tasks.review.export import export as write

    if form == TOOLS:
        return _export_tools(call, Path(out or "tools.sqlite"))
    if snapshot is None:
        raise UsageError(f"name the snapshot to publish: geofix export SNAPSHOT --as {form}")
    lake = existing_lake(call)
    done = write(lake, snapshot, form, Path(out or f"geofix-{snapshot}-{form}"), _asked(call) if with_tools else None)
    if call.as_json:
        print_json({**dataclasses.asdict(done), "folder": str(done.folder)})
    elif not call.quiet:
        print(f"{done.pictures:,} pictures of snapshot {done.snapshot_id} as {done.form}")
        if done.tools is not None:
            print(f"{done.tools.answers:,} answers of tools about them; {_left_out(done.tools)}")
        print(
            f"{done.files:,} files, {done.bytes / 1e6:,.1f} MB in {done.folder}; {done.folder / 'README.md'} says how"
        )
    return DONE


def _asked(call: Call) -> tuple[str, str]:
    """Whom the tools ask: for texts, and by parts of pictures."""
    from tasks.agent.service_tools import asked_services
    from tasks.services import connect

    connections = connect(call.options().resolve().services, {}, ())
    return asked_services(connections), asked_services(connections, of_pictures=True)


def _left_out(written: "Written") -> str:
    return (
        f"left out: {written.of_other_pictures:,} about others, {written.of_others:,} of other services, "
        f"{written.pictures:,} pictures"
    )


def _export_tools(call: Call, path: Path) -> int:
    from flows.cli.lake import existing_lake
    from tasks.agent.recording import write_recording

    lake = existing_lake(call, read_only=True)
    services, of_pictures = _asked(call)
    written = write_recording(lake.state, services, path, of_pictures)
    if call.as_json:
        print_json({"file": str(path), **dataclasses.asdict(written)})
    elif not call.quiet:
        tools = ", ".join(f"{tool} {count:,}" for tool, count in written.by_tool.items())
        print(f"{written.answers:,} answers of tools in {path}" + (f" ({tools})" if tools else ""))
        if written.without_question:
            print(f"{written.without_question:,} were kept by an older version without their question: left out")
        if written.of_others:
            print(f"{written.of_others:,} came from other services than those that are configured: left out")
    return DONE


def withdraw(
    call: Call,
    what: Annotated[str, typer.Argument(metavar="IMAGE|creator:NAME|licence:NAME", help="What is withdrawn.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason; it is kept.")],
    who: Annotated[str | None, typer.Option(metavar="NAME", show_default="your login name", help="Who asks.")] = None,
) -> int:
    """Take pictures and everything made of them out of the lake; names the models trained on them."""
    from flows.cli.lake import existing_lake
    from tasks.review.withdraw import withdraw as take_out

    lake = existing_lake(call, read_only=True)  # a full disk does not keep it from freeing some
    done = take_out(lake, what, why, who or getpass.getuser())
    if call.as_json:
        print_json(dataclasses.asdict(done))
        return DONE
    if call.quiet:
        return DONE
    if not done.image_ids:
        print(f"nothing matched: no picture in the lake has the {done.rule} '{done.value}'")
        if done.alike:
            print(f"alike       {', '.join(done.alike)}")
        print(f"rule        kept: pictures with this {done.rule} that come later are not taken")
        return DONE
    rows = ", ".join(f"{count:,} of {table}" for table, count in done.rows.items()) or "none were left"
    print(f"withdrawn   {done.rule} {done.value}: {len(done.image_ids):,} pictures")
    print(f"rows ended  {rows}")
    print(f"files       {done.files:,} deleted")
    if done.models:
        print(f"models      {len(done.models)} were trained on them and still know them; train again or delete:")
        for model in done.models:
            how = f"{model.samples:,} samples" if model.samples else "made from a model above"
            print(f"            {model.model_id}  {model.training_stage:<10} {how}  {model.checkpoint}")
    else:
        print("models      none was trained on them")
    for copy in done.exports:
        where = copy.folder if Path(copy.folder).is_dir() else f"{copy.folder} (not on this machine)"
        print(f"export      {where}: {copy.form} of {copy.exported_at:%Y-%m-%d} holds {copy.pictures:,} of them")
    if done.exports:
        print("            delete or replace these copies, and tell those who have them")
    print(f"next        {program()} refresh   a snapshot without them; earlier snapshots leave them out as well")
    return DONE


def bring_in_marks(call: Call, file: Path, reviewer: str | None) -> int:
    """Read a file of marks into the lake and say what they show."""
    from flows.cli.lake import existing_lake
    from tasks.review.marks import import_marks, read_marks

    try:
        text = file.read_bytes()
    except OSError as error:
        raise InputError(f"--import {file}: {error.strerror or error}") from error
    done = import_marks(existing_lake(call), read_marks(text), reviewer or getpass.getuser())
    if call.as_json:
        print_json(dataclasses.asdict(done))
        return DONE
    if not call.quiet:
        noted = f" and {done.notes_taken:,} notes" if done.note_outcomes else ""
        print(f"{done.taken:,} marks{noted} on snapshot {done.snapshot_id} taken")
        for reason, count in done.refused.items():
            print(f"{count:,} not taken: {reason}")
        print(done.precision.sentence if done.precision else "none of them is on a picture of the random sample")
    return DONE


def serve_site(call: Call, reviewer: str | None, port: int, host: str, base_url: str | None) -> int:
    """Serve the newest snapshot's site until interrupted; with a base URL all reports."""
    from flows.cli.lake import existing_lake
    from flows.served_reports import announce
    from tasks.review import newest_snapshot, renew_site
    from tasks.review.serve import serve

    lake = existing_lake(call, read_only=True)
    row = newest_snapshot(lake)
    if row is None:
        raise NotFound("there is no snapshot to show yet; run: geofix review")
    try:
        renew_site(lake, row)
    except (LakeUnwritable, OSError) as error:
        print(f"geofix: the site is shown as it was made, and no mark is taken: {error}", file=sys.stderr)
    if base_url and not re.match(r"https?://[^\s?#/]+[^\s?#]*$", base_url):
        raise InputError(f"--base-url: given '{base_url}', but it must look like https://data.example/review")
    say = functools.partial(print, flush=True)
    announce(lake, base_url or f"http://127.0.0.1:{port}")
    serve(lake, row["snapshot_id"], reviewer or getpass.getuser(), port, say, host, base_url)
    return DONE
