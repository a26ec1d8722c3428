"""`geofix maintain` and `geofix verify`."""

import dataclasses
import sys

from flows.cli.command import DONE, FAILED, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from tasks.lake.maintain import maintain
from tasks.lake.verify import verify


def maintain_lake(call: Call, dry_run: bool) -> int:
    """Do the maintenance and print what it freed."""
    lake = existing_lake(call)
    done = maintain(lake, call.options().resolve().maintain, dry_run)
    freed = sum(one.bytes for one in done)
    if call.as_json:
        shown = [dataclasses.asdict(one) for one in done]
        print_json({"lake": lake.uri, "dry_run": dry_run, "freed_bytes": freed, "done": shown})
        return DONE
    would = "would be " if dry_run else ""
    for one in done:
        size = f", {megabytes(one.bytes)}" if one.bytes else ""
        print(f"{one.count:>8,} {one.where} {would}{one.what}{size}")
    print(f"{megabytes(freed)} {would}freed in {lake.uri}" if done else f"nothing to do in {lake.uri}")
    return DONE


def verify_lake(call: Call, quick: bool) -> int:
    """Print what is wrong, as it is found; exit code 1 if anything is."""
    lake = existing_lake(call, read_only=True)
    found = []
    for problem in verify(lake, quick):
        found.append(problem)
        if not call.as_json:
            print(f"{' '.join(filter(None, (problem.table, problem.row_id)))}: {problem.what}", flush=True)
    if call.as_json:
        print_json({"lake": lake.uri, "quick": quick, "problems": [dataclasses.asdict(one) for one in found]})
    elif found:
        tables = ", ".join(dict.fromkeys(one.table for one in found))
        print(f"geofix: lake {lake.uri} is damaged: {len(found):,} problems in {tables}", file=sys.stderr)
    else:
        print(f"lake {lake.uri} is whole: {len(lake.existing())} tables" + (" (files not read)" if quick else ""))
    return FAILED if found else DONE


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:,.1f} MB"
