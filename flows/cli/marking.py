"""`geofix review --serve` and `--import`: marks of people on single labels."""

import dataclasses
import getpass
from pathlib import Path

from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from schemas.errors import InputError, NotFound
from tasks.review import newest_snapshot, renew_site
from tasks.review.marks import import_marks, read_marks


def bring_in_marks(call: Call, file: Path, reviewer: str | None) -> int:
    """Read a file of marks into the lake and say what they show."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise InputError(f"--import {file}: {error.strerror or error}") from error
    done = import_marks(existing_lake(call), read_marks(text), reviewer or getpass.getuser())
    if call.as_json:
        print_json(dataclasses.asdict(done))
        return DONE
    if not call.quiet:
        print(f"{done.taken:,} marks on snapshot {done.snapshot_id} taken")
        for reason, count in done.refused.items():
            print(f"{count:,} not taken: {reason}")
        print(done.precision.sentence if done.precision else "none of them is on a picture of the random sample")
    return DONE


def serve_site(call: Call, reviewer: str | None, port: int) -> int:
    """Serve the newest snapshot's site until interrupted."""
    from tasks.review.serve import serve

    lake = existing_lake(call)
    row = newest_snapshot(lake)
    if row is None:
        raise NotFound("there is no snapshot to show yet; run: geofix review")
    renew_site(lake, row)
    serve(lake, row["snapshot_id"], reviewer or getpass.getuser(), port, print)
    return DONE
