"""Read a predictions file (jsonl, csv or Parquet), or say which row and field is wrong and what to do."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import polars as pl

from schemas.errors import InputError
from tasks.lake.ids import float_can_hold, written_as_float
from tasks.reward.levels import LEVELS

COORDINATES = ("lat", "lon", "true_lat", "true_lon")
FIELDS = ("id", "answer", *COORDINATES, *LEVELS)
# Names in published prediction files, most certain first; compared without case.
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "id": ("id", "image_id", "img_id", "imageid", "img_path", "image", "filename"),
    "answer": ("answer", "response", "prediction", "output", "model_answer"),
    "lat": ("lat", "pred_lat", "predicted_lat", "lat_pred", "predicted_latitude", "pred_latitude", "latitude_pred"),
    "lon": (
        *("lon", "pred_lon", "predicted_lon", "lon_pred", "pred_lng", "predicted_lng", "predicted_longitude"),
        *("pred_longitude", "lng", "longitude_pred"),
    ),
    "true_lat": ("true_lat", "gt_lat", "lat_true", "gt_latitude", "true_latitude", "lat_gt", "real_lat"),
    "true_lon": ("true_lon", "gt_lon", "lon_true", "gt_lng", "gt_longitude", "true_longitude", "lon_gt", "real_lon"),
    "province_or_state": ("province_or_state", "region", "state", "province"),
}


def parse_columns(text: str | None) -> dict[str, str]:
    """`lat=pred_lat,true_lat=gt_lat` as field -> column of the file."""
    columns: dict[str, str] = {}
    for part in (text or "").split(","):
        field, mark, column = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if not mark or not column:
            raise InputError(f"--columns {part.strip()!r}: write field=column, such as true_lat=gt_lat")
        if field not in FIELDS:
            raise InputError(f"--columns {part.strip()!r}: there is no field {field}; there are {', '.join(FIELDS)}")
        columns[field] = column
    return columns


def column_fields(columns: Sequence[str], chosen: Mapping[str, str], path: str) -> dict[str, str]:
    """Column of the file -> field, by what was given and by usual names; a column stands for one field."""
    missing = [column for column in chosen.values() if column not in columns]
    if missing:
        raise InputError(f"{path}: --columns names {missing[0]}, which it has not; it has {', '.join(columns)}")
    fields = {column: field for field, column in chosen.items()}
    folded = {column.casefold(): column for column in reversed(columns)}
    for field in FIELDS:
        if field in chosen:
            continue
        for name in _ELSEWHERE.get(field, (field,)):
            column = field if name == field and field in columns else folded.get(name)
            if column is not None and column not in fields:
                fields[column] = field
                break
    return fields


def rename_columns(table: pl.DataFrame, chosen: Mapping[str, str], path: str) -> pl.DataFrame:
    """The table with its columns under our names; a column in the way of one keeps its name with `_file`."""
    names = column_fields(table.columns, chosen, path)
    taken = set(names.values())
    aside = {column: f"{column}_file" for column in table.columns if column in taken and names.get(column) != column}
    aside = {column: name for column, name in aside.items() if column not in names}
    return table.rename({**aside, **names})


FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}
_ENOUGH_LONG_IDS = 20  # by chance, 20 long ids are all round in binary once in a million files

_ENOUGH_ZEROS = 3  # long ids that end in four zeros: by chance once in a million million
_FIELDS = "id, answer (text) or lat and lon, true_lat, true_lon, and optionally country, province_or_state, city"


class PredictionsError(InputError):
    """A predictions file that cannot be scored; the message names file, row, field and the way out."""


def read_predictions(path: Path, columns: Mapping[str, str] | None = None) -> tuple[pl.DataFrame, list[str]]:
    """The rows with `id`, `true_lat`, `true_lon` and what was answered, and warnings worth showing.

    `columns` says what the fields are called in this file; usual names are known without it.
    """
    kind = FORMATS.get(path.suffix.casefold())
    if kind is None:
        raise PredictionsError(f"{path}: the file name must end in {', '.join(FORMATS)}, to say what it is")
    if not path.is_file():
        raise PredictionsError(f"{path}: there is no such file")
    table = _read(path, kind, columns or {})
    if table.height == 0:
        raise PredictionsError(f"{path}: the file holds no predictions")
    table = rename_columns(table, columns or {}, str(path))
    reader = _Checks(path, kind)
    reader.fields(table)
    ids, warnings = reader.ids(table["id"])
    table = table.with_columns(ids.alias("id"))
    table = table.with_columns(reader.truth(table, name) for name in ("true_lat", "true_lon"))
    if "answer" in table.columns:
        table = table.with_columns(pl.col("answer").cast(pl.String))
    else:
        # What was written as text stays beside the number, so that a miss can say why it is one.
        texts = [name for name in ("lat", "lon") if not table.schema[name].is_numeric()]
        table = table.with_columns(pl.col(name).cast(pl.String).alias(f"{name}_text") for name in texts)
        table = table.with_columns(_number(f"{name}_text").alias(name) for name in texts)
        table = table.with_columns(pl.col("lat", "lon").cast(pl.Float64))
    for level in LEVELS:
        if level in table.columns:
            text = pl.col(level).cast(pl.String).str.strip_chars()
            table = table.with_columns(pl.when(text != "").then(text).alias(level))
    return table, warnings


def has_levels(table: pl.DataFrame) -> bool:
    """Whether the truth names any administrative level."""
    return any(level in table.columns for level in LEVELS)


def _read(path: Path, kind: str, chosen: Mapping[str, str]) -> pl.DataFrame:
    try:
        if kind == "parquet":
            return pl.read_parquet(path)
        if kind == "jsonl":
            return _read_json_lines(path)
        return _read_csv(path, _separator(path, kind), chosen)
    except pl.exceptions.NoDataError:
        return pl.DataFrame()
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())[:200]
        raise PredictionsError(f"{path}: this is not a readable {kind} file: {line}") from error


def _read_csv(path: Path, separator: str, chosen: Mapping[str, str]) -> pl.DataFrame:
    """All columns as text, since a reader that guesses types turns long ids into floats; coordinates as numbers.

    Where one coordinate is not a finite number, all are text, so that a miss can say why it is one.
    """
    columns = pl.read_csv(path, separator=separator, infer_schema=False, n_rows=0).columns
    fields = column_fields(columns, chosen, str(path)).items()
    numbers: dict[str, Any] = {column: pl.Float64 for column, field in fields if field in COORDINATES}
    try:
        table = pl.read_csv(path, separator=separator, infer_schema=False, schema_overrides=numbers)
    except pl.exceptions.ComputeError:
        return pl.read_csv(path, separator=separator, infer_schema=False)
    if all(table[name].is_finite().all() for name in numbers):  # nulls, empty cells, do not count
        return table
    return pl.read_csv(path, separator=separator, infer_schema=False)


def _separator(path: Path, kind: str) -> str:
    """Published files come with semicolons too; the head tells."""
    if kind == "tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline()
    return ";" if ";" in head and "," not in head else ","


def _read_json_lines(path: Path) -> pl.DataFrame:
    columns: dict[str, list[str | None]] = {}
    height = 0
    for number, row in _json_rows(path):
        for name, value in row.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = []
            column.extend([None] * (height - len(column)))
            column.append(_as_text(path, number, name, value))
        height += 1
    for column in columns.values():
        column.extend([None] * (height - len(column)))
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                # Numbers stay as written: 1.23e17 must still look like it, and a long id keep its digits.
                row = json.loads(line, parse_float=_Written, parse_int=_Written)
            except (ValueError, RecursionError) as error:
                raise PredictionsError(
                    f"{path}: line {number} is not JSON ({error}); write one object a line"
                ) from error
            if not isinstance(row, dict):
                raise PredictionsError(f"{path}: line {number} is not an object with fields; write one object a line")
            yield number, row


class _Written(str):
    """A JSON number as it was written."""


def _as_text(path: Path, number: int, name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if name == "answer":  # an answer given as an object is the fixed JSON itself
        return json.dumps(value, default=str)
    if isinstance(value, float):  # NaN and Infinity
        return str(value)
    if name not in FIELDS and not name.endswith(("lat", "lon", "lng")):
        return json.dumps(value, default=str, ensure_ascii=False)
    raise PredictionsError(
        f"{path}: line {number}, field {name}: {json.dumps(value)[:60]} is neither text nor a number"
    )


def _number(column: str) -> pl.Expr:
    return pl.col(column).str.strip_chars().cast(pl.Float64, strict=False)


class _Checks:
    """The checks of one file; each names the row as an editor would show it."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path = path
        # a csv's header is a line of its own
        self._first, self._word = (2, "line") if kind in ("csv", "tsv") else (1, "row")

    def fields(self, table: pl.DataFrame) -> None:
        """Refuse a table without the fields that scoring needs."""
        have = set(table.columns)
        missing = [name for name in ("id", "true_lat", "true_lon") if name not in have]
        if "answer" not in have and not {"lat", "lon"} <= have:
            missing.append("answer (or lat and lon)")
        if missing:
            raise PredictionsError(
                f"{self._path}: no field {', '.join(missing)}; it has {', '.join(table.columns)}; needed are {_FIELDS}"
                "; --columns field=column,… says what they are called here"
            )
        for name in ("id", "answer", "lat", "lon", "true_lat", "true_lon", *LEVELS):
            kind = table.schema.get(name, pl.String)
            if not (kind.is_numeric() or kind in (pl.String, pl.Null)):
                raise PredictionsError(f"{self._path}: field {name} holds {kind}; store it as text or a number")

    def ids(self, ids: pl.Series) -> tuple[pl.Series, list[str]]:
        """The ids as text; refuses missing, repeated and damaged ones."""
        if ids.dtype.is_float():
            self._fail(
                0, "id", f"is stored as a floating-point number ({ids[0]!r}), which cannot hold long ids", _ID_FIX
            )
        warnings = []
        if ids.dtype.is_integer():
            warnings.append("ids are integers; they were taken as text, digit by digit. Store ids as text")
        text = ids.cast(pl.String).alias("id")
        empty = pl.col("id").is_null() | (pl.col("id").str.strip_chars() == "")
        # Side by side on all cores. Equal ids have equal hashes, which are counted several times faster than texts.
        some_empty, some_numbers, hashes = (
            text.to_frame()
            .select(
                empty.any().alias("empty"),
                pl.col("id").str.contains(r"^[-+]?\d").any().alias("numbers"),
                pl.col("id").hash().n_unique().alias("hashes"),
            )
            .row(0)
        )
        if some_empty:
            row = _first(text.to_frame().select(empty).to_series())
            self._fail(row, "id", "is empty", "give every row the id of its picture")
        if some_numbers:
            self._numbers(text)
        if hashes < text.len() and (twice := text.is_duplicated()).any():
            row = _first(twice)
            again = int((text == text[row]).arg_true()[1])
            fix = "keep one prediction a picture"
            self._fail(row, "id", f"{text[row]!r} stands again in {self._word} {again + self._first}", fix)
        return text, warnings

    def _numbers(self, text: pl.Series) -> None:
        """Refuse ids that are numbers a float has rounded."""
        damaged = text.to_frame("id").select(written_as_float(pl.col("id"))).to_series()
        if damaged.any():
            row = _first(damaged)
            self._fail(row, "id", f"{text[row]!r} was an id before it went through a float", _ID_FIX)
        if _rounded(text):
            self._fail(
                0, "id", f"{text[0]!r} and all other long ids are round in binary: they went through a float", _ID_FIX
            )
        zeros = text.str.contains(r"^\d{6,}0000$").sum()
        if zeros >= _ENOUGH_ZEROS and zeros * 2 > text.len():
            row = _first(text.str.contains(r"^\d{6,}0000$"))
            self._fail(
                row, "id", f"{text[row]!r} and most others end in zeros: a float rounded them to its digits", _ID_FIX
            )

    def truth(self, table: pl.DataFrame, name: str) -> pl.Series:
        """A column of true coordinates; refuses what is missing, no number or off the Earth."""
        limit = 90 if name == "true_lat" else 180
        column = table[name]
        values = column.cast(pl.Float64) if column.dtype.is_numeric() else _parse(column)
        bad = values.is_null() | values.is_nan() | (values.abs() > limit)
        if bad.any():
            self._refuse_truth(table, name, values, bad)
        return values.alias(name)

    def _refuse_truth(self, table: pl.DataFrame, name: str, values: pl.Series, bad: pl.Series) -> NoReturn:
        limit = 90 if name == "true_lat" else 180
        row, count = _first(bad), int(bad.sum())
        more = f" (and {count - 1} more rows)" if count > 1 else ""
        cell = table[name][row]
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            self._fail(row, name, f"is empty{more}", "give the true position in degrees")
        value = values[row]
        if value is None or value != value:
            self._fail(row, name, f"{cell!r} is not a number{more}", "write degrees such as 48.8566")
        other = _parse(table["true_lon" if name == "true_lat" else "true_lat"].cast(pl.String))[row]
        swapped = name == "true_lat" and abs(value) <= 180 and other is not None and abs(other) <= 90
        fix = "true_lat and true_lon look swapped: exchange the two columns" if swapped else "correct the position"
        self._fail(row, name, f"{value:g} is outside -{limit}..{limit}{more}", fix)

    def _fail(self, row: int, field: str, problem: str, fix: str) -> NoReturn:
        raise PredictionsError(f"{self._path}: {self._word} {row + self._first}, field {field}: {problem}; {fix}")


_ID_FIX = "write ids as text from the start (pandas: dtype={'id': str}; JSON: in quotes; a spreadsheet: format as text)"


def _first(mask: pl.Series) -> int:
    return int(mask.arg_true()[0])


def _parse(column: pl.Series) -> pl.Series:
    return column.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)


def _rounded(ids: pl.Series) -> bool:
    """Whether every long numeric id is one that a 64-bit float can hold: chance does not do that twenty times."""
    long = ids.filter(ids.str.contains(r"^\d{17,19}$")).head(1000).to_list()
    return len(long) >= _ENOUGH_LONG_IDS and all(float_can_hold(int(number)) for number in long)
