"""How Prefect runs the stages."""

from pydantic import Field

from schemas.settings.base import OPERATIONAL, Settings


class FlowSettings(Settings):
    """Retries of a stage and the wait for the reviewer, in Prefect deployments."""

    retries: int = Field(
        2,
        ge=0,
        le=20,
        description="times a deployment runs a stage again after an outage of a service or of Ray; "
        "a command in the terminal ends with exit code 3 instead",
        json_schema_extra=OPERATIONAL,
    )
    retry_delay_s: float = Field(
        30.0, ge=0, le=3600, description="before the first retry; doubles with each", json_schema_extra=OPERATIONAL
    )
    review_timeout_h: float = Field(
        168.0,
        gt=0,
        le=8760,
        description="how long a suspended pipeline waits for the reviewer before it fails",
        json_schema_extra=OPERATIONAL,
    )
    record_commands: bool = Field(
        False,
        description="commands in the terminal are recorded by the Prefect server of `geofix up`, if it runs for the "
        "lake; otherwise by none, unless PREFECT_API_URL names one",
        json_schema_extra=OPERATIONAL,
    )
    record_idle: bool = Field(
        False,
        description="a command with nothing to do is a row of the table `runs` too, and a run of Prefect where that "
        "records commands; otherwise it ends at once",
        json_schema_extra=OPERATIONAL,
    )
    reports_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#]+$",
        description="where a web server shows the lake's folder `reports`, such as https://data.example/reports; "
        "Prefect's links and messages lead there instead of naming files",
        json_schema_extra=OPERATIONAL,
    )
