"""When what was collected is looked at again, and how much is asked for an estimate."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import Settings


class RefreshSettings(Settings):
    """Collected pictures, and places that got less than was wanted, are looked at again from time to time."""

    after_days: float | None = Field(
        30.0, ge=0, description="days after which a picture or an unfilled place is due; 0: every run; null: never"
    )
    bytes: Literal["always", "never"] = Field(
        "always",
        description="always: ask the image host whether a picture's bytes changed; never: only whether it exists",
    )


class EstimateSettings(Settings):
    """What `geofix collect --dry-run` asks the services before it answers: metadata of a few places, no picture."""

    places: int = Field(24, ge=2, description="places asked for at first, drawn with `seed`")
    most_places: int = Field(200, ge=2, description="more are asked for up to this many while the estimate is loose")
    scenes: int = Field(6, ge=2, description="satellite pictures at first: their scenes, indexes and cloud maps")
    most_scenes: int = Field(30, ge=2, description="more are asked for up to this many while the estimate is loose")
    precision: float = Field(
        0.15, gt=0, lt=1, description="tight is an estimate whose 95 % interval reaches at most this share to each side"
    )
    seed: int = Field(0, ge=0, description="another seed, other places")
    megabytes_per_second: float = Field(
        12.0, gt=0, description="assumed speed of the line, until a finished run has shown how long a place takes"
    )
