"""What curation finds out about pictures, one table for each step, and the labels that follow from them."""

from schemas.tables.base import FLOAT, JSON, STRING, Table

TABLES = (
    Table(
        "duplicates",
        ("image_id",),
        {
            "image_id": STRING,
            "split": STRING,  # of its place, or its own where it belongs to no planned place
            "duplicate_of": STRING,  # the picture with the same bytes that stays
            "leaks_into": STRING,  # the split that keeps its sequence
            "evidence_json": JSON,
        },
        required=("split",),
        about="every picture under curation, and which other picture excludes it",
    ),
    Table(
        "judgements",
        ("image_id",),
        {
            "image_id": STRING,
            "sha256": STRING,  # of the judged bytes
            "model": STRING,
            "problem": STRING,  # corrupt_image or no_verdict; null where there is a verdict
            "evidence_json": JSON,  # of the problem
            "localizability": STRING,  # localizable, non_localizable or landmark
            "score": FLOAT,  # 0 to 10
            "reason": STRING,
            "sub_scores_json": JSON,  # the five sub-scores of GeoAgent figure 8, 0 to 10
            "scenes_json": JSON,  # its ten scene categories: yes, no or maybe
        },
        required=("sha256", "model"),
        about="every verdict of the judge, also of pictures that are rejected for it",
    ),
    Table(
        "addresses",
        ("image_id",),
        {
            "image_id": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "country_code": STRING,
            "country": STRING,  # null where the geocoder knows no address
            "region": STRING,
            "city": STRING,
        },
        required=("lat", "lon"),
        about="the geocoder's address of every localizable picture",
    ),
    Table(
        "labels",
        ("image_id",),
        {
            "image_id": STRING,
            "place_id": STRING,
            "sha256": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "country_code": STRING,
            "country": STRING,
            "region": STRING,
            "city": STRING,
            "localizability": STRING,  # localizable; the other classes are rejects
            "localizability_score": FLOAT,
            "judge_model": STRING,
            "judge_reason": STRING,
            "judge_scores_json": JSON,  # the judgement's sub-scores
            "scenes_json": JSON,
            "split": STRING,
            "tier": STRING,
        },
        required=("sha256", "lat", "lon", "split"),
        about="what can be localized, with its address",
    ),
)
