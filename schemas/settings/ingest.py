"""Bringing in a table of photos: how it is read, what a row must have, and which pictures are good enough."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from schemas.providers import provider_packages
from schemas.settings.base import OPERATIONAL, Settings

LayoutName = Literal[
    "auto", "plain", "mp16-pro", "im2gps3k", "yfcc4k", "osv5m", "geocomp", "imageo-2", "street-view-text"
]
SplitName = Literal["train", "validation", "benchmark"]
Purpose = Literal["benchmark", "training", "pool"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TAKEN = frozenset({"sentinel-2-l2a", "sentinel-2", "planetary-computer"})


def is_taken(name: str) -> bool:
    """Whether other parts write this into images.source: a dataset of that name could not be told from theirs."""
    return name.casefold() in _TAKEN or name.casefold() in provider_packages()


ATTRIBUTED = ("id", "creator", "licence")  # what an attribution may hold in braces


def is_dataset_name(name: str) -> bool:
    """Whether it can name a dataset: it becomes a file name and the beginning of every item's id."""
    return _NAME.fullmatch(name) is not None and not is_taken(name)


class PictureRules(Settings):
    """Which pictures are taken, and how they are stored."""

    min_pixels: int = Field(40_000, ge=1, description="smaller photos are refused; 40,000 is a model's least")
    panorama_width: int = Field(
        4096,
        ge=512,
        le=16_384,
        multiple_of=2,
        description="panoramas are stored with this width and half of it as height",
    )
    panorama_min_pixels: int = Field(1_000_000, ge=1, description="smaller panoramas are refused (GeoVista: 1 M)")
    max_file_mb: float = Field(64, gt=0, description="larger files are refused before they are opened")
    exif_km: float | None = Field(
        1.0, gt=0, description="refuse a photo whose own GPS position is farther from the given one; null: do not look"
    )
    orientation: Literal["refuse", "apply", "ignore"] = Field(
        "refuse",
        description="what to do when EXIF says that a picture must still be turned and, by its sizes, that it was",
    )


class WebRules(Settings):
    """How pictures behind addresses are fetched."""

    requests_per_minute: float = Field(600, gt=0, description="ceiling for all hosts and workers together")
    attempts: int = Field(4, ge=1, le=20, description="times one address is queried before the row counts as failed")
    timeout_s: float = Field(60, gt=0, description="seconds to wait for the next bytes of an answer")
    total_timeout_s: float = Field(180, gt=0, description="seconds for one whole picture")
    backoff_s: float = Field(0.5, ge=0, description="first retry waits up to this, each later one up to twice as long")
    limit_patience_s: float = Field(
        300,
        ge=0,
        description="how long a row waits for a host that says its limit is reached, before it counts as failed",
    )
    allow_private: bool = Field(
        False, description="also ask hosts of private networks and this machine, which a table from outside must not"
    )


class IngestSettings(Settings):
    """A table of photos with coordinates. Licence and attribution come from its rows, or from here."""

    layout: LayoutName = Field("auto", description="the table's columns; auto: recognised by their names")
    name: str | None = Field(
        None, description="the dataset's name, by which the same table is known again; none: the file's name"
    )
    images: str | None = Field(None, min_length=1, description="folder of the pictures; none: the table's own folder")
    licence: str | None = Field(None, min_length=1, description="for rows that name none")
    attribution: str | None = Field(
        None, min_length=1, description="for rows that name none; may hold {id}, {creator} and {licence}"
    )
    split: SplitName | None = Field(
        None, description="for rows that name none; none: by whole cells, as the plan does it"
    )
    purpose: Purpose | None = Field(
        None,
        description="benchmark and training: a published set, which stays whole and is not judged; pool: pictures to "
        "choose from; none: what the layout's dataset is, else pool",
    )
    share: float | None = Field(
        None, gt=0, le=1, description="of the rows that is taken, drawn by their ids (SpotAgent: 0.05 of MP16-Pro)"
    )
    shares: dict[LayoutName, Annotated[float, Field(gt=0, le=1)]] = Field(
        {}, description="the same by layout, where `share` is not given"
    )
    held_out: int | None = Field(
        None,
        ge=1,
        description="rows drawn by `seed` that are the benchmark, or of a training set the validation; the others that "
        "are taken are for training (MAPBench: 2,500 of 5,000; IMAGEO-2: 902 of 2,929)",
    )
    draw: int | None = Field(None, ge=1, description="rows to take, drawn as `draw_by` says; null: all")
    draw_by: Literal["strata", "cities"] = Field(
        "strata",
        description="strata: countries and cells as the plan weighs them (GeoSeek: 12,500 of OSV-5M and 7,500 of "
        "GeoComp, 3,000 more to evaluate on); cities: as many of each city, one a point of interest (MAPBench: 5,000)",
    )
    cities: int = Field(20, ge=1, description="with draw_by cities: how many, those with most points of interest")
    city_column: str = Field("city", min_length=1, description="with draw_by cities: the table's column of the city")
    poi_column: str = Field("poi", min_length=1, description="and of the point of interest's name or id")
    seed: int = Field(0, ge=0, description="of `share`, `draw` and `held_out`: another one draws others")
    swap_lat_lon: bool = Field(False, description="the table's latitude and longitude columns are exchanged")
    keep_lat_lon: bool = Field(False, description="they are right, although they look exchanged")
    check_ids: bool = Field(True, description="look for ids that went through a floating-point number")
    encoding: str | None = Field(None, min_length=1, description="of a text table; none: UTF-8, or what its mark says")
    replace: bool = Field(
        False, json_schema_extra=OPERATIONAL, description="the file may drop most photos its dataset has now"
    )
    retry_refused: bool = Field(
        False, json_schema_extra=OPERATIONAL, description="look again at rows that were refused for their picture"
    )
    max_rows: int = Field(
        10_000_000, ge=1, json_schema_extra=OPERATIONAL, description="of a Parquet file; one with more is refused"
    )
    picture: PictureRules = PictureRules()
    web: WebRules = WebRules()

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str | None) -> str | None:
        if value is not None and not is_dataset_name(value):
            taken = ", which is the name of another source" if is_taken(value) else ""
            raise ValueError(f"must be letters, digits, '.', '_' or '-', at most 64{taken}")
        return value

    @field_validator("attribution")
    @classmethod
    def _known_words(cls, value: str | None) -> str | None:
        unknown = [word for word in re.findall(r"\{(.*?)\}", value or "") if word not in ATTRIBUTED]
        if unknown:
            known = ", ".join(f"{{{word}}}" for word in ATTRIBUTED)
            raise ValueError(f"nothing is known to put in place of {{{unknown[0]}}}; it may hold {known}")
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                "".encode(value)
            except (LookupError, ValueError):
                raise ValueError("is no encoding; utf-8, utf-16, latin-1 and cp1252 are common ones") from None
        return value

    @model_validator(mode="after")
    def _one_opinion(self) -> "IngestSettings":
        if self.swap_lat_lon and self.keep_lat_lon:
            raise ValueError("swap_lat_lon and keep_lat_lon contradict each other: give one of them")
        if self.held_out is not None and self.split is not None:
            raise ValueError("held_out and split contradict each other: give one of them")
        return self
