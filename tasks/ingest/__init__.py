"""Ingest: photos with coordinates from a user's table, or from a folder of photos that know their positions.

It runs beside plan and collect, whenever a user has some. What it brings in is curated with what they found.
"""

import re
from pathlib import Path

from schemas.settings.ingest import IngestSettings, is_dataset_name, is_taken
from tasks.ingest.dataset import check_dataset
from tasks.ingest.refusal import TableRefused
from tasks.ingest.run import IngestResult, ingest_table, survey_table
from tasks.ingest.survey import Survey

__all__ = [
    "IngestResult",
    "Survey",
    "TableRefused",
    "check_dataset",
    "dataset_name",
    "ingest_table",
    "survey_table",
]


def dataset_name(path: Path, settings: IngestSettings) -> str:
    """The dataset's name: the one given, or the file's."""
    if settings.name is not None:
        return settings.name
    own = path.resolve().name if path.is_dir() else path.stem
    name = re.sub(r"[^A-Za-z0-9._-]", "-", own)[:64].strip("-._")
    if is_taken(name):
        raise TableRefused(
            f"{path}: a dataset cannot be called '{name}', which is the name of another source; give it another with "
            "--name, such as --name photos"
        )
    if not is_dataset_name(name):
        raise TableRefused(f"{path}: its name makes no name for a dataset; give one with --name, such as --name photos")
    return name
