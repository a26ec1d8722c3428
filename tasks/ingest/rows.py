"""The rows of a table against everything that can be known without opening a picture, as items for the stage.

Each check is an expression over the columns of a batch; the first that a row fails is why it is refused. Only the
search for picture files goes row by row.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.geo.boundaries import country_of
from tasks.geo.cell_split import SPLITS as SPLIT_NAMES
from tasks.geo.cell_split import cell_number, keeps_clear, split_of_cells
from tasks.geo.distance import distance_km
from tasks.imaging.tags import read_time
from tasks.ingest.embedded import picture_source
from tasks.ingest.files import Found, PictureFolder
from tasks.ingest.layouts import held_out_split, purpose_of, split_of_purpose
from tasks.ingest.positions import in_mid_ocean, in_other_country
from tasks.ingest.refusal import REFUSED, Refusal
from tasks.ingest.survey import Survey
from tasks.ingest.table import read_degrees
from tasks.lake.ids import written_as_float
from tasks.services.errors import safe_url
from tasks.services.network import host_of

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("benchmark", "test", "testing", "eval"), "benchmark"),
}
KINDS = {
    **dict.fromkeys(("photo", "perspective"), "photo"),
    **dict.fromkeys(("panorama", "pano", "equirectangular", "360", "spherical"), "panorama"),
}
LONGEST_ID = 500
NULL_ISLAND_KM = 1.0
_UNPRINTABLE = r"[\p{C}\p{Z}&&[^ ]]"
_FLAT = re.compile(r"([0-9a-f]{2})_([0-9a-f]{2})_([^/]+)")

_OF_ALL = ("id", "row", "source_id", "refusal")  # fields of an item that a refused row has, too
ITEM: dict[str, Any] = {
    "id": pl.String,
    "row": pl.Int64,
    **dict.fromkeys(("source_id", "file", "url", "licence", "creator", "attribution", "captured_at"), pl.String),
    **dict.fromkeys(("split", "purpose", "kind", "sequence_id", "refusal", "notes"), pl.String),
    **dict.fromkeys(("lat", "lon", "compass_angle"), pl.Float64),
    **dict.fromkeys(("size", "mtime_ns"), pl.Int64),
}


# Which rows are refused, and the reason, column, problem and given text of the refusal.
Check = tuple[pl.Expr, str, str, str | pl.Expr, pl.Expr | None]


def of_dataset(dataset: str) -> pl.Expr:
    """Whether a row's item belongs to a dataset. Its name holds neither / nor :, so datasets cannot meet."""
    item = pl.col("item_id")
    return item.str.starts_with(f"{dataset}/") | item.str.starts_with(f"{dataset}:")


def item_batches(
    survey: Survey, dataset: str, settings: IngestSettings, plan: PlanSettings
) -> Iterator[pl.DataFrame]:  # fmt: skip
    """A surveyed table as items, with the columns of ITEM. The seed, shares and buffer of `plan` decide the split of
    rows that name none."""
    checks = RowChecks(survey, settings)
    for rows in survey.batches():
        checked = _with_splits(checks.with_pictures(checks.check(rows)), survey.names["lat"], plan)
        survey.check_unchanged()
        reason, is_good = pl.col("refused").struct.field("reason").fill_null(""), pl.col("refused").is_null()
        # An id that cannot be one is told in the evidence, made safe to show; no name is made of it.
        known = pl.when(reason != "bad_id").then("source_id")
        # A row that has no id of its own, or shares it, is told by its number.
        by_row = known.is_null() | reason.is_in(["duplicate_id", "conflicting_id"])
        numbered = pl.concat_str(pl.lit(f"{dataset}:"), "row", pl.lit("/"), known.fill_null(""))
        item_id = pl.when(by_row).then(numbered).otherwise(pl.lit(f"{dataset}/") + known)
        told = pl.when(~is_good).then(pl.struct("row", "refused")).map_elements(_evidence, pl.String)
        values = pl.when(is_good).then(pl.col(name for name in ITEM if name not in _OF_ALL))
        items = checked.select("row", values, id=item_id, source_id=known, refusal=told)
        yield items.select(pl.col(name).cast(kind) for name, kind in ITEM.items())


