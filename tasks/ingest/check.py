"""One row of a table against everything that can be known without opening its picture."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from schemas.settings.ingest import IngestSettings
from tasks.geo.distance import distance_km, is_point
from tasks.ingest.cells import decoded
from tasks.ingest.files import Found, PictureFolder
from tasks.ingest.ids import LongIds, may_be_hexadecimal, written_as_float
from tasks.ingest.layouts import Layout
from tasks.ingest.refusal import Refusal
from tasks.ingest.sameness import KINDS, SPLITS, Fields, read_degrees, row_id
from tasks.ingest.times import read_time
from tasks.services.errors import safe_url

LONGEST_ID = 500
NULL_ISLAND_KM = 1.0
_PLACES = re.compile(r"\{(?:id|flat|deep)\}")
_FLAT = re.compile(r"([0-9a-f]{2})_([0-9a-f]{2})_([^/]+)")


class Refused(Exception):
    """The row ends here."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


@dataclass(frozen=True)
class Checker:
    """Checks rows of one table."""

    layout: Layout
    names: Mapping[str, str]  # field -> the table's own name of the column, for messages
    settings: IngestSettings
    folder: PictureFolder
    suspect_ids: bool = False  # some ids of this table went through a float
    lettered_ids: bool = False  # some have letters: 12e34 is no float

    EMPTY: ClassVar[dict[str, Any]] = dict.fromkeys(
        ("source_id", "file", "url", "lat", "lon", "licence", "creator", "attribution", "captured_at",
         "compass_angle", "split", "kind", "sequence_id", "size", "mtime_ns", "refusal", "notes")
    )  # fmt: skip

    def item(self, row: int, fields: Fields) -> dict[str, Any]:
        """The item's columns; with `refusal` set, the row is to be refused for it."""
        found: dict[str, Any] = {
            **self.EMPTY,
            "row": row,
            "source_id": row_id(fields, "id" in self.names, self.folder.root),
        }
        notes: list[str] = []
        try:
            self._id(found["source_id"])
            found["lat"], found["lon"] = self._position(fields)
            self._rights(found, fields)
            found["split"] = self._choice(fields, "split", SPLITS, "bad_split") or self.settings.split
            found["split"] = found["split"] or self.layout.split
            found["kind"] = self._choice(fields, "kind", KINDS, "bad_kind")
            found["sequence_id"] = fields.get("sequence")
            found["captured_at"] = self._time(fields, notes)
            found["compass_angle"] = self._angle(fields, notes)
            self._picture(found, fields)
        except Refused as refused:
            # An id that cannot be one is told in the evidence, made safe to show; no name is made of it.
            known = None if refused.refusal.reason == "bad_id" else found["source_id"]
            return self.refused(row, known, refused.refusal)
        found["notes"] = json.dumps(notes) if notes else None
        return found

    def refused(self, row: int, source_id: str | None, refusal: Refusal) -> dict[str, Any]:
        """The columns of a row that is refused."""
        text = json.dumps({"reason": refusal.reason, **refusal.evidence(row)}, sort_keys=True, ensure_ascii=False)
        return {**self.EMPTY, "row": row, "source_id": source_id, "refusal": text}

    def _id(self, text: str | None) -> None:
        column = self.names.get("id", "path")
        if text is None:
            raise Refused(Refusal("no_id", "is empty", column))
        if len(text) > LONGEST_ID or not text.isprintable():
            raise Refused(Refusal("bad_id", "too long, or with unprintable characters", column, text))
        if not self.settings.check_ids or "id" not in self.names:
            return
        if written_as_float(text) and not (self.lettered_ids and may_be_hexadecimal(text)):
            raise Refused(Refusal("id_damaged", "was an id before it went through a float", column, text))
        if self.suspect_ids and LongIds.suspect(text):
            said = "may have gone through a float, as other ids of this table did"
            raise Refused(Refusal("id_damaged", said, column, text))

    def _position(self, fields: Fields) -> tuple[float, float]:
        numbers = []
        for name in ("lat", "lon"):
            text, column = fields[name], self.names[name]
            if text is None:
                raise Refused(Refusal("no_position", "is empty", column))
            value = read_degrees(text)
            if value is None:
                hint = ", a decimal comma?" if text.count(",") == 1 and "." not in text else ""
                raise Refused(Refusal("bad_position", f"is not a number of degrees{hint}", column, text))
            numbers.append(value)
        lat, lon = numbers
        if not is_point(lat, lon):
            name, limit = ("lat", 90) if abs(lat) > 90 else ("lon", 180)
            hint = ", and the two look exchanged" if is_point(lon, lat) else ""
            said = f"outside -{limit}..{limit}{hint}"
            raise Refused(Refusal("out_of_range", said, self.names[name], f"{fields['lat']}, {fields['lon']}"))
        if distance_km(0.0, 0.0, lat, lon) < NULL_ISLAND_KM:
            raise Refused(Refusal("null_island", "is no place", self.names["lat"], f"{fields['lat']}, {fields['lon']}"))
        return lat, lon

    def _rights(self, found: dict[str, Any], fields: Fields) -> None:
        licence = fields.get("licence") or self.settings.licence or self.layout.licence
        if not licence:
            raise Refused(Refusal("no_licence", "is empty", self.names.get("licence", "licence")))
        creator = fields.get("creator")
        if self.names.get("creator") in self.layout.encoded:
            creator = decoded(creator)
        template = self.settings.attribution or self.layout.attribution
        attribution = fields.get("attribution")
        if not attribution and template and ("{creator}" not in template or creator):
            attribution = template
            for name, value in (("id", found["source_id"]), ("creator", creator or ""), ("licence", licence)):
                attribution = attribution.replace(f"{{{name}}}", value)
        elif not attribution and creator:
            attribution = f"Photo {found['source_id']} by {creator}, {licence}"
        if not attribution:
            missing = self.names.get("attribution") or self.names.get("creator") or "attribution"
            raise Refused(Refusal("no_attribution", "is empty", missing))
        found.update(licence=licence, creator=creator, attribution=attribution)

    def _choice(self, fields: Fields, name: str, known: Mapping[str, str], reason: str) -> str | None:
        text = fields.get(name)
        if text is None:
            return None
        if text.casefold() not in known:
            raise Refused(Refusal(reason, f"is none of {', '.join(dict.fromkeys(known.values()))}",
                                  self.names[name], text))  # fmt: skip
        return known[text.casefold()]

    def _time(self, fields: Fields, notes: list[str]) -> str | None:
        text = fields.get("captured_at")
        if text is None:
            return None
        moment = read_time(text)
        if moment is None:
            notes.append(f"captured_at_unreadable: {text[:40]}")
        return moment.isoformat() if moment else None

    def _angle(self, fields: Fields, notes: list[str]) -> float | None:
        text = fields.get("compass_angle")
        if text is None:
            return None
        angle = read_degrees(text)
        if angle is None or not -360 <= angle <= 360:
            notes.append(f"compass_angle_unreadable: {text[:40]}")
            return None
        return angle % 360.0

    def _picture(self, found: dict[str, Any], fields: Fields) -> None:
        path, url, by_id = fields.get("path"), fields.get("url"), self.layout.files
        if path is not None:
            if is_web_address(path):
                said = "is an address, not a path: call the column url"
                raise Refused(Refusal("missing_file", said, self.names["path"], safe_url(path)))
            self._take(found, self.folder.find(path), self.names["path"])
            return
        refusal = None
        # Datasets name addresses that have long expired beside pictures that lie in a folder: the folder comes first.
        if by_id and (self.settings.images or url is None):
            given = fields.get("id") or ""  # as it stands in the table: a file's name may be in the other Unicode form
            names = dict.fromkeys([*file_names(by_id, given), *file_names(by_id, found["source_id"])])
            here = self.folder.find_by_id(list(names), self.layout.in_subfolders)
            if isinstance(here, Found) or url is None or self.settings.images:
                self._take(found, here, self.names["id"])
                return
            refusal = here
        if url is None:
            columns = " and ".join(self.names[n] for n in ("path", "url") if n in self.names) or "path"
            raise Refused(refusal or Refusal("no_picture", "neither path nor address is given", columns))
        if self.settings.images:
            said = "--images names a folder, but no known column names a file in it, and no address is asked then"
            raise Refused(Refusal("no_picture", f"{said}: call the column of file names path", self.names["url"]))
        if not is_web_address(url):
            shown = safe_url(url) if "://" in url else url
            raise Refused(Refusal("bad_url", "only http:// and https:// addresses are asked", self.names["url"], shown))
        found["url"] = url

    def _take(self, found: dict[str, Any], result: Found | Refusal, column: str) -> None:
        if isinstance(result, Refusal):
            raise Refused(Refusal(result.reason, result.problem, column, result.given))
        found.update(file=result.name, size=result.size, mtime_ns=result.mtime_ns)


def is_web_address(text: str) -> bool:
    """Whether it is an http or https address with a host."""
    try:
        parts = urlsplit(text)
        port_is_a_number = parts.port is None or parts.port > 0
    except ValueError:
        return False
    good = parts.scheme in ("http", "https") and bool(parts.hostname) and port_is_a_number
    return good and len(text) <= 4096 and text.isprintable() and " " not in text


def file_names(patterns: tuple[str, ...], source_id: str) -> list[str]:
    """Where a picture may lie by its id."""
    known = {
        "{id}": source_id,
        "{flat}": source_id.replace("/", "_"),
        "{deep}": _FLAT.sub(r"\1/\2/\3", source_id),
    }
    return list(dict.fromkeys(_PLACES.sub(lambda place: known[place[0]], pattern) for pattern in patterns))
