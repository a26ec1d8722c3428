"""Marks and notes of people on single pictures, from the file the site saves or from `geofix review --serve`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import InputError
from schemas.settings.review import ReviewSettings
from tasks.lake import Commit, Lake
from tasks.review.site import renew_site, site_settings
from tasks.review.site.page import Source
from tasks.review.site.precision import Precision, label_text, precision_of, sampled_ids
from tasks.runtime.items.identity import code_version, digest, new_run_id
from tasks.runtime.snapshots import find_snapshot

STAGE_NAME = "review.marks"
NOTES_STAGE = "review.notes"


class Mark(BaseModel):
    """One mark, as the browser writes it."""

    model_config = ConfigDict(extra="ignore")

    image_id: str = Field(min_length=1, max_length=200)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    label: str = Field(max_length=1000)
    mark: str = Field(pattern="^(right|wrong)$")
    note: str = Field("", max_length=1000)
    marked_at: datetime


NOTE_CHARS = 8000
Licence = Literal["CC BY 4.0", "CC BY-SA 4.0", "CC0 1.0"]


class Note(BaseModel):
    """How a person would find a place, as the browser writes it."""

    model_config = ConfigDict(extra="ignore")

    image_id: str = Field(min_length=1, max_length=200)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    notes: str = Field(min_length=1, max_length=NOTE_CHARS)
    licence: Licence
    noted_at: datetime


class MarkFile(BaseModel):
    """The file that the site saves."""

    model_config = ConfigDict(extra="ignore")

    format: str = Field(pattern="^geofix-marks$")
    version: int = Field(ge=1, le=1)
    snapshot_id: str = Field(min_length=6, max_length=200)
    marks: list[Mark] = Field(max_length=100_000)
    notes: list[Note] = Field([], max_length=100_000)


@dataclass(frozen=True)
class Imported:
    """What became of the marks of a file: taken + refused is what it held."""

    snapshot_id: str
    taken: int
    refused: Mapping[str, int]  # reason -> marks
    precision: Precision | None
    outcomes: tuple[str, ...] = ()  # of each mark in its order: empty, or why it was refused
    note_outcomes: tuple[str, ...] = ()  # of each note likewise

    @property
    def notes_taken(self) -> int:
        return self.note_outcomes.count("")


def read_marks(text: str | bytes) -> MarkFile:
    """The file's content, or an InputError that names the field and the fix."""
    try:
        return MarkFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"marks: {where}: {first['msg']}; give a file that the site's “Save marks to a file” wrote"
        ) from error


def import_marks(lake: Lake, file: MarkFile, reviewer: str) -> Imported:
    """Write the marks to the table `marks` and renew the site.

    A second mark of a reviewer on the same label replaces the first.
    """
    done = store_marks(lake, file, reviewer)
    renew_site(lake, find_snapshot(lake, done.snapshot_id))
    return done


def store_marks(lake: Lake, file: MarkFile, reviewer: str) -> Imported:
    """The same, but for the site."""
    if not reviewer.strip():
        raise InputError("a reviewer's name is needed: --reviewer NAME")
    row = find_snapshot(lake, file.snapshot_id)
    source = Source(lake, row, site_settings(lake, row["snapshot_id"]) or ReviewSettings())
    labels = source.read("labels").select("image_id", "sha256", label=label_text())
    known = {image_id: (sha256, label) for image_id, sha256, label in labels.iter_rows()}
    sampled = set(sampled_ids(source))
    rows: dict[str, dict[str, Any]] = {}
    outcomes: list[str] = []
    for mark in file.marks:
        shown = known.get(mark.image_id)
        outcome = ""
        if shown is None or shown != (mark.sha256, mark.label):
            outcome = "the snapshot keeps no such picture" if shown is None else "it was another picture or label"
        else:
            made = _row(mark, row["snapshot_id"], reviewer.strip(), mark.image_id in sampled)
            outcome = "marked twice in the file" if made["mark_id"] in rows else ""
            rows[made["mark_id"]] = made
        outcomes.append(outcome)
    _store(lake, "marks", STAGE_NAME, list(rows.values()))
    noted = store_notes(lake, file.notes, known, row["snapshot_id"], reviewer.strip())
    now = Source(lake, row, source.settings)
    refused = Counter(filter(None, (*outcomes, *noted)))
    return Imported(row["snapshot_id"], len(rows), refused, precision_of(now), tuple(outcomes), noted)


def store_notes(
    lake: Lake, notes: list[Note], known: Mapping[str, tuple[str, str]], snapshot_id: str, author: str
) -> tuple[str, ...]:
    """Write notes to the table `notes`; what became of each: empty, or why it was refused."""
    rows: dict[str, dict[str, Any]] = {}
    outcomes = []
    for note in notes:
        shown, text = known.get(note.image_id), note.notes.strip()
        if shown is None or shown[0] != note.sha256 or not text:
            outcomes.append(
                "the snapshot keeps no such picture" if shown is None else "it was another picture" if text else "empty"
            )
            continue
        note_id = digest("note", note.image_id, author)
        outcomes.append("noted twice in the file" if note_id in rows else "")
        rows[note_id] = {
            "note_id": note_id,
            **{"image_id": note.image_id, "snapshot_id": snapshot_id, "sha256": note.sha256, "notes": text},
            **{"author": author, "licence": note.licence, "stage": NOTES_STAGE, "item_id": note_id},
            "made_from": digest(note_id, text, note.licence),
            "noted_at": note.noted_at if note.noted_at.tzinfo else note.noted_at.replace(tzinfo=UTC),
        }
    _store(lake, "notes", NOTES_STAGE, list(rows.values()))
    return tuple(outcomes)


def _store(lake: Lake, table: str, stage: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        commit = Commit(new_run_id(table), 1, stage=stage, code_version=code_version())
        written = [{**made, "run_id": commit.run_id, "written_at": datetime.now(UTC)} for made in rows]
        lake.upsert(table, written, commit)


def _row(mark: Mark, snapshot_id: str, reviewer: str, sampled: bool) -> dict[str, Any]:
    mark_id = digest("mark", mark.image_id, mark.sha256, mark.label, reviewer)
    return {
        "mark_id": mark_id,
        "image_id": mark.image_id,
        "snapshot_id": snapshot_id,
        "sha256": mark.sha256,
        "label": mark.label,
        "mark": mark.mark,
        "note": mark.note.strip() or None,
        "sampled": sampled,
        "reviewer": reviewer,
        "marked_at": mark.marked_at if mark.marked_at.tzinfo else mark.marked_at.replace(tzinfo=UTC),
        "stage": STAGE_NAME,
        "item_id": mark_id,
        "made_from": mark_id,
    }
