"""What the reviewer is shown."""

from pydantic import Field

from schemas.settings.base import OPERATIONAL, Settings


class ReviewSettings(Settings):
    """How a snapshot is checked and reported."""

    gallery: int = Field(24, ge=0, le=500, description="kept pictures shown in the report")
    examples_per_reason: int = Field(4, ge=0, le=50, description="pictures shown for each reason of rejection")
    thumbnail_px: int = Field(320, ge=64, le=1024, description="longer side of a picture in the report")
    verify_files: int = Field(
        500, ge=0, description="stored pictures whose bytes are checked against their sha256; spread over all of them"
    )
    auto_approve: bool = Field(
        False,
        description="approve by rule a snapshot that passes every check, for unattended runs; one that fails waits",
        json_schema_extra=OPERATIONAL,
    )
