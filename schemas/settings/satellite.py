"""Which satellite pictures are made for each planned place."""

import re
from datetime import date
from typing import Literal

from pydantic import Field, field_validator, model_validator

from schemas.settings.base import Settings

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_CLASSES = 12  # of the scene classification map: 0 to 11
NATIVE_M = 10.0  # ground resolution of the bands that are read


class Viewport(Settings):
    """One picture of a place: how much ground a pixel shows, and where the picture's middle lies."""

    name: str = Field("centre", description="part of the item's id; small letters, digits, - and _")
    metres_per_pixel: float = Field(
        NATIVE_M,
        ge=1,
        le=320,
        description="ground resolution; 10 and 20 are copied from scenes of the same zone unchanged, others resampled",
    )
    east: float = Field(0, ge=-2, le=2, description="shift of the middle to the east, in sides of the picture")
    north: float = Field(0, ge=-2, le=2, description="shift of the middle to the north, in sides of the picture")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be 1 to 32 small letters, digits, - and _, such as centre or wide")
        return value


class SatelliteSettings(Settings):
    """How scenes are searched, chosen, cleared of clouds and put together (GeoVista appendix A)."""

    enabled: bool = Field(True, description="whether satellite pictures are collected at all")
    size_px: int = Field(2000, ge=64, le=8192, description="width and height of a picture (GeoVista: 2000)")
    viewports: tuple[Viewport, ...] = Field((Viewport(),), min_length=1, description="one picture of each for a place")
    collection: str = Field("sentinel-2-l2a", min_length=1, description="the STAC collection that is searched")
    start: date = Field(date(2023, 5, 1), description="first day of the search; summer half: no snow in the north")
    end: date = Field(date(2023, 9, 30), description="last day of the search")
    max_cloud_percent: float = Field(20, ge=0, le=100, description="cloudier scenes (whole tile) are not looked at")
    assets: Literal["bands", "visual"] = Field(
        "bands",
        description="bands: B04, B03, B02 with our own tones; visual: the provider's 8-bit picture, half the bytes",
    )
    masked_classes: tuple[int, ...] = Field(
        (0, 1, 3, 8, 9, 10), description="SCL classes taken for unusable: no data, saturated, shadow, clouds, cirrus"
    )
    speck_m: float = Field(60, ge=0, le=1000, description="masked spots narrower than this are roofs, not clouds")
    buffer_m: float = Field(
        60, ge=0, le=1000, description="clouds and shadows are widened by this: their rims are soft"
    )
    good_share: float = Field(
        0.97, ge=0, le=1, description="clear share from which the best scenes need no comparison with the next best"
    )
    worth_share: float = Field(
        0.005, ge=0, le=1, description="a further scene must clear at least this share of the picture"
    )
    max_scenes: int = Field(8, ge=1, le=50, description="scenes put together at most")
    tries: int = Field(12, ge=1, le=100, description="scenes whose clouds are looked at for one picture")
    day_cost: float = Field(
        0.05, ge=0, description="cloud percent that one day between the scenes of a picture is worth"
    )
    min_clear_share: float = Field(0.9, ge=0, le=1, description="pictures with less are rejected as cloudy")
    max_no_data_share: float = Field(0.01, ge=0, le=1, description="pictures with more are rejected as empty")
    white: float = Field(0.4, gt=0, le=2, description="reflectance shown as full white: bright sand lies just below")
    gamma: float = Field(1.5, ge=1, le=3, description="above 1, dark ground is shown lighter")
    max_gain: float = Field(1.5, ge=1, le=4, description="most that balancing may lighten or darken a scene")
    jpeg_quality: int = Field(92, ge=50, le=100, description="of the stored picture")

    @field_validator("viewports")
    @classmethod
    def _different_names(cls, value: tuple[Viewport, ...]) -> tuple[Viewport, ...]:
        names = [viewport.name for viewport in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two viewports are named '{twice[0]}': each needs a name of its own")
        return value

    @field_validator("masked_classes")
    @classmethod
    def _known_classes(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        strange = [number for number in value if not 0 <= number < _CLASSES]
        if strange:
            raise ValueError(f"{strange[0]} is not a scene class: they are 0 to {_CLASSES - 1}")
        if 0 not in value:
            raise ValueError("0 (no data) must be among them")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _in_order(self) -> "SatelliteSettings":
        if self.start > self.end:
            raise ValueError(f"start ({self.start}) lies after end ({self.end})")
        return self
