"""What curation finds out about pictures, and the labels that follow."""

from schemas.tables.base import FLOAT, JSON, STRING, Table

TABLES = (
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
            "judge_scores_json": JSON,  # the five sub-scores of GeoAgent figure 8, 0 to 10
            "scenes_json": JSON,  # its ten scene categories: yes, no or maybe
            "split": STRING,
            "tier": STRING,
        },
        required=("sha256", "lat", "lon", "split"),
        about="what can be localized, with its address",
    ),
)
