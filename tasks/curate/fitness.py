"""What a picture is rejected for by itself: rights, damage, time, position, pixels; without other pictures or a judge.

A picture that is unfit excludes no other one, so that a copy with a wrong position never displaces the right picture.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from schemas.settings.curate import LabelsSettings
from tasks.geo.distance import distance_km, swapped_km
from tasks.geo.labels import country_codes_of
from tasks.runtime.runner import Inputs

READS = ("images", "places", "quality", "addresses")  # tables
FIGURES = ("width", "height", "blur", "brightness", "dark_share", "bright_share", "blockiness", "sky_share",
           "road_share")  # fmt: skip
DAMAGE = pl.col("damage")  # what is wrong with a file itself


def with_own_faults(pictures: pl.DataFrame, inputs: Inputs, settings: LabelsSettings) -> pl.DataFrame:
    """Pictures (`image_id`) with what is known of them alone, and `unfit`, null or the first reason that applies, with
    its `unfit_json`."""
    images = inputs.frame(
        *("images", "image_id", "place_id", "sha256", "lat", "lon", "licence", "kind", "captured_at", "fetched_at"),
        "purpose",
    )
    # Figures of other bytes, or an address of another point, are not this picture's.
    figures = inputs.frame("quality").select(
        "image_id", "sha256", *FIGURES, damage="problem", damage_json="evidence_json"
    )
    addresses = inputs.frame("addresses").select(
        "image_id", "lat", "lon", "country_code", "country", "region", "city", "address", addressed=True
    )
    places = inputs.frame("places", "place_id", "lat", "lon", "country")
    known = (
        pictures.join(images, on="image_id")
        .join(_distances_to_places(images, places), on="image_id", how="left")
        .join(figures, on=["image_id", "sha256"], how="left")
        .join(addresses, on=["image_id", "lat", "lon"], how="left")
    )
    unfit: Any = pl
    unfit_json: Any = pl
    for condition, reason, evidence in _rules(settings):
        if reason is not DAMAGE:
            condition &= pl.col("purpose").is_null()  # a published set is taken as it is, but for files that are broken
        unfit, unfit_json = unfit.when(condition).then(reason), unfit_json.when(condition).then(evidence)
    return known.with_columns(unfit=unfit, unfit_json=unfit_json)


def _distances_to_places(images: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """One row for each picture that answers a place: `place_km` to it, `swapped_km` with lat and lon exchanged (null
    where that is not a point), the country the place claims and `place_in`, the country it lies in."""
    own = places.select("place_id", place_lat="lat", place_lon="lon", place_country="country").unique("place_id")
    own = own.with_columns(place_in=country_codes_of(own["place_lat"], own["place_lon"]))
    pairs = images.select("image_id", "place_id", "lat", "lon").join(own, on="place_id")
    lat, lon, place_lat, place_lon = (pairs[name].to_numpy() for name in ("lat", "lon", "place_lat", "place_lon"))
    swapped = swapped_km(lat, lon, place_lat, place_lon)
    return pairs.select(
        "image_id",
        "place_lat",
        "place_lon",
        "place_country",
        "place_in",
        place_km=pl.Series(np.atleast_1d(distance_km(lat, lon, place_lat, place_lon)), dtype=pl.Float64),
        swapped_km=pl.Series(np.atleast_1d(swapped), dtype=pl.Float64).fill_nan(None),
    )


def bad_time(settings: LabelsSettings) -> pl.Expr:
    """Whether a picture claims a time at which it cannot have been taken: after it was fetched, or long ago."""
    late = (pl.col("captured_at") > pl.col("fetched_at")).fill_null(False)
    return late | (pl.col("captured_at").dt.year() < settings.least_year).fill_null(False)


def _rules(settings: LabelsSettings) -> Iterator[tuple[pl.Expr, pl.Expr, pl.Expr]]:
    """(condition, reason, evidence) of every fault; the first that applies counts."""

    def rule(condition: pl.Expr, reason: str, *told: str | pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
        return condition, pl.lit(reason), pl.struct(*told).struct.json_encode()

    col, limits, limit_km = pl.col, settings.quality, settings.off_plan_km
    place = ("lat", "lon", "place_lat", "place_lon", "place_km", "swapped_km")
    times = (col("captured_at", "fetched_at").dt.to_string("iso"), pl.lit(settings.least_year).alias("least_year"))
    yield rule(col("licence").str.strip_chars() == "", "missing_licence", "licence")
    yield DAMAGE.is_not_null(), DAMAGE, col("damage_json")
    yield rule(bad_time(settings), "bad_time", *times)
    yield rule((col("swapped_km") <= limit_km) & (col("place_km") > limit_km), "swapped_coordinates", *place)
    yield rule(col("place_km") > limit_km, "off_plan", *place)
    exposed = col("brightness").is_between(limits.least_brightness, limits.max_brightness)
    clipped = col("dark_share") + col("bright_share") > limits.max_clipped
    empty = (col("sky_share") > limits.max_sky) | (col("road_share") > limits.max_road)
    yield rule(col("width") * col("height") < limits.least_pixels, "too_small", *FIGURES)
    yield rule(col("blur") > limits.max_blur, "blurred", *FIGURES)
    yield rule(~exposed | clipped, "bad_exposure", *FIGURES)
    yield rule(col("blockiness") > limits.max_blockiness, "over_compressed", *FIGURES)
    yield rule((col("kind") != "satellite") & empty, "nothing_but_sky_or_road", *FIGURES)
    yield rule(col("addressed") & col("country").is_null(), "no_address", "lat", "lon")
    other = (col("place_country") != col("country_code")) & (col("place_country") != col("place_in"))
    yield rule(other, "wrong_country", "lat", "lon", "country_code", "place_country", "place_in")
