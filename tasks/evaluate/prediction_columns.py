"""What the columns of a predictions file are called, here and elsewhere."""

from collections.abc import Mapping, Sequence

import polars as pl

from schemas.errors import InputError
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
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        field, mark, column = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if not mark or not column:
            raise InputError(f"--columns {part.strip()!r}: write field=column, such as true_lat=gt_lat")
        if field not in FIELDS:
            raise InputError(f"--columns {part.strip()!r}: there is no field {field}; there are {', '.join(FIELDS)}")
        found[field] = column
    return found


def renames(columns: Sequence[str], given: Mapping[str, str], path: str) -> dict[str, str]:
    """Column of the file -> field, by what was given and by usual names; a column stands for one field."""
    missing = [column for column in given.values() if column not in columns]
    if missing:
        raise InputError(f"{path}: --columns names {missing[0]}, which it has not; it has {', '.join(columns)}")
    found = {column: field for field, column in given.items()}
    folded = {column.casefold(): column for column in reversed(columns)}
    for field in FIELDS:
        if field in given:
            continue
        for name in _ELSEWHERE.get(field, (field,)):
            column = field if name == field and field in columns else folded.get(name)
            if column is not None and column not in found:
                found[column] = field
                break
    return found


def renamed(table: pl.DataFrame, given: Mapping[str, str], path: str) -> pl.DataFrame:
    """The table with its columns under our names; a column in the way of one keeps its name with `_file`."""
    names = renames(table.columns, given, path)
    taken = set(names.values())
    aside = {column: f"{column}_file" for column in table.columns if column in taken and names.get(column) != column}
    aside = {column: name for column, name in aside.items() if column not in names}
    return table.rename({**aside, **names})
