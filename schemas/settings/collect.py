"""What to fetch for each planned place."""

from datetime import date
from typing import Literal

from pydantic import Field, field_validator, model_validator

from schemas.providers import provider_packages
from schemas.settings.base import ADDED, OPERATIONAL, Settings
from schemas.settings.satellite import SatelliteSettings

MAX_HALF_SIZE_M = 20_000.0  # 0.01 square degrees a request: wider boxes mean dozens of requests a place


class RefreshSettings(Settings):
    """Collected pictures, and places that got less than was wanted, are looked at again from time to time."""

    after_days: float | None = Field(
        30.0, ge=0, description="days after which a picture or an unfilled place is due; 0: every run; null: never"
    )
    bytes: Literal["always", "never"] = Field(
        "always",
        description="always: ask the image host whether a picture's bytes changed; never: only whether it exists",
    )


class CollectSettings(Settings):
    """How street-view pictures are searched, chosen and stored."""

    providers: tuple[str, ...] = Field(
        ("mapillary",),
        min_length=1,
        description="street-view providers that are queried, those that are preferred first",
        json_schema_extra=ADDED,
    )
    prefer: Literal["order", "nearest"] = Field(
        "order",
        description="of several providers, in each search box: order: pictures of the first one before those of the "
        "next; nearest: the best score of all",
        json_schema_extra=ADDED,
    )
    panoramas: int = Field(1, ge=0, le=20, description="panoramas wanted for a place")
    photos: int = Field(1, ge=0, le=20, description="perspective photos wanted for a place")
    half_sizes_m: tuple[float, ...] = Field(
        (500.0, 2_000.0, 5_000.0),
        min_length=1,
        description="half the side of the search box in metres; the next is tried when nothing usable was found",
    )
    panorama_width: int = Field(
        4096,
        ge=512,
        le=16_384,
        multiple_of=2,
        description="panoramas are stored with this width and half of it as height (GeoVista: 4096)",
    )
    panorama_min_pixels: int = Field(1_000_000, ge=1, description="smaller panoramas are refused (GeoVista: 1 M)")
    photo_min_pixels: int = Field(300_000, ge=1, description="smaller photos are refused")
    photo_preferred_pixels: int = Field(
        1_920_000, ge=1, description="photos of this size (1600 x 1200) come first, whatever their distance"
    )
    quality_bonus_m: float = Field(
        200.0, ge=0, description="how much farther away a picture of quality 1 may lie than one of quality 0"
    )
    age_penalty_m: float = Field(
        10.0, ge=0, description="how much nearer a picture must be for every year it is older than another"
    )
    age_reference: date = Field(
        date(2027, 1, 1),
        description="years are counted back from this day, never from now: a later run chooses the same",
    )
    sequence_penalty_m: float = Field(
        300.0, ge=0, description="how much nearer a second picture of a sequence must be than one of another sequence"
    )
    sequence_spacing_m: float = Field(
        30.0,
        ge=0,
        description="pictures of one sequence closer together are taken only when there is nothing else",
    )
    max_shift_m: float = Field(
        200.0,
        ge=0,
        description="a picture whose position corrected by matching lies farther from its camera's own is not taken: "
        "one of the two is wrong, and nothing says which",
    )
    find: Literal["auto", "boxes", "tiles"] = Field(
        "auto",
        description="boxes: search by box; tiles: look at vector tiles first and ask only for what they show; "
        "auto: boxes, and tiles where a box is crowded",
        json_schema_extra=OPERATIONAL,  # each finds the same pictures, unless `search_requests` cuts it short
    )
    crowded_rows: int = Field(
        500,
        ge=1,
        le=2000,
        description="a box with this many pictures is taken for incomplete and looked at in smaller pieces; "
        "Mapillary gives at most 2000 and silently fewer in crowded places, of Panoramax this many are requested",
    )
    short_rows: int = Field(
        10,
        ge=0,
        description="pictures below which a box's answer is checked by its tiles: the same box may answer with 0 and 6",
        json_schema_extra=OPERATIONAL,
    )
    search_requests: int = Field(100, ge=1, description="most boxes and tiles of one search around a place")
    looked_at: int = Field(
        200, ge=1, description="most pictures of a kind, seen on tiles, whose details are requested in one search"
    )
    tiles_kept: int = Field(
        1_000_000,
        ge=0,
        description="images of vector tiles that a worker remembers (33 bytes each)",
        json_schema_extra=OPERATIONAL,
    )
    tries: int = Field(5, ge=1, le=50, description="pictures tried before a place's wish for one is given up")
    downloads: int = Field(2, ge=1, le=10, description="downloads of one picture before it counts as corrupt")
    # A section of its own: it makes no street-view picture another one.
    satellite: SatelliteSettings = Field(SatelliteSettings(), json_schema_extra=OPERATIONAL)
    # When to look again makes no place another one.
    refresh: RefreshSettings = Field(RefreshSettings(), json_schema_extra=OPERATIONAL)

    @field_validator("providers")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = provider_packages()
        if any(name not in known for name in value) or len(set(value)) < len(value):
            raise ValueError(f"must be a list of {', '.join(known)}, each once")
        return value

    @field_validator("half_sizes_m")
    @classmethod
    def _grow(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < half_size_m <= MAX_HALF_SIZE_M for half_size_m in value):
            raise ValueError(f"each must be above 0 and at most {MAX_HALF_SIZE_M:.0f}")
        if list(value) != sorted(set(value)):
            raise ValueError("must grow from one to the next, because each is tried when the one before found nothing")
        return value

    @model_validator(mode="after")
    def _want_something(self) -> "CollectSettings":
        if self.panoramas + self.photos == 0 and not self.satellite.enabled:
            raise ValueError("panoramas and photos are both 0 and satellite.enabled is false: nothing to collect")
        return self
