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

    places: int = Field(60, ge=2, description="places searched for the estimate, drawn with `seed`")
    scenes: int = Field(8, ge=2, description="satellite pictures whose scenes, indexes and cloud maps are read")
    seed: int = Field(0, ge=0, description="another seed, other places")
    megabytes_per_second: float = Field(12.0, gt=0, description="assumed download rate")
