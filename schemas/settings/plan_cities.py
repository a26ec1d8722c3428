"""Which cities a plan is for."""

from pydantic import Field

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
