"""What is kept of the collected pictures."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import Settings


class CurateSettings(Settings):
    """How pictures are judged and labelled."""

    kinds: tuple[Literal["panorama", "photo", "satellite"], ...] = Field(
        ("panorama", "photo"),
        min_length=1,
        description="kinds of pictures that are judged and labelled; the others stay in `images` as they are",
    )
    judge_model: str = Field("judge", min_length=1, description="chat model that judges localizability")
    judge_tries: int = Field(
        3, ge=1, le=10, description="requests before an answer that is no verdict counts as failed"
    )
    judge_max_tokens: int = Field(1024, ge=64, description="longest answer of the judge")
    min_score: float = Field(
        0.0, ge=0, le=10, description="localizable pictures with a lower score are rejected; 0 keeps all (GeoVista)"
    )
    view_max_pixels: int = Field(2_000_000, ge=40_000, description="pixels of the picture the judge sees, at most")
