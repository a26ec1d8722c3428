"""The benchmark that stays fresh: pictures that no model can have seen, one signed set a month."""

from datetime import date

from pydantic import Field

from schemas.settings.base import Settings
from schemas.settings.curate import DuplicatesSettings


class BenchmarkSettings(Settings):
    """Which pictures of the benchmark split become the set of a month."""

    month: str | None = Field(
        None, pattern=r"^\d{4}-(0[1-9]|1[0-2])$", description="such as 2026-10; null: the last month that is over"
    )
    cutoff: date | None = Field(
        None, description="last day of which a model may know pictures; null: the latest cut-off of benchmark.models"
    )
    models: tuple[str, ...] = Field(
        (), description="models that the set is to be fresh for: names of benchmark.cutoffs, or trained:<model id>"
    )
    cutoffs: dict[str, date] = Field(
        {},
        description="last day of a model's training data by its name, as its card says; a trained one has its base's",
    )
    least_km: float = Field(25.0, ge=0, description="from the nearest cell (1° by 1°) that a training picture lies in")
    pictures: int | None = Field(None, ge=1, description="of a month, at most; null: all that can be used")
    duplicates: DuplicatesSettings = Field(DuplicatesSettings(), description="what is a copy, as for curate.duplicates")
