"""Whether a table's pictures are there at all, before anything is written."""

import json
from pathlib import Path

from schemas.settings.ingest import IngestSettings
from tasks.ingest.check import Checker
from tasks.ingest.files import PictureFolder
from tasks.ingest.refusal import Refusal, TableRefused
from tasks.ingest.survey import ENOUGH_BAD, Survey, survey


def survey_with_pictures(path: Path, settings: IngestSettings) -> Survey:
    """What the table is; TableRefused, with the way out, when it cannot be taken as a whole."""
    found = survey(path, settings)
    if not settings.replace:
        _check_pictures(found, settings)
    return found


def _check_pictures(found: Survey, settings: IngestSettings) -> None:
    """TableRefused when no row can be taken and most pictures are not where they should be: --images was forgotten.

    The first row that can be taken ends the search, so this costs nothing where all is well.
    """
    checker = Checker(found.layout, found.names, settings, PictureFolder(found.folder))
    missing, first = 0, ""
    for number, record in found.records():
        if isinstance(record, Refusal):
            continue
        why = checker.item(number, record)["refusal"]
        if why is None:
            return
        said = json.loads(why)
        if said["reason"] in ("missing_file", "path_escapes"):
            missing += 1
            first = first or f"{found.table.word} {number}, {said['column']} {said['given']!r}: {said['problem']}"
    if missing >= ENOUGH_BAD and missing * 2 > found.rows:
        raise TableRefused(
            f"{found.table.path}: none of the pictures of its {found.rows:,} rows is there (first: {first}); name the "
            "folder they lie in with --images"
        )
