"""Maintenance of a lake: compaction, vacuum that respects snapshots, sweeps of what nothing refers to.

Safe beside running stages: only what is older than its retention is deleted, a conflicting compaction gives way to
the stage's commit, and every deletion is decided on rows read after its candidates were listed.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deltalake.exceptions import CommitFailedError, DeltaError

from schemas.errors import LakeError
from schemas.settings.maintain import MaintainSettings
from tasks.lake.reading import first_line
from tasks.lake.sweep import Candidate, old_copies, old_images, old_reports, old_state, old_temporaries
from tasks.lake.tables import Lake

CHECKPOINT_EVERY = 10  # commits after the last checkpoint of a table's log

logger = logging.getLogger("geofix.maintain")


@dataclass(frozen=True)
class Done:
    """One kind of maintenance on one part of the lake."""

    what: str  # compacted, vacuumed, deleted
    where: str
    count: int
    bytes: int = 0  # freed


def maintain(lake: Lake, settings: MaintainSettings, dry_run: bool = False) -> list[Done]:
    """Do everything, or only say what would be done."""
    done: list[Done] = []
    sweeps: dict[str, Iterator[Candidate]] = {
        "temporary files": old_temporaries(lake, settings.temporary_hours),
        "pictures that no row names": old_images(lake, settings.images_days),
        "reports of snapshots not approved": old_reports(lake, settings.reports_days),
        "logs, notes and spools": old_state(lake, settings.state_days),
        "local copies and unfinished training runs": old_copies(lake, settings.state_days),
    }
    for where, candidates in sweeps.items():
        count = freed = 0
        for candidate in candidates:
            if dry_run or candidate.delete():
                count, freed = count + 1, freed + candidate.size
        done.append(Done("deleted", where, count, freed))
    if lake.is_full():
        logger.warning("no space left on the disk of %s: old files are deleted, tables are not compacted", lake.uri)
    for name in lake.existing():  # after the sweeps, which need no space
        done += _table(lake, name, settings, dry_run)
    return [job for job in done if job.count]


def _table(lake: Lake, name: str, settings: MaintainSettings, dry_run: bool) -> list[Done]:
    table = lake.delta(name)
    if table is None:
        return []
    done = []
    try:
        sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
        small = sum(size < settings.small_file_mb * 2**20 for size in sizes)
        is_full = lake.is_full() and not dry_run
        if small >= settings.least_files and not is_full:
            if not dry_run:
                table.optimize.compact(target_size=settings.small_file_mb * 2**20)
            done.append(Done("compacted", f"files of table {name}", small))
        table = lake.delta(name)
        assert table is not None
        if not dry_run and not is_full and table.version() - _checkpoint(lake, name) >= CHECKPOINT_EVERY:
            table.create_checkpoint()
        done.append(vacuum(lake, name, settings.versions_days * 24, dry_run))
    except CommitFailedError:
        logger.warning("table '%s' was written meanwhile; it is compacted by the next maintenance", name)
    except (DeltaError, OSError) as error:
        raise LakeError(f"table '{name}' in {lake.uri} cannot be maintained: {first_line(error)}") from error
    return done


def vacuum(lake: Lake, name: str, retention_hours: int, dry_run: bool = False) -> Done:
    """Delete files that no version needs which is newer than the retention or named by a snapshot."""
    table = lake.delta(name)
    if table is None:
        return Done("vacuumed", f"files of table {name}", 0)
    options: dict[str, Any] = {
        "retention_hours": retention_hours,
        "enforce_retention_duration": False,
        "keep_versions": sorted({*lake.snapshot_versions(name), table.version()}),
        "full": True,  # also what killed writers left without a commit
    }
    files = table.vacuum(dry_run=True, **options)
    sizes = [blob.size for file in files if (blob := lake.blobs.find(f"tables/{name}/{file}")) is not None]
    if files and not dry_run:
        if lake.is_full():  # a vacuum writes down that it begins
            for file in files:
                lake.blobs.delete(f"tables/{name}/{file}")
        else:
            table.vacuum(dry_run=False, **options)
    return Done("vacuumed", f"files of table {name}", len(files), sum(sizes))


def _checkpoint(lake: Lake, name: str) -> int:
    """The version of the newest checkpoint of a table's log; -1: none."""
    with contextlib.suppress(LakeError, ValueError, KeyError):
        return int(json.loads(lake.blobs.get(f"tables/{name}/_delta_log/_last_checkpoint"))["version"])
    return -1
