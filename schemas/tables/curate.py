"""What curation finds out about pictures, one table for each step, and the labels that follow from them."""

import pyarrow as pa

from schemas.tables.base import BOOL, FLOAT, INT, JSON, STRING, Table, between, matches, one_of

TABLES = (
    Table(
        "fingerprints",
        ("image_id",),
        {
            "image_id": STRING,
            "sha256": STRING,  # of the bytes they were taken of
            "phash": STRING,  # 64 bits as 16 hex digits
            "phash_mirrored": STRING,  # of the picture turned left to right
            "embedding": pa.list_(pa.float32()),  # of length 1; tasks/imaging/hashes.py
            # Hashes of parts of the picture, where they lie, and what confirms a copy: tasks/imaging/patches.py
            "patches": pa.list_(STRING),
            "patches_mirrored": pa.list_(STRING),
            "patch_places": pa.list_(pa.float32()),  # x, y and radius of each, in widths of the picture
            "thumbnail": pa.list_(pa.int16()),  # grey, its longer side 64
            "aspect": FLOAT,  # height by width
        },
        required=("sha256", "phash", "phash_mirrored"),
        about="hashes and embeddings by which near-duplicates are found",
        expects=tuple(
            matches(name, r"^[0-9a-f]{16}$", f"{name} is 16 hex digits") for name in ("phash", "phash_mirrored")
        ),
    ),
    Table(
        "quality",
        ("image_id",),
        {
            "image_id": STRING,
            "sha256": STRING,
            "problem": STRING,  # corrupt_image; null where it could be measured
            "evidence_json": JSON,  # of the problem
            "width": INT,
            "height": INT,
            "blur": FLOAT,  # 0 sharp to 1 without an edge
            "brightness": FLOAT,  # 0 to 1
            "contrast": FLOAT,
            "dark_share": FLOAT,
            "bright_share": FLOAT,
            "blockiness": FLOAT,  # 1: no blocks to be seen
            "bits_per_pixel": FLOAT,
            "sky_share": FLOAT,
            "road_share": FLOAT,
        },
        required=("sha256",),
        about="what the pixels of every picture under curation measure",
        expects=(
            one_of("problem", "corrupt_image"),
            *(
                between(name, 0, 1)
                for name in ("blur", "brightness", "dark_share", "bright_share", "sky_share", "road_share")
            ),
        ),
    ),
    Table(
        "duplicates",
        ("image_id",),
        {
            "image_id": STRING,
            "split": STRING,  # of its place, or its own where it belongs to no planned place
            "unfit": STRING,  # the reason for which it is rejected by itself; it excludes no other picture then
            # exact_duplicate, near_duplicate, mirrored_duplicate, spatial_duplicate, sequence_leak, creator_leak,
            # radius_leak or external_leak; null for a picture that stays
            "reason": STRING,
            "duplicate_of": STRING,  # the picture that stays instead of it
            "leaks_into": STRING,  # the split, or the external file, that keeps what they share
            "evidence_json": JSON,
            "alike_json": JSON,  # the pictures that look like it: of, reason, evidence; in one row of each pair
        },
        required=("split",),
        about="every picture under curation, and which other picture excludes it",
        expects=(
            one_of(
                "reason",
                *("exact_duplicate", "near_duplicate", "mirrored_duplicate", "spatial_duplicate"),
                *("sequence_leak", "creator_leak", "radius_leak", "external_leak"),
            ),
        ),
    ),
    Table(
        "judgements",
        ("image_id", "model"),
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
        required=("sha256",),
        about="every verdict of every judge, also of pictures that are rejected for it",
        expects=(
            one_of("problem", "corrupt_image", "no_verdict"),
            one_of("localizability", "localizable", "non_localizable", "landmark"),
        ),
    ),
    Table(
        "addresses",
        ("image_id",),
        {
            "image_id": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "country_code": STRING,
            "country": STRING,  # null at sea
            "region": STRING,
            "city": STRING,
            "country_local": STRING,
            "region_local": STRING,
            "city_local": STRING,
            "district": STRING,  # the smaller division the boundaries know, where there is one
            "city_km": FLOAT,  # from the town's centre
            "shore_km": FLOAT,  # from land; 0 on it
            "address": STRING,  # Country; Region; Place
        },
        required=("lat", "lon"),
        about="the address of every picture, from packaged boundaries and gazetteer",
    ),
    Table(
        "confirmations",
        ("image_id",),
        {
            "image_id": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "country_code": STRING,
            "country": STRING,
            "region": STRING,
            "city": STRING,
            "same_country": BOOL,
            "same_region": BOOL,
            "same_city": BOOL,
        },
        required=("lat", "lon"),
        about="what a configured geocoder says of the addresses, and whether it agrees",
    ),
    Table(
        "tiers",
        ("image_id", "model"),
        {
            "image_id": STRING,
            "sha256": STRING,
            "model": STRING,
            "answer": STRING,
            "parse_error": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "error_km": FLOAT,
        },
        required=("sha256",),
        about="where base models place a localizable picture zero-shot",
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
            "address": STRING,  # Country; Region; Place
            "localizability": STRING,  # localizable; the other classes are rejects; null: no judge was queried
            "localizability_score": FLOAT,  # mean of the judges
            "judge_model": STRING,  # all that voted, parted by commas
            "judge_reason": STRING,
            "judge_scores_json": JSON,  # the sub-scores, means of the judges
            "scenes_json": JSON,
            "phash": STRING,
            "split": STRING,
            "tier": STRING,  # easy or hard; null where no base model was queried
        },
        required=("sha256", "lat", "lon", "split"),
        about="what can be localized, with its address",
        expects=(one_of("tier", "easy", "hard"),),
    ),
)
