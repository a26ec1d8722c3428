"""What scoring a rollout gives: a number with its parts, or an exclusion. An outage is never a zero."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.geo.distance import distance_km, is_point
from tasks.reward.answer import Address, ParseFailure, parse_point
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


TRUTH_COLUMNS = ("lat", "lon", "country", "region", "city")


def truth_of(row: Mapping[str, Any]) -> Truth:
    """The truth in a row's columns lat, lon, country, region, city, of which the last three may be missing."""
    names = (row.get(name) for name in TRUTH_COLUMNS[2:])
    address = Address(*(name if isinstance(name, str) and name.strip() else None for name in names))
    return Truth(float(row["lat"]), float(row["lon"]), address)


@dataclass(frozen=True)
class PointError:
    """The point an answer names and its distance from the truth, or why it names none."""

    lat: float | None = None
    lon: float | None = None
    error_km: float | None = None
    parse_error: str | None = None


def point_error(answer_text: str | None, true_lat: float, true_lon: float) -> PointError:
    """How far an answer is from the truth."""
    answer = parse_point(answer_text)
    if isinstance(answer, ParseFailure) or answer.lat is None or answer.lon is None:
        return PointError(parse_error=answer.reason if isinstance(answer, ParseFailure) else "no_coordinates")
    return PointError(answer.lat, answer.lon, distance_km(answer.lat, answer.lon, true_lat, true_lon))


@dataclass(frozen=True)
class Scored:
    """A reward. `reason` says why an answer could not be read; `parts` are terms of a sum and shares, for reports."""

    reward: float
    reason: str | None = None
    error_km: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    turns: tuple[float, ...] = ()  # of the reward, what each reply earned; the rest is earned by the last


BEHAVIOUR = "behaviour/"  # before the names of parts that are shares of rollouts and no terms of the sum


def figure_name(part: str) -> str:
    """How a part is called among a step's figures."""
    return part if part.startswith(BEHAVIOUR) else f"reward/{part}"


@dataclass(frozen=True)
class Excluded:
    """A rollout that a tool or service failed: it leaves its group and is counted, it is not a wrong answer."""

    reason: str


def excluded_by(error: ServiceError) -> Excluded:
    """The exclusion a service's failure leads to."""
    return Excluded(f"{error.service}_{error.kind}")


def score_point(answer_text: str | None, truth: Truth, reward_at: Callable[[float], float]) -> Scored:
    """The reward of an answer by its distance in km. What cannot be read earns nothing."""
    point = point_error(answer_text, truth.lat, truth.lon)
    if point.error_km is None:
        return Scored(0.0, reason=point.parse_error)
    return Scored(reward_at(point.error_km), error_km=point.error_km)
