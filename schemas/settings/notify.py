"""Where a run reports what needs a person."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import OPERATIONAL, Settings

Event = Literal["failure", "waiting_snapshot", "exhausted_budget"]


class NotifySettings(Settings):
    """A webhook that is told when a run fails, a snapshot waits for review or a budget is used up."""

    url_env: str = Field(
        "GEOFIX_WEBHOOK",
        min_length=1,
        description="environment variable that holds the webhook's address; nothing is sent while it is not set",
        json_schema_extra=OPERATIONAL,
    )
    events: tuple[Event, ...] = Field(
        ("failure", "waiting_snapshot", "exhausted_budget"),
        description="what is reported",
        json_schema_extra=OPERATIONAL,
    )
    timeout_s: float = Field(
        10.0, gt=0, le=120, description="longest wait for the webhook's answer", json_schema_extra=OPERATIONAL
    )
