"""Collected pictures, what could not be had, and what the sources still offer."""

import pyarrow as pa

from schemas.tables.base import FLOAT, INT, JSON, STRING, TIME, Table, matches, one_of

TABLES = (
    Table(
        "images",
        ("image_id",),
        {
            "image_id": STRING,
            "kind": STRING,  # panorama, photo or satellite
            "place_id": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "source": STRING,
            "source_id": STRING,
            "sequence_id": STRING,
            "compass_angle": FLOAT,
            "licence": STRING,
            "creator": STRING,
            "attribution": STRING,
            "captured_at": TIME,
            "fetched_at": TIME,
            "request_url": STRING,  # what was queried, without secrets or signatures
            "http_status": INT,
            "sha256": STRING,
            "extension": STRING,  # jpg or png
            "bytes": INT,
            "width": INT,
            "height": INT,
            "split": STRING,  # of a picture that answers no planned place; else the place's split counts
            "purpose": STRING,  # of a published set: benchmark or training, which stays whole; null: to choose from
            "notes": pa.list_(STRING),  # what was odd about it and yet no reason to refuse it
            "etag": STRING,  # the host's mark of the bytes it sent; queried with it again, it says whether they changed
            "source_sha256": STRING,  # of the bytes as they came, before they were assembled and stripped
            "source_bytes": INT,  # how many came
            "prepared": STRING,  # names the settings that made the stored bytes of those that came
            "metadata_json": JSON,  # what else the source said: scenes of a mosaic, corners, camera
        },
        required=("kind", "lat", "lon", "source", "source_id", "licence", "attribution", "sha256"),
        about="what was fetched, under which licence",
        expects=(
            one_of("kind", "panorama", "photo", "satellite"),
            one_of("extension", "jpg", "png"),
            # An id that went through a float looks like 4.546e+18.
            matches("source_id", r"^(?!\d(?:\.\d+)?[eE]\+?\d+$)\S", "source_id never went through a float"),
        ),
        shared=True,  # street views, satellite scenes and ingested photos; the recheck ends rows
    ),
    Table(
        "gaps",
        ("place_id", "kind"),
        {
            "place_id": STRING,
            "kind": STRING,  # of picture: panorama, photo or satellite
            "wanted": INT,
            "got": INT,
            "reason": STRING,
            "evidence_json": JSON,  # how far was searched, what was seen, what was wrong with it
        },
        required=("wanted", "got", "reason"),
        about="pictures that were wanted for a place and could not be had, and why",
    ),
    Table(
        "checks",
        ("subject_id",),
        {
            # an image_id, the place_id of a place that got less than was wanted, or the item_id of a rejected
            # satellite picture
            "subject_id": STRING,
            "subject": STRING,  # image, place or scene
            "place_id": STRING,
            # of an image: same, changed, deleted, lost, unavailable, or withdrawn by us; else look_again
            "status": STRING,
            "news": INT,  # how often something was new so far; items that depend on it are redone when it grows
            "nth": INT,  # how often it was looked at
            "etag": STRING,
            "source_sha256": STRING,
            "checked_at": TIME,
        },
        required=("subject", "place_id", "status", "news", "nth", "checked_at"),
        about="what the source still has, and what it changed",
        keeps_versions=False,  # the next check replaces the last
    ),
    Table(
        "views",
        ("view_id",),
        {
            "view_id": STRING,
            "image_id": STRING,  # the panorama
            "yaw_deg": FLOAT,  # to the right of the panorama's middle, -180 to 180
            "pitch_deg": FLOAT,  # up
            "roll_deg": FLOAT,  # the camera tipped clockwise
            "fov_deg": FLOAT,  # horizontal, between the outer edges of the outermost pixels
            "bearing_deg": FLOAT,  # clockwise from north; null when the panorama has no compass angle
            "width": INT,
            "height": INT,
            "image_sha256": STRING,  # of the panorama it was cut from
            "sha256": STRING,
            "extension": STRING,
            "bytes": INT,
            "licence": STRING,
            "attribution": STRING,
        },
        required=("image_id", "yaw_deg", "pitch_deg", "fov_deg", "width", "height", "sha256", "licence", "attribution"),
        about="perspective views cut from panoramas",
        lives_with="images",
    ),
)
