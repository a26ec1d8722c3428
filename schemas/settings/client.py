"""How the HTTP client treats a service: timeouts, tries, waits, concurrency."""

from importlib.metadata import PackageNotFoundError, version

from pydantic import Field

from schemas.settings.base import Settings


def _own_name() -> str:
    try:
        return f"geofix/{version('geofix')}"
    except PackageNotFoundError:
        return "geofix"


class ClientSettings(Settings):
    """As `services.client` for all services; each service may override single fields under its own name."""

    connect_timeout_s: float = Field(10, gt=0, description="seconds to wait for a connection")
    timeout_s: float = Field(60, gt=0, description="seconds to wait for the next bytes of an answer")
    total_timeout_s: float = Field(180, gt=0, description="seconds for one whole answer")
    max_attempts: int = Field(5, ge=1, le=20, description="times one request is tried before it counts as failed")
    backoff_s: float = Field(0.5, ge=0, description="first retry waits up to this, each later one up to twice as long")
    max_wait_s: float = Field(
        60,
        ge=0,
        description="longest wait before a retry; a longer Retry-After gives up (of a limit: limit_patience_s)",
    )
    limit_pause_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="how long nothing is asked of a service that says its limit is reached and names no time; doubles",
    )
    limit_patience_s: float = Field(
        900, ge=0, description="how long requests wait for such a limit's end before they are left to a later run"
    )
    max_concurrency: int = Field(
        64, ge=1, le=1024, description="requests at once of one worker; how many really are follows the service's speed"
    )
    outage_after: int = Field(10, ge=1, description="outages in a row after which only single requests are sent")
    outage_pause_s: float = Field(2, gt=0, description="time to the first of them; doubles, up to max_wait_s")
    outage_patience_s: float = Field(
        60, ge=0, description="how long requests wait for the service's return, all together; then they fail unsent"
    )
    max_body_mb: float = Field(64, gt=0, description="largest answer accepted")
    user_agent: str = Field(default_factory=_own_name, min_length=1, description="how we name ourselves")
