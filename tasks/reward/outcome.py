"""What scoring a rollout gives: a number with its parts, or an exclusion. An outage is never a zero."""

from dataclasses import dataclass, field

from tasks.geo.distance import is_point
from tasks.reward.answer import Address
from tasks.services.errors import ServiceError


@dataclass(frozen=True)
class Truth:
    """Where the picture was really taken."""

    lat: float
    lon: float
    address: Address = field(default_factory=Address)

    def __post_init__(self) -> None:
        if not is_point(self.lat, self.lon):
            raise ValueError(f"true position lat {self.lat}, lon {self.lon} is not on Earth")


@dataclass(frozen=True)
class Scored:
    """A reward. `reason` says why an answer could not be read; `parts` are the terms of a sum, for the report."""

    reward: float
    reason: str | None = None
    error_km: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Excluded:
    """A rollout that a tool or service failed: it leaves its group and is counted, it is not a wrong answer."""

    reason: str


def excluded_by(error: ServiceError) -> Excluded:
    """The exclusion a service's failure leads to."""
    return Excluded(f"{error.service}_{error.kind}")