def _evidence(row: Mapping[str, Any]) -> str:
    refusal = Refusal(**row["refused"])
    return json.dumps({"reason": refusal.reason, **refusal.evidence(row["row"])}, sort_keys=True, ensure_ascii=False)


def _with_splits(rows: pl.DataFrame, column: str, plan: PlanSettings) -> pl.DataFrame:
    """The rows with a split for those that name none, by whole cells; refused where another split is too near."""
    if not rows["split"].null_count():
        return rows
    lat, lon = _on_earth(rows, "lat", "lon")
    splits = split_of_cells(plan.seed, plan.split, plan.buffer_km)
    is_near = pl.col("split").is_null() & pl.Series(~keeps_clear(lat, lon, splits, plan.buffer_km))
    problem = f"nearer than {plan.buffer_km:g} km to a cell of another split"
    rows = _refused(rows, [(is_near, "near_other_split", column, problem, pl.concat_str("lat", "lon", separator=", "))])
    of_cells = pl.Series(np.array(SPLIT_NAMES)[splits[cell_number(lat, lon)]])
    return rows.with_columns(split=pl.coalesce("split", of_cells))


def _refused(rows: pl.DataFrame, checks: Iterable[Check]) -> pl.DataFrame:
    """The rows `refused` by the first check that they fail; rows refused before stay so."""
    chain: Any = pl.when(pl.col("refused").is_not_null()).then("refused")
    for condition, reason, column, problem, given in checks:
        told = pl.lit(problem) if isinstance(problem, str) else problem
        text = pl.lit(None, pl.String) if given is None else given
        refusal = pl.struct(reason=pl.lit(reason), problem=told, column=pl.lit(column), given=text)
        chain = chain.when(condition).then(refusal)
    return rows.with_columns(refused=chain)


def _on_earth(rows: pl.DataFrame, lat: str, lon: str) -> list[NDArray[np.float64]]:
    """Coordinates as arrays; where there are none on Earth, which other checks tell, some that are."""
    return [rows[name].fill_null(0).clip(-end, end).to_numpy() for name, end in ((lat, 90), (lon, 180))]


