"""What a run may do with results that are there already."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import OPERATIONAL, Settings


class RunSettings(Settings):
    """Whether finished items are paid for again because settings or code changed."""

    redo: Literal["ask", "always", "never"] = Field(
        "ask",
        description="finished items of other settings: ask before redoing many, redo them, or leave them as they are",
        json_schema_extra=OPERATIONAL,
    )
    redo_ask_above: int = Field(
        100, ge=0, description="items a stage may redo without asking", json_schema_extra=OPERATIONAL
    )
