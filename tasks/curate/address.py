"""The address of every picture under curation, from the packaged boundaries and gazetteer: no request is made."""

import polars as pl

from schemas.settings.curate import AddressSettings
from tasks.geo.labels import labels_of
from tasks.runtime.runner import ColumnStage, Inputs

_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}
LEVELS = (
    "country_code", "country", "region", "city", "country_local", "region_local", "city_local", "district", "city_km",
    "shore_km", "address",
)  # fmt: skip


def compute(inputs: Inputs, settings: AddressSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each measured picture; without a country at sea. No rejects here: the labels' step rejects."""
    wanted = inputs.frame("quality", "image_id")
    points = wanted.join(inputs.frame("images", "image_id", "lat", "lon"), on="image_id")
    labels = labels_of(points["lat"], points["lon"], settings.place_km, settings.shore_km)
    kept = pl.concat([points, labels.select(LEVELS)], how="horizontal").with_columns(id="image_id")
    return kept, pl.DataFrame(schema=_REJECTS)


STAGE = ColumnStage(
    name="curate.address",
    section="curate.address",
    reads=("images", "quality"),
    writes=("addresses",),
    compute=compute,
)
