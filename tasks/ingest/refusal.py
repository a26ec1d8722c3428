"""Why a row is refused, in words its author can act on."""

from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from tasks.services.errors import safe_text

SHOWN = 120  # characters of a value that is quoted back


class TableRefused(GeofixError):
    """The whole table cannot be taken; the message names file, place and the way out. Nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(safe_text(message, limit=1000))  # it quotes names and values of a file from outside


# What to do about each reason, for the report and the summary.
FIXES = {
    "ragged_row": "quote fields that hold the separator, and close every quote",
    "no_id": "give every row the id of its picture",
    "bad_id": "use an id of at most 500 printable characters",
    "id_damaged": "export the ids again as text (pandas: dtype={'id': str}; a spreadsheet: format as text); if they "
    "are right, add --set ingest.check_ids=false",
    "duplicate_id": "keep one row an id",
    "conflicting_id": "rows of one id disagree: find out which is right and delete the others",
    "no_position": "give latitude and longitude in degrees; of a folder, in the photo's EXIF data or in a table",
    "bad_position": "write degrees as numbers with a decimal point, such as 48.8566",
    "out_of_range": "latitude is -90..90, longitude -180..180: correct the row",
    "null_island": "0, 0 is what failed geocoding leaves behind: give the real position",
    "mid_ocean": "correct the position; if photos were taken at sea, add --keep-lat-lon",
    "other_country": "correct the country or the position; if all positions are right, add --keep-lat-lon",
    "no_licence": "fill the licence column, or give --licence for rows without one",
    "no_attribution": "fill the creator or attribution column, or give --attribution",
    "bad_split": "use train, validation or benchmark",
    "bad_kind": "use photo or panorama",
    "near_other_split": "give the dataset a split with --split, or lower plan.buffer_km",
    "no_picture": "give the path, the address or the bytes of the picture",
    "bad_url": "give a full http:// or https:// address",
    "path_escapes": "give a path inside the picture folder; --images names another folder",
    "missing_file": "put the file there, or name the right folder with --images",
    "file_unreadable": "make it a plain file that you may read",
    "too_big": "store a smaller file, or raise ingest.picture.max_file_mb",
    "not_an_image": "replace it by a JPEG or PNG picture",
    "animated": "export a single frame as JPEG or PNG",
    "truncated": "copy or download the picture again, whole",
    "decompression_bomb": "no camera takes pictures of this size: check where it comes from",
    "unsupported_format": "convert it to JPEG, PNG or HEIC",
    "too_small": "use a larger version, or lower ingest.picture.min_pixels (panoramas: panorama_min_pixels)",
    "not_equirectangular": "a panorama must show the full sphere, 2:1; declare anything else a photo",
    "orientation_contradicts": "turn the picture upright and remove its EXIF orientation, or set "
    "ingest.picture.orientation to apply or ignore",
    "exif_position_far": "check which position is right, or change ingest.picture.exif_km",
    "url_not_public": "the address is inside a private network; ingest.web.allow_private=true lets it be queried",
    "url_not_found": "find the picture's present address",
    "url_refused": "the host wants a sign-in, or the address has expired: get a fresh one",
    "url_moved": "give the final address: redirects are not followed, they often lead to a placeholder",
    "withdrawn": "nothing: it was taken out with geofix withdraw, and stays out",
    "url_bad_answer": "open the address in a browser and see what it is",
}


@dataclass(frozen=True)
class Refusal:
    """One row's defect."""

    reason: str
    problem: str  # what is wrong, in a few words
    column: str | None = None  # as the table names it
    given: str | None = None

    def evidence(self, row: int) -> dict[str, Any]:
        """What goes into the rejects table. Addresses lose their signatures on the way."""
        facts: dict[str, Any] = {"row": row, "problem": safe_text(self.problem, limit=300), "fix": FIXES[self.reason]}
        if self.column is not None:
            facts["column"] = safe_text(self.column, limit=60)
        if self.given is not None:
            facts["given"] = safe_text(self.given, limit=SHOWN)
        return facts


REFUSED = pl.Struct({field.name: pl.String for field in fields(Refusal)})  # of the column that says it of a row
