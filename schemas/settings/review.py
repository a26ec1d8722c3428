"""What the reviewer is shown."""

from pydantic import Field

from schemas.settings.base import OPERATIONAL, Settings


class ReviewSettings(Settings):
    """How a snapshot is checked and reported."""

    thumbnail_px: int = Field(320, ge=64, le=1024, description="longer side of a small picture in the site")
    look_around: int = Field(
        200, ge=0, description="panoramas the site shows as a look-around view when it is opened from a file"
    )
    label_precision: float = Field(
        0.9, ge=0, le=1, description="the verdict asks for more marks while the precision's lower bound is below this"
    )
    drift_alarm: float = Field(
        0.25, ge=0, le=1, description="a distribution that moved further since the last approved snapshot is named"
    )
    max_failed_share: float = Field(
        0.1, ge=0, le=1, description="of what a stage was given, the share that may have failed before a check fails"
    )
    sample: int = Field(60, ge=0, le=5000, description="kept pictures drawn at random for people to mark")
    verify_files: int = Field(
        500, ge=0, description="stored pictures whose bytes are checked against their sha256; spread over all of them"
    )
    data_docs: bool = Field(True, description="build Great Expectations' Data Docs beside the site; takes seconds")
    auto_approve: bool = Field(
        False,
        description="approve by rule a snapshot that passes every check, for unattended runs; one that fails waits",
        json_schema_extra=OPERATIONAL,
    )
