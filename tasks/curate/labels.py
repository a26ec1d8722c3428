"""The labels: pictures, figures, judgements and addresses joined, and the reason why a picture has none.

A picture whose judgement or address is still missing, because its request failed, is neither kept nor rejected here:
it stands in `failures` under the step that is to be repeated.
"""

import numpy as np
import polars as pl

from schemas.settings.curate import CurateSettings, LabelsSettings, QualityLimits, TiersSettings
from schemas.tables import TABLES
from tasks.curate.tiers import tier_of
from tasks.curate.votes import LOCALIZABLE, combined
from tasks.geo.distance import distance_km, swapped_km
from tasks.geo.labels import country_codes_of
from tasks.runtime.runner import ColumnStage, Inputs

_LABEL = list(TABLES["labels"].columns)
_WAITING = "waiting"  # for a judgement, an address or a confirmation; never written


def compute(inputs: Inputs, settings: CurateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labels and rejects of all pictures whose steps are done."""
    chosen = settings.labels
    pictures = _joined(inputs, settings).with_columns(reason=_reason(chosen))
    done = pictures.filter(pl.col("reason").is_null() | (pl.col("reason") != _WAITING))
    kept = done.filter(pl.col("reason").is_null()).select(*_LABEL, id="image_id")
    rejects = done.filter(pl.col("reason").is_not_null()).select(
        "reason", id="image_id", evidence_json=_evidence(chosen)
    )
    return kept, rejects


def _joined(inputs: Inputs, settings: CurateSettings) -> pl.DataFrame:
    images = inputs.frame("images").select(
        "image_id", "place_id", "sha256", "lat", "lon", "licence", "kind", "captured_at", "fetched_at"
    )
    pictures = inputs.frame("duplicates").select("image_id", "split", excluded="reason", why="evidence_json")
    # Figures or a judgement of other bytes, or an address of another point, are not this picture's.
    figures = inputs.frame("quality").select(
        "image_id", "sha256", "blur", "brightness", "dark_share", "bright_share", "blockiness", "sky_share",
        "road_share", "width", "height", damage="problem", damage_json="evidence_json",
    )  # fmt: skip
    marks = inputs.frame("fingerprints").select("image_id", "sha256", "phash")
    judged = combined(inputs.frame("judgements"), settings.labels.votes).with_columns(judged=True)
    addresses = inputs.frame("addresses").select(
        "image_id", "lat", "lon", "country_code", "country", "region", "city", "address", addressed=True
    )
    said = inputs.frame("confirmations").select(
        "image_id", "lat", "lon", "same_country", said_country="country", confirmed=True
    )
    return (
        pictures.join(images, on="image_id")
        .join(_distances_to_places(inputs.frame("images"), inputs.frame("places")), on="image_id", how="left")
        .join(figures, on=["image_id", "sha256"], how="left")
        .join(marks, on=["image_id", "sha256"], how="left")
        .join(judged, on=["image_id", "sha256"], how="left")
        .join(addresses, on=["image_id", "lat", "lon"], how="left")
        .join(said, on=["image_id", "lat", "lon"], how="left")
        .join(_tiers(inputs, settings.tiers), on=["image_id", "sha256"], how="left")
        .with_columns(waits_for_geocoder=pl.lit(settings.confirm.enabled) & pl.col("confirmed").is_null())
    )


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


def _tiers(inputs: Inputs, settings: TiersSettings) -> pl.DataFrame:
    answers = inputs.frame("tiers")
    return tier_of(answers if settings.models else answers.clear(), settings)


def _reason(settings: LabelsSettings) -> pl.Expr:
    """Why a picture is rejected, the first reason that applies; null for a label."""
    return (
        pl.when(pl.col("excluded").is_not_null())
        .then("excluded")
        .when(pl.col("licence").str.strip_chars() == "")
        .then(pl.lit("missing_licence"))
        .when(pl.col("damage").is_not_null())
        .then("damage")
        .when(pl.col("width").is_null())
        .then(pl.lit(_WAITING))
        .when(bad_time(settings))
        .then(pl.lit("bad_time"))
        .when(pl.col("swapped_km") <= settings.off_plan_km, pl.col("place_km") > settings.off_plan_km)
        .then(pl.lit("swapped_coordinates"))
        .when(pl.col("place_km") > settings.off_plan_km)
        .then(pl.lit("off_plan"))
        .when(_quality_reason(settings.quality).is_not_null())
        .then(_quality_reason(settings.quality))
        .when(pl.col("judged").is_null())
        .then(pl.lit(_WAITING))
        .when(pl.col("problem").is_not_null())
        .then("problem")
        .when(pl.col("localizability") != LOCALIZABLE)
        .then("localizability")
        .when(pl.col("localizability_score") < settings.min_score)
        .then(pl.lit("low_score"))
        .when(pl.col("addressed").is_null() | pl.col("waits_for_geocoder"))
        .then(pl.lit(_WAITING))
        .when(pl.col("country").is_null())
        .then(pl.lit("no_address"))
        .when(pl.col("place_country") != pl.col("country_code"), pl.col("place_country") != pl.col("place_in"))
        .then(pl.lit("wrong_country"))
        .when(~pl.col("same_country") & pl.lit(settings.disputed == "reject"))
        .then(pl.lit("disputed_address"))
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


_FIGURES = ("width", "height", "blur", "brightness", "dark_share", "bright_share", "blockiness", "sky_share",
            "road_share")  # fmt: skip


def _evidence(settings: LabelsSettings) -> pl.Expr:
    model, why, score = (
        pl.col(name).alias(short)
        for name, short in (("judge_model", "model"), ("judge_reason", "reason"), ("localizability_score", "score"))
    )
    limit = pl.lit(settings.min_score).alias("min_score")
    reason = pl.col("reason")
    place = ("lat", "lon", "place_lat", "place_lon", "place_km", "swapped_km")
    measured = ["too_small", "blurred", "bad_exposure", "over_compressed", "nothing_but_sky_or_road"]
    times = (pl.col("captured_at", "fetched_at").dt.to_string("iso"),)
    return (
        pl.when(pl.col("excluded").is_not_null())
        .then("why")
        .when(reason == "missing_licence")
        .then(pl.struct("licence").struct.json_encode())
        .when(pl.col("damage").is_not_null())
        .then("damage_json")
        .when(reason == "bad_time")
        .then(pl.struct(*times, pl.lit(settings.least_year).alias("least_year")).struct.json_encode())
        .when(reason.is_in(["swapped_coordinates", "off_plan"]))
        .then(pl.struct(*place).struct.json_encode())
        .when(reason.is_in(measured))
        .then(pl.struct(*_FIGURES).struct.json_encode())
        .when(pl.col("problem").is_not_null())
        .then("problem_json")
        .when(reason == "low_score")
        .then(pl.struct(limit, model, why, score).struct.json_encode())
        .when(reason == "no_address")
        .then(pl.struct("lat", "lon").struct.json_encode())
        .when(reason == "wrong_country")
        .then(pl.struct("lat", "lon", "country_code", "place_country", "place_in").struct.json_encode())
        .when(reason == "disputed_address")
        .then(pl.struct("lat", "lon", "country", "said_country").struct.json_encode())
        .otherwise(pl.struct(model, why, score).struct.json_encode())
    )


def identity(settings: CurateSettings) -> dict[str, object]:
    """What of the part's settings the join depends on: its own section, and how tiers and confirmations count."""
    tiers = settings.tiers
    return {
        **settings.labels.model_dump(mode="json"),
        "tiers": [list(tiers.models), tiers.easy_km, tiers.least_right] if tiers.models else [],
        "confirm": settings.confirm.enabled,
    }


STAGE = ColumnStage(
    name="curate.labels",
    section="curate",
    reads=(
        "images", "places", "quality", "fingerprints", "duplicates", "judgements", "addresses", "confirmations",
        "tiers",
    ),
    writes=("labels",),
    compute=compute,
    identity=identity,
)  # fmt: skip
