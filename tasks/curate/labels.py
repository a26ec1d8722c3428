"""The labels: pictures, figures, judgements and addresses joined, and the reason why a picture has none.

A picture whose judgement or address is still missing, because its request failed, is neither kept nor rejected here:
it stands in `failures` under the step that is to be repeated. Which of several copies stays is decided last, among
those that position, quality and judge let pass: never are all of them gone because of each other.
"""

from typing import Any

import polars as pl

from schemas.settings.curate import CurateSettings, LabelsSettings, TiersSettings
from schemas.tables import TABLES
from tasks.curate.duplicates import COPIES, exclusion_rows, measured_pictures, read_partners
from tasks.curate.external import read_external, with_digests
from tasks.curate.fitness import READS, with_own_faults
from tasks.curate.judge import to_be_judged
from tasks.curate.leaks import exclusions
from tasks.curate.tiers import tier_of
from tasks.curate.votes import LOCALIZABLE, combined
from tasks.curate.written import place_written
from tasks.runtime.runner import ColumnStage, Inputs

_LABEL = list(TABLES["labels"].columns)
_WAITING = "waiting"  # for a judgement, an address or a confirmation; never written


def compute(inputs: Inputs, settings: CurateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labels and rejects of all pictures whose steps are done."""
    chosen = settings.labels
    pictures = _joined(inputs, settings).with_columns(reason=_reason(chosen))
    pictures = _without_copies(pictures, inputs, settings)
    done = pictures.filter(pl.col("reason").is_null() | (pl.col("reason") != _WAITING))
    kept = done.filter(pl.col("reason").is_null()).select(*_LABEL, id="image_id")
    rejects = done.filter(pl.col("reason").is_not_null()).select(
        "reason", id="image_id", evidence_json=_evidence(chosen)
    )
    return kept, rejects


def _joined(inputs: Inputs, settings: CurateSettings) -> pl.DataFrame:
    pictures = inputs.frame("duplicates").select(
        "image_id", "split", "duplicate_of", excluded="reason", why="evidence_json"
    )
    marks = inputs.frame("fingerprints").select("image_id", "sha256", "phash")
    # A judgement of other bytes is not this picture's; one of the same bytes under another id is.
    judged = combined(inputs.frame("judgements"), settings.labels.votes).with_columns(judged=True)
    by_bytes = judged.drop("image_id").unique("sha256")
    confirmations = inputs.frame("confirmations").select(
        "image_id", "lat", "lon", "same_country", said_country="country", confirmed=True
    )
    return (
        with_own_faults(pictures, inputs, settings.labels)
        .join(marks, on=["image_id", "sha256"], how="left")
        .join(by_bytes, on="sha256", how="left")
        .join(judged, on=["image_id", "sha256"], how="left", suffix="_own")
        .with_columns(pl.coalesce(f"{name}_own", name).alias(name) for name in by_bytes.columns if name != "sha256")
        .join(confirmations, on=["image_id", "lat", "lon"], how="left")
        .join(_tiers(inputs, settings.tiers), on=["image_id", "sha256"], how="left")
        .with_columns(
            wants_verdict=to_be_judged(settings.judge),
            waits_for_geocoder=pl.lit(settings.confirm.enabled) & pl.col("confirmed").is_null(),
            written=pl.struct("judge_reason", "lat", "lon", "country_code").map_elements(_written, pl.String),
        )
    )


def _written(row: dict[str, Any]) -> str | None:
    return place_written(row["judge_reason"], row["lat"], row["lon"], row["country_code"])


def _without_copies(pictures: pl.DataFrame, inputs: Inputs, settings: CurateSettings) -> pl.DataFrame:
    """The pictures with `reason` filled for all but one of several copies that passed everything else.

    The step before the judge chose one of them. Only where that one fell through since, all that passed are chosen
    from anew, by the same rules.
    """
    passed = pictures.filter(pl.col("reason").is_null())
    copies = passed.filter(pl.col("excluded").is_not_null())
    orphans = copies.filter(~pl.col("duplicate_of").is_in(passed["image_id"].implode()))
    if orphans.is_empty():
        return pictures.with_columns(reason=pl.coalesce("reason", "excluded"))
    marks = measured_pictures(inputs).join(passed.select("image_id"), on="image_id", how="semi")
    chosen = settings.duplicates
    alike = read_partners(inputs.frame("duplicates"))
    exclusions_now = exclusion_rows(exclusions(marks, chosen, alike, read_external(chosen.external)))
    anew = exclusions_now.select("image_id", excluded_anew="reason", why_anew="evidence_json")
    through = pl.col("reason").is_null()
    return pictures.join(anew, on="image_id", how="left").with_columns(
        excluded=pl.when(through).then("excluded_anew").otherwise("excluded"),
        why=pl.when(through).then("why_anew").otherwise("why"),
        reason=pl.when(through).then("excluded_anew").otherwise("reason"),
    )


def _tiers(inputs: Inputs, settings: TiersSettings) -> pl.DataFrame:
    answers = inputs.frame("tiers")
    return tier_of(answers if settings.models else answers.clear(), settings)


def _reason(settings: LabelsSettings) -> pl.Expr:
    """Why a picture is rejected, the first reason that applies, other copies of it left aside; null for a label."""
    again, wanted = pl.col("excluded").is_in(COPIES), pl.col("wants_verdict")
    return (
        pl.when(pl.col("unfit").is_not_null())
        .then("unfit")
        .when(pl.col("excluded").is_not_null() & (~again | pl.col("judged").is_null()))
        .then("excluded")
        .when(pl.col("width").is_null() | (wanted & pl.col("judged").is_null()))
        .then(pl.lit(_WAITING))
        .when(wanted & pl.col("problem").is_not_null())
        .then("problem")
        .when(wanted & (pl.col("localizability") != LOCALIZABLE))
        .then("localizability")
        .when(wanted & (pl.col("localizability_score") < settings.min_score))
        .then(pl.lit("low_score"))
        .when(wanted & pl.col("written").is_not_null() & pl.lit(settings.written_place == "reject"))
        .then(pl.lit("place_written"))
        .when(pl.col("addressed").is_null() | pl.col("waits_for_geocoder"))
        .then(pl.lit(_WAITING))
        .when(~pl.col("same_country") & pl.col("purpose").is_null() & pl.lit(settings.disputed == "reject"))
        .then(pl.lit("disputed_address"))
    )


def _evidence(settings: LabelsSettings) -> pl.Expr:
    model, why, score = (
        pl.col(name).alias(short)
        for name, short in (("judge_model", "model"), ("judge_reason", "reason"), ("localizability_score", "score"))
    )
    limit = pl.lit(settings.min_score).alias("min_score")
    reason = pl.col("reason")
    return (
        pl.when(reason == pl.col("unfit"))
        .then("unfit_json")
        .when(reason == pl.col("excluded"))
        .then("why")
        .when(pl.col("problem").is_not_null())
        .then("problem_json")
        .when(reason == "low_score")
        .then(pl.struct(limit, model, why, score).struct.json_encode())
        .when(reason == "place_written")
        .then(pl.struct("written", model).struct.json_encode())
        .when(reason == "disputed_address")
        .then(pl.struct("lat", "lon", "country", "said_country").struct.json_encode())
        .otherwise(pl.struct(model, why, score).struct.json_encode())
    )


def identity(settings: CurateSettings) -> dict[str, object]:
    """What of the part's settings the join depends on: its own section, how tiers and confirmations count, and by what
    one of several copies is chosen."""
    tiers = settings.tiers
    return {
        **settings.labels.model_dump(mode="json"),
        "tiers": [list(tiers.models), tiers.easy_km, tiers.least_right] if tiers.models else [],
        "confirm": settings.confirm.enabled,
        "judged": settings.judge.pictures,
        "duplicates": with_digests(settings.duplicates),
    }


STAGE = ColumnStage(
    name="curate.labels",
    section="curate",
    reads=(*READS, "fingerprints", "duplicates", "judgements", "confirmations", "tiers"),
    writes=("labels",),
    compute=compute,
    identity=identity,
)
