"""How pictures are curated: one section for each step, and the identity of a step is its own section."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import Settings


class DuplicatesSettings(Settings):
    """Which pictures are curated; they are compared with each other before any is judged."""

    kinds: tuple[Literal["panorama", "photo", "satellite"], ...] = Field(
        ("panorama", "photo"),
        min_length=1,
        description="kinds of pictures that are curated; the others stay in `images` as they are",
    )


class JudgeSettings(Settings):
    """The chat model that judges whether a picture can be localized."""

    model: str = Field("judge", min_length=1, description="chat model that judges localizability")
    tries: int = Field(
        3, ge=1, le=10, description="requests for one picture before it is rejected because no answer is a verdict"
    )
    max_tokens: int = Field(1024, ge=64, description="longest answer of the judge")
    view_max_pixels: int = Field(2_000_000, ge=40_000, description="pixels of the picture the judge sees, at most")


class AddressSettings(Settings):
    """The address of a localizable picture, from the geocoder."""

    zoom: int = Field(10, ge=3, le=18, description="level of detail asked of the geocoder: 10 is a city, 18 a building")


class LabelsSettings(Settings):
    """Which judged pictures become labels."""

    min_score: float = Field(
        0.0, ge=0, le=10, description="localizable pictures with a lower score are rejected; 0 keeps all (GeoVista)"
    )


class CurateSettings(Settings):
    """How pictures are compared, judged, addressed and labelled."""

    duplicates: DuplicatesSettings = DuplicatesSettings()
    judge: JudgeSettings = JudgeSettings()
    address: AddressSettings = AddressSettings()
    labels: LabelsSettings = LabelsSettings()
