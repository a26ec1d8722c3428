"""Where to look: how many places, in which countries, how they are spread and split."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from schemas.settings.base import Settings


class CitySettings(Settings):
    """How cities are chosen and how much of each is looked at. Only used by a plan of mode `cities`."""

    count: int = Field(108, ge=1, le=10_000, description="cities to choose (GeoBench: 108)")
    min_people: int = Field(100_000, ge=15_000, description="smaller cities are not chosen; the list begins at 15,000")
    # GeoBench has 108 cities in 66 countries. Shares by eq. 11 itself would put them into 52, equal shares into 108.
    evenness: float = Field(
        0.2,
        ge=0,
        le=1,
        description="0: countries get cities by the quotas of eq. 11; 1: every country alike; 0.2: 108 cities in about "
        "66 countries, as GeoBench has",
    )
    viewport_km: float | None = Field(
        None,
        ge=1,
        le=100,
        description="side of the square around a city's centre; none: by its people, at 4,000 a square kilometre, "
        "between 5 and 40 km",
    )


# Published sets: GeoAgent's two, and GeoVista's, whose 512 photos and 512 panoramas are one of each for 512 places.
PRESETS: dict[str, dict[str, Any]] = {
    "geoseek-loc": {"places": 20_000},
    "geoseek-val": {"places": 3_000},
    "geobench": {
        "mode": "cities",
        "places": 512,
        "cities": {"count": 108},
        "split": {"train": 0.0, "validation": 0.0, "benchmark": 1.0},
    },
}

MOST_BUFFER_KM = 50.0  # as wide as half a cell: a wider one would leave no place between two splits


def _sums_to_one(section: Settings, what: str) -> None:
    values = section.model_dump()
    total = math.fsum(values.values())
    if abs(total - 1.0) > 1e-9:
        terms = " + ".join(f"{value:g} ({name})" for name, value in values.items())
        raise ValueError(f"{what} must sum to 1, but {terms} = {total:g}")


class QuotaWeights(Settings):
    """GeoAgent eq. 11: how much roads, people and land count for a country's share."""

    roads: float = Field(0.5, ge=0, le=1, description="weight of the country's share of the world's road length")
    people: float = Field(0.2, ge=0, le=1, description="weight of its share of the world's population")
    land: float = Field(0.3, ge=0, le=1, description="weight of its share of the world's land area")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _sums_to_one(self, "the quota weights")
        return self


class SplitShares(Settings):
    """Which share of the one-degree cells belongs to each split. A cell is never divided."""

    train: float = Field(0.8, ge=0, le=1, description="share of the cells to train on")
    validation: float = Field(0.1, ge=0, le=1, description="share of the cells to choose models by")
    benchmark: float = Field(0.1, ge=0, le=1, description="share of the cells that are only for the final score")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _sums_to_one(self, "the split shares")
        return self


def _set_by_preset(settings: dict[str, Any], fields: Mapping[str, Any], preset: str, section: str = "") -> None:
    """Fill the preset's fields in; one that is there already and says something else is refused."""
    for name, value in fields.items():
        if settings.setdefault(name, value) != value:
            raise ValueError(
                f"{section}{name} is {settings[name]!r}, but preset {preset} sets it to {value!r}: "
                "leave one of the two out"
            )


def _is_country_code(code: str) -> str:
    if not (len(code) == 2 and code.isascii() and code.isalpha() and code.isupper()):
        raise ValueError(f"'{code}' is not an ISO 3166 alpha-2 code such as FR or BR")
    return code


CountryCode = Annotated[str, AfterValidator(_is_country_code)]


