"""What a picture is rejected for by itself: rights, damage, time, position, pixels; without other pictures or a judge.

A picture that is unfit excludes no other one, so that a copy with a wrong position never displaces the right picture.
"""

import numpy as np
import polars as pl

from schemas.settings.curate import LabelsSettings, QualityLimits
from tasks.geo.distance import distance_km, swapped_km
from tasks.geo.labels import country_codes_of
from tasks.runtime.runner import Inputs

READS = ("images", "places", "quality", "addresses")  # tables
FIGURES = ("width", "height", "blur", "brightness", "dark_share", "bright_share", "blockiness", "sky_share",
           "road_share")  # fmt: skip
_MEASURED = ("too_small", "blurred", "bad_exposure", "over_compressed", "nothing_but_sky_or_road")


def with_own_faults(pictures: pl.DataFrame, inputs: Inputs, settings: LabelsSettings) -> pl.DataFrame:
    """Pictures (`image_id`) with what is known of them alone, and `unfit`, null or the first reason that applies, with
    its `unfit_json`."""
    images = inputs.frame(
        "images", "image_id", "place_id", "sha256", "lat", "lon", "licence", "kind", "captured_at", "fetched_at"
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
    return known.with_columns(unfit=_reason(settings)).with_columns(unfit_json=_evidence(settings))


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


def _reason(settings: LabelsSettings) -> pl.Expr:
    return (
        pl.when(pl.col("licence").str.strip_chars() == "")
        .then(pl.lit("missing_licence"))
        .when(pl.col("damage").is_not_null())
        .then("damage")
        .when(bad_time(settings))
        .then(pl.lit("bad_time"))
        .when(pl.col("swapped_km") <= settings.off_plan_km, pl.col("place_km") > settings.off_plan_km)
        .then(pl.lit("swapped_coordinates"))
        .when(pl.col("place_km") > settings.off_plan_km)
        .then(pl.lit("off_plan"))
        .when(_quality_reason(settings.quality).is_not_null())
        .then(_quality_reason(settings.quality))
        .when(pl.col("addressed") & pl.col("country").is_null())
        .then(pl.lit("no_address"))
        .when(pl.col("place_country") != pl.col("country_code"), pl.col("place_country") != pl.col("place_in"))
        .then(pl.lit("wrong_country"))
    )


def bad_time(settings: LabelsSettings) -> pl.Expr:
    """Whether a picture claims a time at which it cannot have been taken: after it was fetched, or long ago."""
    late = (pl.col("captured_at") > pl.col("fetched_at")).fill_null(False)
    return late | (pl.col("captured_at").dt.year() < settings.least_year).fill_null(False)


def _quality_reason(limits: QualityLimits) -> pl.Expr:
    clipped = pl.col("dark_share") + pl.col("bright_share")
    street = pl.col("kind") != "satellite"
    return (
        pl.when(pl.col("width") * pl.col("height") < limits.least_pixels)
        .then(pl.lit("too_small"))
        .when(pl.col("blur") > limits.max_blur)
        .then(pl.lit("blurred"))
        .when((pl.col("brightness") < limits.least_brightness) | (pl.col("brightness") > limits.max_brightness))
        .then(pl.lit("bad_exposure"))
        .when(clipped > limits.max_clipped)
        .then(pl.lit("bad_exposure"))
        .when(pl.col("blockiness") > limits.max_blockiness)
        .then(pl.lit("over_compressed"))
        .when(street & ((pl.col("sky_share") > limits.max_sky) | (pl.col("road_share") > limits.max_road)))
        .then(pl.lit("nothing_but_sky_or_road"))
        .otherwise(None)
    )


def _evidence(settings: LabelsSettings) -> pl.Expr:
    reason = pl.col("unfit")
    times = (pl.col("captured_at", "fetched_at").dt.to_string("iso"),)
    place = ("lat", "lon", "place_lat", "place_lon", "place_km", "swapped_km")
    return (
        pl.when(reason == "missing_licence")
        .then(pl.struct("licence").struct.json_encode())
        .when(pl.col("damage").is_not_null())
        .then("damage_json")
        .when(reason == "bad_time")
        .then(pl.struct(*times, pl.lit(settings.least_year).alias("least_year")).struct.json_encode())
        .when(reason.is_in(["swapped_coordinates", "off_plan"]))
        .then(pl.struct(*place).struct.json_encode())
        .when(reason.is_in(_MEASURED))
        .then(pl.struct(*FIGURES).struct.json_encode())
        .when(reason == "no_address")
        .then(pl.struct("lat", "lon").struct.json_encode())
        .when(reason == "wrong_country")
        .then(pl.struct("lat", "lon", "country_code", "place_country", "place_in").struct.json_encode())
    )
