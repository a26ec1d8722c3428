"""What a run shows to those who watch it: metrics and log lines for machines."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import OPERATIONAL, Settings


class ObserveSettings(Settings):
    """Metrics for Prometheus and the form of log lines. Traces are on where OTEL_EXPORTER_OTLP_ENDPOINT is set."""

    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="port at which a run shows /metrics while it lasts; null: nowhere",
        json_schema_extra=OPERATIONAL,
    )
    metrics_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address it listens on; 0.0.0.0 only inside a container or a network of its own",
        json_schema_extra=OPERATIONAL,
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="lines of the log: for people, or as JSON with the ids of flow run and task run, on standard error",
        json_schema_extra=OPERATIONAL,
    )