@dataclass(frozen=True)
class RowChecks:
    """The checks of one table's rows."""

    survey: Survey
    settings: IngestSettings

    @cached_property
    def pictures(self) -> PictureFolder:
        return picture_source(self.survey.folder, self.survey.embedded)

    def _split(self) -> pl.Expr:
        """The split of rows that name none."""
        if (held_out := self.survey.held_out) is not None:
            is_held_out = pl.col("row").is_in(held_out.implode())
            return pl.when(is_held_out).then(pl.lit(held_out_split(self.settings))).otherwise(pl.lit("train"))
        return pl.lit(self.settings.split or split_of_purpose(self.settings, self.survey.layout))

    def check(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The values of the rows, and why a row is `refused`. Pictures are not looked for."""
        survey, settings, layout = self.survey, self.settings, self.survey.layout
        creator, is_encoded = pl.col("creator"), survey.names.get("creator") in layout.encoded
        rows = rows.with_columns(
            angle=read_degrees("compass_angle"),
            moment=pl.col("captured_at").map_elements(_moment, pl.String),
            split_known=_known("split", SPLITS),
            kind_known=_known("kind", KINDS),
            licence=pl.coalesce("licence", pl.lit(settings.licence), pl.lit(layout.licence)),
            creator=creator.map_elements(unquote_plus, pl.String) if is_encoded else creator,
        )
        rows = _compare_with_map(rows).with_columns(attribution=self._attribution())
        rows = rows.join(
            survey.repeated, left_on=pl.col("source_id").hash(), right_on="id_hash", how="left", maintain_order="left"
        )
        turned = pl.when(pl.col("angle").is_between(-360, 360)).then(pl.col("angle") % 360.0)
        return _refused(rows, self._checks()).with_columns(
            lat=pl.col("lat_deg"),
            lon=pl.col("lon_deg"),
            split=pl.coalesce("split_known", self._split()),
            purpose=pl.lit(None if (purpose := purpose_of(settings, layout)) == "pool" else purpose, pl.String),
            kind=pl.col("kind_known"),
            sequence_id=pl.col("sequence"),
            captured_at=pl.col("moment"),
            compass_angle=turned,
            notes=_notes(captured_at=pl.col("moment"), compass_angle=turned),
        )

    def _checks(self) -> Iterator[Check]:
        names = self.survey.names
        yield from self._id_checks(names.get("id", "path"))
        yield from self._position_checks()
        yield pl.col("licence").is_null(), "no_licence", names.get("licence", "licence"), "is empty", None
        missing = names.get("attribution") or names.get("creator") or "attribution"
        yield pl.col("attribution").is_null(), "no_attribution", missing, "is empty", None
        for name, known in (("split", SPLITS), ("kind", KINDS)):
            problem = f"is none of {', '.join(dict.fromkeys(known.values()))}"
            unknown = pl.col(name).is_not_null() & pl.col(f"{name}_known").is_null()
            yield unknown, f"bad_{name}", names.get(name, name), problem, pl.col(name)

    def _id_checks(self, column: str) -> Iterator[Check]:
        text = pl.col("source_id")
        yield text.is_null(), "no_id", column, "is empty", None
        bad = (text.str.len_chars() > LONGEST_ID) | text.str.contains(_UNPRINTABLE)
        yield bad, "bad_id", column, "too long, or with unprintable characters", text
        several = pl.format("is the id of several rows that disagree, the first in row {}", "first")
        yield pl.col("differs"), "conflicting_id", column, several, text
        already = pl.format("is already the id of row {}", "first")
        yield pl.col("first") != pl.col("row"), "duplicate_id", column, already, text
        if self.settings.check_ids and "id" in self.survey.names:
            yield written_as_float(text), "id_damaged", column, "was an id before it went through a float", text

    def _position_checks(self) -> Iterator[Check]:
        names, both = self.survey.names, pl.concat_str("lat", "lon", separator=", ")
        of_camera = self.survey.table.format == "folder"
        empty = "the photo's own metadata holds no GPS position, or none on Earth" if of_camera else "is empty"
        no_number = "is not a number of degrees with a decimal point"
        for name in ("lat", "lon"):
            yield pl.col(name).is_null(), "no_position", names[name], empty, None
            yield pl.col(f"{name}_deg").is_null(), "bad_position", names[name], no_number, pl.col(name)
        for name, limit in (("lat", 90), ("lon", 180)):
            is_outside = pl.col(f"{name}_deg").abs() > limit
            yield is_outside, "out_of_range", names[name], f"outside -{limit}..{limit}", both
        yield pl.col("null_island"), "null_island", names["lat"], "is a placeholder, not a place", both
        if self.settings.keep_lat_lon:
            return
        at_sea = "far out at sea: no land within about 100 km"
        yield pl.col("mid_ocean"), "mid_ocean", names["lat"], at_sea, both
        there = pl.format("the position, {}, lies in {}", both, "country_there")
        yield pl.col("other_country"), "other_country", names.get("country", "country"), there, pl.col("country")

    def _attribution(self) -> pl.Expr:
        template = self.settings.attribution or self.survey.layout.attribution
        columns = {"id": "source_id", "creator": "creator", "licence": "licence"}

        def filled(text: str) -> pl.Expr:
            parts = re.split(r"\{(id|creator|licence)\}", text)
            texts = (pl.col(columns[part]) if n % 2 else pl.lit(part) for n, part in enumerate(parts))
            return pl.concat_str(*texts)  # null where the creator is requested and unknown

        templates = [filled(text) for text in (template, "Photo {id} by {creator}, {licence}") if text]
        return pl.coalesce("attribution", *templates)

    def with_pictures(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with `file`, `size`, `mtime_ns` or `url` of their pictures, or refused for want of one."""
        good = rows.filter(pl.col("refused").is_null()).select("row", "id", "source_id", "path", "url")
        found = [(row["row"], self.find_picture(row)) for row in good.iter_rows(named=True)]
        of_row = {"row": pl.Int64, "file": pl.String, "size": pl.Int64, "mtime_ns": pl.Int64, "url": pl.String}
        pictures = pl.DataFrame(
            [{"row": row, **_picture_columns(picture)} for row, picture in found], {**of_row, "no_picture": REFUSED}
        )
        joined = rows.drop("url").join(pictures, on="row", how="left", maintain_order="left")
        return joined.with_columns(refused=pl.coalesce("refused", "no_picture"))

    def find_picture(self, fields: Mapping[str, Any]) -> Found | str | Refusal:
        """Where the picture of a row (id, source_id, path, url) is: its file, or its address."""
        names, layout, images = self.survey.names, self.survey.layout, self.settings.images
        path, url = fields["path"], fields["url"]
        if path is not None:
            if is_web_address(path):
                problem = "is an address, not a path: call the column url"
                return Refusal("missing_file", problem, names["path"], safe_url(path))
            return _of_column(self.pictures.find(path), names["path"])
        # Datasets name addresses that have long expired beside pictures that lie in a folder: the folder comes first.
        if layout.files and (images or url is None):
            # The id as it stands in the table, too: a file's name may be in the other Unicode form.
            known = [fields["id"] or "", fields["source_id"]]
            files = dict.fromkeys(name for source_id in known for name in file_names(layout.files, source_id))
            return _of_column(self.pictures.find_by_id(list(files), layout.in_subfolders), names["id"])
        if url is None:
            columns = " and ".join(names[n] for n in ("path", "url") if n in names) or "path"
            return Refusal("no_picture", "neither path nor address is given", columns)
        if images:
            problem = "--images names a folder, but no known column names a file in it, and no address is asked then"
            return Refusal("no_picture", f"{problem}: call the column of file names path", names["url"])
        if not is_web_address(url):
            shown = safe_url(url) if "://" in url else url
            return Refusal("bad_url", "only http:// and https:// addresses are asked", names["url"], shown)
        return str(url)


def _compare_with_map(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with what the map says of their positions."""
    lat, lon = _on_earth(rows, "lat_deg", "lon_deg")
    return rows.with_columns(
        null_island=pl.Series(distance_km(0.0, 0.0, lat, lon) < NULL_ISLAND_KM),
        mid_ocean=in_mid_ocean(lat, lon),
        other_country=pl.Series(in_other_country(lat, lon, rows["country"])),
        country_there=pl.Series(country_of(lat, lon), dtype=pl.String),
    )


def _moment(text: str) -> str | None:
    moment = read_time(text)
    return moment.isoformat() if moment else None


def _known(name: str, words: Mapping[str, str]) -> pl.Expr:
    return pl.col(name).str.to_lowercase().replace_strict(words, default=None, return_dtype=pl.String)


def _notes(**read: pl.Expr) -> pl.Expr:
    """A JSON list of what optional fields hold that could not be read; null without any."""
    notes = [
        pl.when(value.is_null()).then(pl.format(f"{name}_unreadable: {{}}", pl.col(name).str.head(40)))
        for name, value in read.items()
    ]
    lines = pl.concat_list(notes).list.drop_nulls()
    return pl.when(lines.list.len() > 0).then(lines).map_elements(lambda texts: json.dumps(list(texts)), pl.String)


def _picture_columns(picture: Found | str | Refusal) -> dict[str, Any]:
    if isinstance(picture, Refusal):
        return {"no_picture": asdict(picture)}
    if isinstance(picture, Found):
        return {"file": picture.name, "size": picture.size, "mtime_ns": picture.mtime_ns}
    return {"url": picture}


def _of_column(file: Found | Refusal, column: str) -> Found | Refusal:
    return replace(file, column=column) if isinstance(file, Refusal) else file


def is_web_address(text: str) -> bool:
    """Whether it is an http or https address with a host."""
    return host_of(text) is not None and len(text) <= 4096 and text.isprintable() and " " not in text


def file_names(patterns: tuple[str, ...], source_id: str) -> list[str]:
    """Where a picture may lie by its id."""
    forms = {"id": source_id, "flat": source_id.replace("/", "_"), "deep": _FLAT.sub(r"\1/\2/\3", source_id)}
    return list(dict.fromkeys(pattern.format_map(forms) for pattern in patterns))