class PlanSettings(Settings):
    """The plan of places. The same settings give the same places, on any machine and any number of workers."""

    # A preset given in a later layer than these fields makes them give way; beside it, they may not differ from it.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    places: int = Field(160, ge=1, le=100_000_000, description="M of GeoAgent eq. 11: places to plan in all")
    preset: Literal["geoseek-loc", "geoseek-val", "geobench"] | None = Field(
        None,
        description="a published set instead of `places`: geoseek-loc 20000 places, geoseek-val 3000, "
        "geobench 512 in 108 cities",
    )
    mode: Literal["world", "cities"] = Field(
        "world", description="world: GeoAgent's quotas and cells, over all land; cities: inside the viewports of cities"
    )
    seed: int = Field(7, ge=0, lt=2**63, description="another seed draws other places and other splits")
    countries: tuple[CountryCode, ...] | None = Field(
        None, min_length=1, description="ISO 3166 alpha-2 codes to plan for; none: the whole Earth"
    )
    exclude: tuple[CountryCode, ...] = Field(
        ("AQ",), description="countries to leave out. Antarctica has land but neither roads nor residents"
    )
    weights: QuotaWeights = QuotaWeights()
    population_raster: str | None = Field(
        None,
        min_length=1,
        description="GeoTIFF or ASCII grid of people per pixel, in degrees, such as WorldPop's, for cells and for the "
        "people of countries; none: the gazetteer and the packaged table",
    )
    roads: str | None = Field(
        None,
        min_length=1,
        description="file of roads for the countries' lengths: lines of any format that GDAL reads (an OSM extract, "
        "GRIP4, Overture), or a raster of metres per km²; none: the packaged table",
    )
    cell_floor_people: float = Field(
        100.0,
        ge=0,
        allow_inf_nan=False,
        description="people added to a cell of land without a raster, to one that is part sea or another country's "
        "in proportion: gazetteers miss the countryside",
    )
    within_cell: Literal["gazetteer", "uniform"] = Field(
        "gazetteer", description="near the cell's towns, log-weighted by people; or anywhere on the cell's land alike"
    )
    jitter_km: float = Field(2.0, ge=0, le=50, description="how far from the town's centre a place may lie")
    spacing_km: float = Field(1.0, ge=0, le=500, description="no two places are closer than this")
    buffer_km: float = Field(
        10.0, ge=0, le=MOST_BUFFER_KM, description="no two places of different splits are closer than this"
    )
    split: SplitShares = SplitShares()
    cities: CitySettings = CitySettings()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        preset = PRESETS.get(str(data.get("preset"))) if isinstance(data, dict) else None
        if preset is None:
            return data
        filled = {"split": preset["split"]} if "split" in preset else {}
        filled |= data
        fixed = {name: value for name, value in preset.items() if name in ("mode", "places")}
        _set_by_preset(filled, fixed, data["preset"])
        if "cities" in preset and isinstance(filled.setdefault("cities", {}), dict):
            filled["cities"] = dict(filled["cities"])
            _set_by_preset(filled["cities"], preset["cities"], data["preset"], "cities.")
        return filled

    @model_validator(mode="after")
    def _fits_the_mode(self) -> Self:
        if self.mode == "cities" and self.population_raster:
            raise ValueError("population_raster is for mode world: cities come with their own people")
        if self.mode == "cities" and self.places < self.cities.count:
            raise ValueError(
                f"{self.places} places cannot lie in {self.cities.count} cities: "
                "raise plan.places or lower plan.cities.count"
            )
        return self

    @model_validator(mode="after")
    def _some_country(self) -> Self:
        if self.countries is not None and not set(self.countries) - set(self.exclude):
            raise ValueError(
                f"plan.exclude leaves out every country of plan.countries ({', '.join(self.countries)}): "
                "set plan.exclude=[] to plan them"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """The fields that decide what comes out. What a preset stands for counts, not its name."""
        fields = super().identity()
        del fields["preset"]
        # Settings of the other mode change nothing.
        unused = ("mode", "cities") if self.mode == "world" else ("within_cell", "jitter_km", "cell_floor_people")
        return {name: value for name, value in fields.items() if name not in unused}

    @property
    def floor_people(self) -> float:
        """What is added to a cell's people: nothing where they were counted from a raster."""
        return 0.0 if self.population_raster else self.cell_floor_people
